"""etcd is restored from a backup: objects and resourceVersions are those of an earlier moment."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.chaos.fault import Fault, FaultSite
from tests.chaos.persist import persist


def _get_backup(site: FaultSite) -> Path:
    return site.cluster.run_dir / "etcd-backup"


async def _back_up(site: FaultSite) -> None:
    shutil.rmtree(_get_backup(site), ignore_errors=True)  # an earlier fault may have left one
    await site.cluster.control_plane.back_up_etcd(_get_backup(site))


async def _restore(site: FaultSite) -> None:
    await site.cluster.control_plane.restore_etcd(_get_backup(site))
    await persist("issue tokens", site.cluster.rotate_tokens)  # as kubelets do for their pods
    await site.write_again()


ETCD_FAULTS: Final[Sequence[Fault]] = (
    Fault(name="etcd-restored", target="apiserver", inject=_back_up, heal=_restore),
)
