"""A fault whose state is in etcd is over after a restore, also if the backup contains it."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from libs.common.contract.services import LABELER
from libs.testbed.admission_webhook import AdmissionWebhook
from libs.testbed.pki import CertificateAuthority
from libs.testbed.service_permissions import RBAC, get_user_name
from tests.chaos.cluster import ChaosCluster
from tests.chaos.fault import FaultSite, hold_fault
from tests.chaos.faults import get_fault

ROLE = f"/apis/{RBAC}/v1/clusterroles/{get_user_name(LABELER)}"
RULES = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]


class EtcdInMemory:
    """Objects by path, as administrators write them; a backup has all of them."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {ROLE: {"rules": RULES}}
        self._backup: dict[str, Any] = {}

    async def send(self, method: str, path: str, *, also: int = 200, body: Any = None) -> Any:
        """Answer as KubeletFleet.send does, where each request is accepted or has the status `also`."""
        if method == "POST":
            self.objects[f"{path}/{body['metadata']['name']}"] = body
        elif method == "PUT":
            self.objects[path] = body
        elif method == "DELETE":
            self.objects.pop(path, None)
        return self.objects.get(path)

    async def back_up_etcd(self, _: Path) -> None:
        self._backup = copy.deepcopy(self.objects)

    async def restore_etcd(self, _: Path) -> None:
        self.objects = copy.deepcopy(self._backup)


async def do_nothing() -> None:
    """There are no tokens, Nodes or requests."""


@pytest.mark.parametrize("name", ["webhook-hangs", "webhook-denies", "right-to-patch-nodes-revoked"])
async def test_a_fault_that_the_backup_contains_is_over_after_the_restore(name: str, tmp_path: Path):
    etcd = EtcdInMemory()
    initially = copy.deepcopy(etcd.objects)
    webhook = AdmissionWebhook("chaos", CertificateAuthority.make())
    cluster = SimpleNamespace(
        run_dir=tmp_path, control_plane=etcd, kubelets=etcd, webhook=webhook, rotate_tokens=do_nothing
    )
    nothing = cast("Any", None)  # these faults act on no machine
    site = FaultSite(cast("ChaosCluster", cluster), nothing, nothing, do_nothing, healed=[])
    fault, restored = get_fault(name), get_fault("etcd-restored")
    await cast("Any", fault.inject(site))
    await cast("Any", restored.inject(site))
    assert etcd.objects != initially
    await hold_fault(site, fault, 0.0)
    assert etcd.objects == initially
    await cast("Any", restored.heal(site))
    assert etcd.objects == initially
