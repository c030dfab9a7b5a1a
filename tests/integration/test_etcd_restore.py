"""etcd comes back from a backup: versions go back, and a reflector follows the objects of the backup."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from tests.bus_actors import wait_until
from tests.kube_loopback import follow_nodes

NODES = "/api/v1/nodes"


async def list_nodes(kubelets: KubeletFleet) -> tuple[set[str], int]:
    answer: Any = (await kubelets.request("GET", NODES)).body
    names = {item["metadata"]["name"] for item in answer["items"]}
    return names, int(answer["metadata"]["resourceVersion"])


@asynccontextmanager
async def open_admin_api(control_plane: ControlPlane) -> AsyncIterator[KubeApi]:
    api = KubeApi(load_kube_config(control_plane.kubeconfig(), {}), user_agent="talos-ccm/test")
    try:
        yield api
    finally:
        await api.close()


async def test_a_restored_backup_has_the_objects_and_versions_of_its_time(tmp_path: Path):
    async with (
        ControlPlane.start(tmp_path / "kubernetes", controller_manager=False) as control_plane,
        KubeletFleet.start(control_plane) as kubelets,
        open_admin_api(control_plane) as api,
        follow_nodes(api) as (follower, _),
    ):
        await kubelets.join(SimKubelet(name="deleted-later"))
        await control_plane.back_up_etcd(tmp_path / "backup")
        await kubelets.delete_node("deleted-later")
        await kubelets.join_all([SimKubelet(name=f"lost-{number}") for number in range(20)])
        _, before = await list_nodes(kubelets)
        await wait_until(lambda: len(follower.nodes) == 20)
        mark = control_plane.audit_mark()

        await control_plane.restore_etcd(tmp_path / "backup")
        names, after = await list_nodes(kubelets)
        assert names == {"deleted-later"}
        assert after < before
        assert control_plane.etcd_restores == [mark]
        assert control_plane.controller_manager is None
        await wait_until(lambda: set(follower.nodes) == names, "the follower has listed again")
