"""What belongs to Services and to the API server is certified to no kubelet, known or not known yet."""

import random
from typing import Any

from libs.common.contract.events import ClusterNetworksObserved
from libs.common.kube.errors import Unreachable
from libs.common.kube.server_identity import ServerIdentity
from services.csr.api_endpoint_watcher import (
    FIRST_READ_INTERVAL_SECONDS,
    FIRST_READS,
    READ_INTERVAL_SECONDS,
    ApiEndpointWatcher,
)
from tests.builders import NOW, make_facts, make_node
from tests.bus_server import make_flow_fixture
from tests.clocks import ManualClock
from tests.csr_actors import SOON, CsrServiceFlow, InMemoryRequests, make_serving_request
from tests.csr_cases import API_SERVER

flow = make_flow_fixture(CsrServiceFlow.open)


async def test_what_waits_for_the_service_networks_is_decided_as_soon_as_they_are_reported(
    flow: CsrServiceFlow,
):
    facts = make_facts()
    async with flow.run_csr(service_cluster_ip_range=()) as csr:
        await flow.enrich(make_node(), facts)
        await flow.file_and_enrich(make_serving_request(), facts=facts, node_uid="uid-1")
        assert "Service networks are not known" in (await flow.wait_for_decision("csr-1", "waiting")).reason
        assert not csr.problems(), "a control plane will report them"
        await flow.file_and_enrich(
            make_serving_request("csr-name", node="web-1", ips=(), age_seconds=-1),
            facts=facts,
            node_uid="uid-1",
        )
        await flow.wait_for_decision("csr-name", "approved")
        await flow.file_and_enrich(
            make_serving_request("csr-next", age_seconds=-2), facts=facts, node_uid="uid-1"
        )
        await flow.wait_for_decision("csr-next", "waiting")
        await flow.publish(
            ClusterNetworksObserved(
                stream_id=flow.stream_id, service_cidrs=("10.96.0.0/12",), observed_at=NOW
            )
        )
        await flow.wait_for_decision("csr-next", "approved", seconds=SOON)


async def test_requests_for_addresses_wait_with_the_reason_until_service_cidrs_are_known(
    flow: CsrServiceFlow,
):
    """The watcher of an older version, or without the right to list them."""
    facts = make_facts()
    async with flow.run_csr() as csr:
        await flow.publish_snapshot(service_cidrs=None)
        await flow.enrich(make_node(), facts)
        await flow.file_and_enrich(make_serving_request(), facts=facts, node_uid="uid-1")
        waits = await flow.wait_for_decision("csr-1", "waiting", "approved", "denied")
        assert (waits.outcome, "servicecidrs" in waits.reason) == ("waiting", True)
        assert any("servicecidrs" in problem for problem in csr.problems())
        await flow.publish_snapshot(service_cidrs=())
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)
        assert not csr.problems()
    assert flow.kube.patched == ["csr-1"]


async def test_nothing_but_a_node_name_is_approved_before_the_api_servers_certificate_is_read(
    flow: CsrServiceFlow,
):
    flow.kube.identity = Unreachable("http://127.0.0.1:8001 is plain HTTP")
    facts = make_facts(hostname="web-1.example.com")
    async with flow.run_csr(ready=False) as csr:
        await flow.enrich(make_node(), facts)
        await flow.file_and_enrich(
            make_serving_request(dns=("web-1", "web-1.example.com")), facts=facts, node_uid="uid-1"
        )
        assert "plain HTTP" in (await flow.wait_for_decision("csr-1", "waiting")).reason
        [problem] = csr.problems()
        assert "plain HTTP): requests for more than a node name wait" in problem
        flow.kube.identity = API_SERVER
        await flow.wait_for_decision("csr-1", "approved", seconds=SOON)
        assert not csr.problems()


def watching(kube: Any, clock: ManualClock, changes: list[str]) -> ApiEndpointWatcher:
    return ApiEndpointWatcher(
        kube, on_change=lambda: changes.append("changed"), clock=clock, random=random.Random(1)
    )


async def test_the_first_handshakes_follow_in_seconds_so_that_servers_behind_a_balancer_are_seen_soon():
    kube, clock, changes = InMemoryRequests(), ManualClock(), list[str]()
    watch = watching(kube, clock, changes)
    waits, servers = list[float](), [ServerIdentity(names=frozenset({f"cp-{n}"})) for n in range(3)]
    for number in range(FIRST_READS + 1):
        kube.identity = servers[number % 3]
        waits.append(await watch.read())
        clock.advance(waits[-1])
    assert waits == [FIRST_READ_INTERVAL_SECONDS] * (FIRST_READS - 1) + [READ_INTERVAL_SECONDS] * 2
    assert sum(waits[: FIRST_READS - 1]) <= 10.0
    assert set(watch.endpoint.identities) == set(servers)
    assert len(changes) == 3, "a server that is seen again changes nothing"


async def test_a_failed_handshake_changes_nothing_that_is_known_and_is_tried_again_soon():
    kube, clock, changes = InMemoryRequests(), ManualClock(), list[str]()
    watch = watching(kube, clock, changes)
    waits = [await watch.read() for _ in range(FIRST_READS)]
    assert waits[-1] == READ_INTERVAL_SECONDS
    kube.identity = Unreachable("no route to host")
    waits = [await watch.read() for _ in range(12)]
    assert waits[0] <= 1.0
    assert max(waits) <= 30.0
    assert (watch.endpoint.identities, watch.endpoint.fault) == ((API_SERVER,), "no route to host")
    assert not watch.problems()
    kube.identity = API_SERVER
    assert await watch.read() == READ_INTERVAL_SECONDS
    assert (watch.endpoint.fault, changes) == ("", ["changed"])
