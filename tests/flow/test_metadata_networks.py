"""Metadata tells the cluster's networks and gateways: to whoever allocates or approves, and only there."""

import msgspec
import pytest

from libs.common.bus.protocol import BusError
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.events import ClusterNetworksObserved, NodeEnriched
from libs.common.contract.machine import Inventory, MachineFault
from libs.common.contract.subjects import NETWORKS
from libs.talos.api import MachineConfigNetworks
from tests.builders import NOW, make_cluster_networks, make_facts, make_node
from tests.bus_actors import wait_until
from tests.flow_actors import FlowActor
from tests.metadata_actors import CALM, ScriptedTalos, run_metadata

ALLOCATING = msgspec.structs.replace(
    CALM, controllers=("*", "node-ipam-controller"), republish_interval_seconds=1.0
)
NETWORK = MachineConfigNetworks(pod_cidrs=("10.244.0.0/16",), service_cidrs=("10.96.0.0/12",))
OTHER = MachineConfigNetworks(pod_cidrs=("10.8.0.0/16",), service_cidrs=("10.96.0.0/12",))
POOLS = """ipam:
  pools:
    - name: big
      cidrs: [10.8.0.0/16]
      nodeSelector: [{matchExpressions: [{key: cpuCores, operator: Gt, values: ["8"]}]}]
"""
NOBODY = MachineFault(kind="refused", step="ControllerManagerConfig", message="nobody there")


@pytest.fixture
def talos() -> ScriptedTalos:
    machines = ScriptedTalos()
    machines.put(make_facts())
    machines.inventories["10.0.0.5"] = Inventory(gateways=("10.0.0.1",))
    machines.networks = NETWORK
    return machines


async def said(stream: FlowActor) -> ClusterNetworksObserved | None:
    message = await stream.bus.get_last(NETWORKS)
    event = message.event if message else None
    assert event is None or isinstance(event, ClusterNetworksObserved)
    return event


async def told(stream: FlowActor, networks: MachineConfigNetworks) -> ClusterNetworksObserved:
    """What the stream says, as soon as it is that."""
    found: list[ClusterNetworksObserved] = []

    async def is_said() -> bool:
        event = await said(stream)
        if event is None or (event.pod_cidrs, event.service_cidrs) != (
            networks.pod_cidrs,
            networks.service_cidrs,
        ):
            return False
        found.append(event)
        return True

    await wait_until(is_said)
    return found[-1]


async def test_who_neither_allocates_nor_approves_asks_no_control_plane_and_no_machine_for_networks(
    nats_server, stream, talos
):
    neither = msgspec.structs.replace(CALM, controllers=("cloud-node",))
    async with run_metadata(nats_server.url, talos, neither):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
    assert (event.facts.inventory, event.facts.gateways) == (None, ())
    assert (talos.questions, talos.asked) == (0, [])
    assert await said(stream) is None


async def test_where_certificates_are_approved_networks_are_told_and_no_machine_is_asked_for_gateways(
    nats_server, stream, talos
):
    async with run_metadata(nats_server.url, talos):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        networks = await told(stream, NETWORK)
    assert (event.facts.inventory, talos.asked) == (None, [])
    assert networks.service_cidrs == NETWORK.service_cidrs


async def test_where_pod_cidrs_are_allocated_networks_and_gateways_are_told(nats_server, stream, talos):
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        networks = await told(stream, NETWORK)
    assert event.facts.gateways == ("10.0.0.1",)
    assert networks.stream_id == stream.stream_id


@pytest.mark.parametrize(
    ("settings", "asked"), [(CALM, []), (ALLOCATING, [frozenset({"Processor", "RouteStatus"})])]
)
async def test_what_pools_select_by_is_asked_for_where_pod_cidrs_are_allocated_and_only_there(
    nats_server, stream, talos, settings, asked
):
    config = parse_cloud_config(POOLS, "f")
    settings = msgspec.structs.replace(settings, cloud_config=config)
    async with run_metadata(nats_server.url, talos, settings):
        await stream.publish_node(make_node())
        await stream.wait_for_enriched("web-1", NodeEnriched)
    assert [parts for _, parts in talos.asked][:1] == asked


async def test_a_machine_that_does_not_tell_its_routes_is_told_from_one_without_gateways(
    nats_server, stream, talos
):
    talos.part_faults["RouteStatus"] = MachineFault(kind="permission", step="RouteStatus", message="no")
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
    assert event.facts.inventory == Inventory(gateways=None)
    assert event.facts.gateways == ()


async def test_networks_are_told_again_and_a_change_replaces_them(nats_server, stream, talos):
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        first = await told(stream, NETWORK)

        async def is_repeated() -> bool:
            event = await said(stream)
            return event is not None and event.observed_at > first.observed_at

        await wait_until(is_repeated)
        talos.networks = OTHER
        changed = await told(stream, OTHER)
        assert changed.observed_at > first.observed_at


async def test_a_failure_takes_nothing_back_and_before_the_first_answer_nothing_is_said(
    nats_server, stream, talos
):
    talos.networks = NOBODY
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        await wait_until(lambda: talos.questions >= 2)
        assert await said(stream) is None
        talos.networks = NETWORK
        first = await told(stream, NETWORK)
        talos.networks = NOBODY
        asked = talos.questions
        await wait_until(lambda: talos.questions >= asked + 2)
        stands = await told(stream, NETWORK)
        assert stands.observed_at >= first.observed_at


async def test_a_stream_that_lost_everything_is_told_what_is_known_though_talos_is_down(
    nats_server, stream, talos
):
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        first = await told(stream, NETWORK)
        talos.networks = NOBODY
        asked = talos.questions
        await wait_until(lambda: talos.questions >= asked + 1)
        await nats_server.wipe()

        async def is_provisioned_anew() -> bool:
            try:
                await stream.provision()
            except BusError:
                return False
            return bool(stream.stream_id != first.stream_id)

        await wait_until(is_provisioned_anew)

        async def is_said_to_the_new_one() -> bool:
            event = await said(stream)  # at first, perhaps, a word that was still meant for the old one
            return event is not None and event.stream_id == stream.stream_id

        await wait_until(is_said_to_the_new_one)
        again = await told(stream, NETWORK)
    assert again.stream_id == stream.stream_id


async def test_an_answer_of_a_clock_behind_replaces_what_a_predecessor_with_a_clock_ahead_said(
    nats_server, stream, talos
):
    ahead = NOW.replace(year=NOW.year + 50)
    old = make_cluster_networks(stream_id=stream.stream_id, pod_cidrs=("10.9.0.0/16",), observed_at=ahead)
    await stream.bus.publish(old)
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        event = await told(stream, NETWORK)
    assert event.observed_at > ahead
