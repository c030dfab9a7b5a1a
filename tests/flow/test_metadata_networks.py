"""metadata publishes networks and gateways only where ipam or csr needs them."""

import msgspec
import pytest

from libs.common.bus.protocol import BusError
from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.events import ClusterNetworksObserved, NodeEnriched
from libs.common.contract.machine import Inventory, MachineFault
from libs.common.contract.subjects import NETWORKS
from libs.talos.api import MachineConfigNetworks
from tests.builders import make_facts, make_node
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
REFUSED = MachineFault(kind="refused", step="ControllerManagerConfig", message="connection refused")


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
    """Return the networks in the stream once they match."""
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


async def test_without_ipam_and_csr_no_networks_are_queried(nats_server, stream, talos):
    neither = msgspec.structs.replace(CALM, controllers=("cloud-node",))
    async with run_metadata(nats_server.url, talos, neither):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
    assert (event.facts.inventory, event.facts.gateways) == (None, ())
    assert (talos.questions, talos.asked) == (0, [])
    assert await said(stream) is None


async def test_with_csr_alone_networks_are_published_and_gateways_are_not_queried(nats_server, stream, talos):
    async with run_metadata(nats_server.url, talos):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        networks = await told(stream, NETWORK)
    assert (event.facts.inventory, talos.asked) == (None, [])
    assert networks.service_cidrs == NETWORK.service_cidrs


async def test_with_ipam_networks_and_gateways_are_published(nats_server, stream, talos):
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        networks = await told(stream, NETWORK)
    assert event.facts.gateways == ("10.0.0.1",)
    assert networks.stream_id == stream.stream_id


@pytest.mark.parametrize(
    ("settings", "asked"), [(CALM, []), (ALLOCATING, [frozenset({"Processor", "RouteStatus"})])]
)
async def test_the_parts_that_pools_select_by_are_queried_only_with_ipam(
    nats_server, stream, talos, settings, asked
):
    config = parse_cloud_config(POOLS, "f")
    settings = msgspec.structs.replace(settings, cloud_config=config)
    async with run_metadata(nats_server.url, talos, settings):
        await stream.publish_node(make_node())
        await stream.wait_for_enriched("web-1", NodeEnriched)
    assert [parts for _, parts in talos.asked][:1] == asked


async def test_a_machine_with_unknown_routes_differs_from_one_without_gateways(nats_server, stream, talos):
    talos.part_faults["RouteStatus"] = MachineFault(kind="permission", step="RouteStatus", message="no")
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
    assert event.facts.inventory == Inventory(gateways=None)
    assert event.facts.gateways == ()


async def test_networks_are_republished_and_a_change_replaces_them(nats_server, stream, talos):
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        first = await told(stream, NETWORK)

        async def is_repeated() -> bool:
            event = await said(stream)
            return event is not None and event.observed_at > first.observed_at

        await wait_until(is_repeated)
        talos.networks = OTHER
        changed = await told(stream, OTHER)
        assert changed.observed_at > first.observed_at


async def test_a_failed_poll_of_networks_changes_nothing(nats_server, stream, talos):
    talos.networks = REFUSED
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        await wait_until(lambda: talos.questions >= 2)
        assert await said(stream) is None
        talos.networks = NETWORK
        first = await told(stream, NETWORK)
        talos.networks = REFUSED
        asked = talos.questions
        await wait_until(lambda: talos.questions >= asked + 2)
        stands = await told(stream, NETWORK)
        assert stands.observed_at >= first.observed_at


async def test_known_networks_are_published_to_a_new_stream_while_talos_is_down(nats_server, stream, talos):
    async with run_metadata(nats_server.url, talos, ALLOCATING):
        first = await told(stream, NETWORK)
        talos.networks = REFUSED
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
            event = await said(stream)  # the first one may have been meant for the old stream
            return event is not None and event.stream_id == stream.stream_id

        await wait_until(is_said_to_the_new_one)
        again = await told(stream, NETWORK)
    assert again.stream_id == stream.stream_id
