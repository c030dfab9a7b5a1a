"""What belongs to Services and to the API server is certified to no kubelet, known or not known yet."""

import random

from libs.common.contract.events import ClusterNetworksObserved
from libs.common.contract.machine import AddressStatus
from libs.common.kube.errors import Unreachable
from libs.common.kube.server_identity import ServerIdentity
from services.csr.api_endpoint_watcher import (
    FIRST_READ_INTERVAL_SECONDS,
    FIRST_READS,
    READ_INTERVAL_SECONDS,
    ApiEndpointWatcher,
)
from services.csr.on_csr_enriched import RETRY_SECONDS
from tests.builders import NOW, make_facts, make_node
from tests.bus_server import make_flow_fixture
from tests.clocks import ManualClock
from tests.csr_actors import CsrServiceFlow, InMemoryRequests, make_serving_request
from tests.csr_cases import API_SERVER

SERVICE_ADDRESS = "10.96.0.1"
ENDPOINT_NAME = "api.prod.example.com"


flow = make_flow_fixture(CsrServiceFlow.open)


async def test_a_service_address_waits_while_the_service_networks_are_not_known(flow: CsrServiceFlow):
    liar = make_facts(addresses=(AddressStatus(address=f"{SERVICE_ADDRESS}/32", link="lo"),))
    async with flow.run_csr(service_cluster_ip_range=()):
        await flow.enrich(make_node(), liar)
        await flow.file_and_enrich(make_serving_request(ips=(SERVICE_ADDRESS,)), facts=liar, node_uid="uid-1")
        decided = await flow.wait_for_decision("csr-1", "waiting", "approved", "denied")
    assert (decided.outcome, flow.kube.patched) == ("waiting", [])


async def test_the_api_servers_host_name_is_denied_to_a_machine_that_reports_it(flow: CsrServiceFlow):
    liar = make_facts(hostname=ENDPOINT_NAME)
    async with flow.run_csr():
        await flow.enrich(make_node(), liar)
        await flow.file_and_enrich(
            make_serving_request(dns=("web-1", ENDPOINT_NAME)), facts=liar, node_uid="uid-1"
        )
        decided = await flow.wait_for_decision("csr-1", "waiting", "approved", "denied")
    assert decided.outcome == "denied"


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
        await flow.wait_for_decision("csr-next", "approved", seconds=RETRY_SECONDS / 2)


async def test_an_address_of_a_range_that_was_added_to_the_cluster_is_denied(flow: CsrServiceFlow):
    """A ServiceCIDR object; the flag and the control plane name only the first range."""
    liar = make_facts(addresses=(AddressStatus(address="10.200.0.7/32", link="eth0"),))
    async with flow.run_csr():
        await flow.publish_snapshot(service_cidrs=("10.200.0.0/16",))
        await flow.enrich(make_node(), liar)
        await flow.file_and_enrich(make_serving_request(ips=("10.200.0.7",)), facts=liar, node_uid="uid-1")
        decided = await flow.wait_for_decision("csr-1", "waiting", "approved", "denied")
    assert decided.outcome == "denied"


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
        await flow.wait_for_decision("csr-1", "approved", seconds=RETRY_SECONDS / 2)
        assert not csr.problems()
    assert flow.kube.patched == ["csr-1"]


async def test_without_talos_and_without_the_range_it_waits_and_readiness_says_so(flow: CsrServiceFlow):
    async with flow.run_csr(service_cluster_ip_range=(), allowed_networks=("10.0.0.0/8",)) as csr:
        assert not csr.problems()
        await flow.publish_node(make_node())
        await flow.file_and_enrich(make_serving_request(), without_talos=True)
        waits = await flow.wait_for_decision("csr-1", "waiting", "approved")
        assert "--service-cluster-ip-range" in waits.reason
        assert any("--service-cluster-ip-range" in problem for problem in csr.problems())
    assert flow.kube.patched == []


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
        await flow.wait_for_decision("csr-1", "approved", seconds=10.0)
        assert not csr.problems()


def watching(kube: InMemoryRequests, clock: ManualClock, changes: list[str]) -> ApiEndpointWatcher:
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
