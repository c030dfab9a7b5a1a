"""metadata publishes networks and gateways only where ipam or csr needs them."""

import msgspec
import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.events import ClusterNetworksObserved, NodeEnriched
from libs.common.contract.machine import Inventory, MachineFault
from libs.common.contract.subjects import NETWORKS
from libs.talos.api import MachineConfigNetworks
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_for_value, wait_until
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
    machines = ScriptedTalos(make_facts())
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
    wanted = (networks.pod_cidrs, networks.service_cidrs)
    return await wait_for_value(
        lambda: said(stream), lambda event: (event.pod_cidrs, event.service_cidrs) == wanted
    )


NEITHER = msgspec.structs.replace(CALM, controllers=("cloud-node",))
PARTS = frozenset({"RouteStatus"})


# by the controllers that are selected: settings, file, networks, gateways, requested parts
NEEDS = {
    "neither": (NEITHER, "{}", None, (), []),
    "csr": (CALM, "{}", NETWORK, (), []),
    "csr with pools": (CALM, POOLS, NETWORK, (), []),
    "ipam": (ALLOCATING, "{}", NETWORK, ("10.0.0.1",), [PARTS]),
    "ipam with pools": (ALLOCATING, POOLS, NETWORK, ("10.0.0.1",), [PARTS | {"Processor"}]),
}


@pytest.mark.parametrize("need", NEEDS)
async def test_networks_gateways_and_the_parts_of_pools_are_queried_where_they_are_needed(
    stream, talos, need
):
    settings, config, networks, gateways, asked = NEEDS[need]
    settings = msgspec.structs.replace(settings, cloud_config=parse_cloud_config(config, "f"))
    async with run_metadata(stream.url, talos, settings):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        if networks is not None:
            assert (await told(stream, networks)).stream_id == stream.stream_id
    assert event.facts.gateways == gateways
    assert [parts for _, parts in talos.asked][:1] == asked
    assert (talos.questions == 0) == (networks is None)
    assert (await said(stream) is None) == (networks is None)


async def test_networks_are_republished_and_a_change_replaces_them(stream, talos):
    async with run_metadata(stream.url, talos, ALLOCATING):
        first = await told(stream, NETWORK)
        await wait_for_value(lambda: said(stream), lambda event: event.observed_at > first.observed_at)
        talos.networks = OTHER
        changed = await told(stream, OTHER)
        assert changed.observed_at > first.observed_at


async def test_a_failed_poll_of_networks_changes_nothing(stream, talos):
    talos.networks = REFUSED
    async with run_metadata(stream.url, talos, ALLOCATING):
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
    async with run_metadata(stream.url, talos, ALLOCATING):
        await told(stream, NETWORK)
        talos.networks = REFUSED
        asked = talos.questions
        await wait_until(lambda: talos.questions >= asked + 1)
        await nats_server.wipe()
        await stream.provision_another()
        # The first one may have been meant for the old stream.
        again = await wait_for_value(lambda: said(stream), lambda event: event.stream_id == stream.stream_id)
    assert (again.pod_cidrs, again.service_cidrs) == (NETWORK.pod_cidrs, NETWORK.service_cidrs)
