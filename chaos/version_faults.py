"""Faults of an upgrade: a process runs from an older version for a while, beside the others of this tree."""

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from chaos.cluster import Mode
from chaos.fault import Fault, FaultSite
from libs.common.contract.services import SERVICES
from libs.testbed.older_tree import OlderTree, extract_commit, run_from_older_tree, run_from_present_tree
from libs.testbed.service_start import ROOT, get_module

OLDER_COMMIT: Final = "2ebc7c859f7aa03b8176b89ca2b835a823439684"
_PREPARING: Final = threading.Lock()  # two faults of a pair share one tree
_HOLD_SECONDS: Final = (8.0, 14.0)  # an older process needs some seconds to start


def _list_version_faults() -> Iterator[Fault]:
    for spec in SERVICES:
        yield _make_fault(spec.service, ("separate",))
    yield _make_fault("all-in-one", ("all-in-one",))


def _make_fault(process: str, modes: tuple[Mode, ...]) -> Fault:
    async def downgrade(site: FaultSite) -> None:
        tree = await asyncio.to_thread(_prepare_tree, site.cluster.run_dir.parent, process)
        run_from_older_tree(process, tree)
        await site.cluster.services.kill(process)
        site.cluster.services.restart(process)

    async def upgrade(site: FaultSite) -> None:
        run_from_present_tree(process)
        await site.cluster.services.kill(process)
        site.cluster.services.restart(process)

    return Fault(
        name=f"{process}-of-older-version",
        target=f"process-{process}",
        inject=downgrade,
        heal=upgrade,
        hold_seconds=_HOLD_SECONDS,
        modes=modes,
    )


def get_older_tree(directory: Path) -> Path:
    """The path of the older tree that the runs of a sitting share. It is removed after the last one."""
    return directory / f"older-{OLDER_COMMIT[:8]}"


def _prepare_tree(directory: Path, process: str) -> Path:
    """Extract the older tree unless it exists; also read its flags, which takes a second."""
    tree = get_older_tree(directory)
    with _PREPARING:
        if not tree.exists():
            partial = tree.with_suffix(".partial")
            extract_commit(ROOT, OLDER_COMMIT, partial)
            partial.rename(tree)
    OlderTree(tree, frozenset()).build_argv([sys.executable, "-m", get_module(process)])
    return tree


VERSION_FAULTS: Final[Sequence[Fault]] = tuple(_list_version_faults())
