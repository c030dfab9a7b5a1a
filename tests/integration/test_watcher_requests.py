"""Kubelets' requests, filed at an API server and said by the watcher: a simulated one and the real one."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import BusHooks
from libs.common.contract.events import CsrGone, CsrObserved
from libs.common.contract.services import WATCHER
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.service_permissions import build_role_objects, get_collection_path, get_user_name
from libs.testbed.signing_requests import CSRS, make_request_pem
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.builders import make_request
from tests.bus_actors import run_during, wait_until
from tests.integration.conftest import ConnectBus
from tests.watcher_actors import ScriptedNodes, ScriptedRequests, WatcherFlow, make_watcher

CLIENTS = "kubernetes.io/kube-apiserver-client"
OPERATOR = "system:serviceaccount:kube-system:operator"
MASTERS = ("system:masters",)
ApiServer = SimApiServer | ControlPlane


@pytest.fixture(params=["simulated", "control_plane"], ids=["simulated", "real"])
def api_server(request: pytest.FixtureRequest) -> ApiServer:
    server: ApiServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
async def admin(api_server: ApiServer) -> AsyncIterator[KubeletFleet]:
    async with KubeletFleet.start(api_server) as running:
        await no_requests(running)
        yield running
        await no_requests(running)


async def no_requests(admin: KubeletFleet) -> None:
    for request in (await admin.request("GET", CSRS)).body["items"]:
        await admin.request("DELETE", f"{CSRS}/{request['metadata']['name']}")


@pytest.fixture
async def kube(api_server: ApiServer) -> AsyncIterator[KubeApi]:
    made = KubeApi(load_kube_config(api_server.kubeconfig(), {}), user_agent="talos-ccm/test")
    yield made
    await made.close()


async def test_a_request_is_said_when_it_is_filed_issued_and_deleted_and_nobody_elses_is(
    admin: KubeletFleet, kube: KubeApi
):
    asks = SimKubelet(name="asks.example", ips=("10.7.0.2",))
    early = await admin.request_certificate(asks)
    bus, flow = MemoryBus(MemoryServer()), WatcherFlow()
    async with run_during(make_watcher(bus, kube=kube, observe_only=True).run()), flow.follow(bus):
        await flow.wait_for(lambda f: f.snapshots(), "a snapshot")
        assert flow.snapshots()[0].requests == 1
        pem = make_request_pem(common_name="operator", dns=[], ips=[])
        foreign = [
            await admin.file_request(
                pem, user=OPERATOR, groups=MASTERS, signer=CLIENTS, usages=("client auth",)
            ),
            await admin.file_request(pem, user=OPERATOR, groups=MASTERS),
        ]
        filed = await admin.request_certificate(asks)
        await flow.wait_for(lambda f: f.existing_requests() == {early, filed})
        said = flow.last_request(filed)
        assert isinstance(said, CsrObserved)
        assert (said.request.node_name, said.request.is_pending) == ("asks.example", True)
        assert said.request.spec.request.startswith(b"-----BEGIN CERTIFICATE REQUEST-----")
        await admin.approve(filed)
        await flow.wait_for(lambda f: _is_issued(f, filed), "that it was issued")
        await admin.request("DELETE", f"{CSRS}/{filed}")
        await flow.wait_for(lambda f: isinstance(f.last_request(filed), CsrGone), "its end")
        assert not any(flow.list_request_events(name) for name in foreign)


def _is_issued(flow: WatcherFlow, name: str) -> bool:
    said = flow.last_request(name)
    return (
        isinstance(said, CsrObserved) and said.request.status.issued and not said.request.status.certificate
    )


async def test_an_old_cluster_role_costs_no_node_its_initialization_and_the_new_one_is_noticed(
    api_server: ApiServer, admin: KubeletFleet
):
    old = msgspec.structs.replace(
        WATCHER, policy_rules=tuple(r for r in WATCHER.policy_rules if r.group == "")
    )
    for manifest in build_role_objects(old):  # others may have left theirs on the same server
        await admin.request("DELETE", f"{get_collection_path(manifest)}/{manifest['metadata']['name']}")
        assert (await admin.request("POST", get_collection_path(manifest), body=manifest)).status == 201
    filed = await admin.request_certificate(SimKubelet(name="asks.example", ips=("10.7.0.2",)))
    kubeconfig = api_server.kubeconfig(get_user_name(WATCHER))
    kube = KubeApi(load_kube_config(kubeconfig, {}), user_agent="talos-ccm/test")
    bus, flow = MemoryBus(MemoryServer()), WatcherFlow()
    watcher = make_watcher(bus, kube=kube, observe_only=True)
    try:
        async with run_during(watcher.run()), flow.follow(bus):
            await flow.wait_for(lambda f: f.snapshots(), "a snapshot of the Nodes")
            await admin.join(SimKubelet(name="joins", ips=("10.7.0.5",)))
            await flow.wait_for(lambda f: "joins" in f.existing())
            assert {(said.requests, said.service_cidrs) for said in flow.snapshots()} == {(None, None)}
            told = "; ".join(watcher.problems())
            assert "missing RBAC rule: apiGroups ['certificates.k8s.io']" in told
            assert "missing RBAC rule: apiGroups ['networking.k8s.io'], resources [servicecidrs]" in told
            await grant_all(admin)
            await flow.wait_for(lambda f: filed in f.existing_requests(), "the request")
            await flow.wait_for(lambda f: bool(f.snapshots()[-1].requests), "a snapshot of all")
            await flow.wait_for(lambda f: f.snapshots()[-1].service_cidrs is not None, "the ranges")
            await wait_until(lambda: watcher.problems() == (), "ready")
    finally:
        await kube.close()
        await admin.delete_node("joins")
        for manifest in build_role_objects(WATCHER):
            await admin.request("DELETE", f"{get_collection_path(manifest)}/{manifest['metadata']['name']}")


async def grant_all(admin: KubeletFleet) -> None:
    """As a chart's upgrade does."""
    for manifest in build_role_objects(WATCHER):
        if manifest["kind"] == "ClusterRole":
            path = f"{get_collection_path(manifest)}/{manifest['metadata']['name']}"
            await admin.request("DELETE", path)
            assert (await admin.request("POST", get_collection_path(manifest), body=manifest)).status == 201


async def test_a_request_whose_name_no_subject_can_bear_does_not_cost_the_connection_to_nats(
    connect_bus: ConnectBus,
):
    # NATS ends the connection at 4096 characters; the API server takes 300 000, and control characters
    named = [
        make_request(name, uid=f"uid-{name[:2]}", node="evil") for name in ("x" * 5000, "a\x1b[31m", "a\x00b")
    ]
    script = ScriptedRequests(*named, make_request("good", uid="uid-good"))
    lost: list[str] = []
    bus = await connect_bus("watcher", hooks=BusHooks(disconnected=lost.append))
    flow = WatcherFlow()
    async with (
        run_during(make_watcher(bus, ScriptedNodes().source, requests=script.source).run()),
        flow.follow(bus),
    ):
        await flow.wait_for(lambda f: f.snapshots(), "a snapshot")
        assert flow.existing_requests() == {"good"}
    assert lost == []
