"""Kubelets on a real and a simulated API server: how a Node comes, what a kubelet may, who is counted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.kubelet_node import UNINITIALIZED
from libs.testbed.kubelets import MERGE, KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bus_actors import wait_until
from tests.contract.conftest import ApiServer


@pytest.mark.real_only
async def test_a_kubelet_may_write_its_own_node_and_no_other(admin: KubeletFleet):
    await admin.join(SimKubelet(name="tb-own"))
    label = {"metadata": {"labels": {"tb": "yes"}}}
    own = await admin.request(
        "PATCH", "/api/v1/nodes/tb-own", as_node="tb-own", body=label, content_type=MERGE
    )
    other = await admin.request(
        "PATCH", "/api/v1/nodes/tb-own", as_node="tb-x", body=label, content_type=MERGE
    )
    assert (own.status, other.status) == (200, 403)
    await admin.delete_node("tb-own")


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"metadata": {"labels": {"node-role.kubernetes.io/x": ""}}}, "not allowed to modify labels"),
        ({"spec": {"taints": []}}, "not allowed to modify taints"),
    ],
)
async def test_a_kubelet_may_not_give_its_node_a_role_nor_free_it_of_its_taints(
    admin: KubeletFleet, patch: dict[str, Any], words: str
):
    await admin.join(SimKubelet(name="tb-free"))
    refused = await admin.request(
        "PATCH", "/api/v1/nodes/tb-free", as_node="tb-free", body=patch, content_type=MERGE
    )
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
    assert words in refused.body["message"]
    await admin.delete_node("tb-free")


@pytest.mark.real_only
async def test_a_kubelet_may_not_create_its_node_with_a_restricted_label(admin: KubeletFleet):
    with pytest.raises(RequestRejected, match="node-role"):
        await admin.join(SimKubelet(name="tb-role", labels={"node-role.kubernetes.io/control-plane": ""}))


@pytest.fixture
async def simulated_node_lifecycle(tmp_path: Path) -> AsyncIterator[SimApiServer]:
    async with SimApiServer.start(tmp_path, has_node_lifecycle=True) as running:
        yield running


@pytest.fixture(
    params=[pytest.param("control_plane", marks=pytest.mark.real_servers), "simulated_node_lifecycle"],
    ids=["real", "simulated"],
)
def node_lifecycle(request: pytest.FixtureRequest) -> ApiServer:
    """Where a controller keeps the taints of conditions."""
    server: ApiServer = request.getfixturevalue(request.param)
    return server


async def test_a_node_that_becomes_ready_loses_its_not_ready_taint_and_no_other(
    node_lifecycle: ApiServer,
):
    kept = {"key": "example.com/kept", "effect": "NoSchedule"}
    async with KubeletFleet.start(node_lifecycle) as kubelets:
        await kubelets.join(SimKubelet(name="lives", taints=(kept,)))

        async def has_only_others() -> bool:
            node = (await kubelets.request("GET", "/api/v1/nodes/lives")).body
            keys = {taint["key"] for taint in node["spec"]["taints"]}
            assert keys >= {kept["key"], UNINITIALIZED["key"]}
            return "node.kubernetes.io/not-ready" not in keys

        await wait_until(has_only_others, "the taint is removed")
        await kubelets.delete_node("lives")
