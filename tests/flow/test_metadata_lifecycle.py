"""What metadata publishes about machines that are gone or shut down, where lifecycle runs."""

import msgspec
import pytest

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import NodeAddress
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.metadata_actors import CALM, ScriptedTalos, run_metadata

WEB_9 = make_node("web-9", uid="uid-9")
UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
LOOKED_AFTER = msgspec.structs.replace(CALM, controllers=("*", "cloud-node-lifecycle"))


@pytest.fixture
def talos() -> ScriptedTalos:
    """web-9 answers at the address of web-1, and discovery lists it."""
    machines = ScriptedTalos(make_facts(node_name="web-9", uuid=UUID))
    machines.members = frozenset({"web-9"})
    return machines


async def join(stream, *others) -> None:
    """Nodes whose own machines answer."""
    for node in others:
        await stream.publish_node(node)
        await stream.wait_for_enriched(node.name, NodeEnriched)


async def test_foreign_machines_are_published_with_each_poll(stream, talos):
    async with run_metadata(stream.url, talos, LOOKED_AFTER):
        await join(stream, WEB_9)
        await stream.publish_node(make_node())
        first = await stream.wait_for_enriched("web-1", NodeUnreachable)
        (one,) = first.foreign_machines
        assert (one.address, one.node_name, one.uuid) == ("10.0.0.5", "web-9", UUID)
        assert first.fault.kind == "wrong_machine"
        later = await stream.wait_for_enriched(
            "web-1", NodeUnreachable, lambda event: event.attempt >= first.attempt + 2
        )
        assert later.foreign_machines[0].queried_at > one.queried_at
        talos.put(make_facts())
        await stream.wait_for_enriched("web-1", NodeEnriched)
        talos.put(make_facts(node_name="web-9", uuid=UUID))
        again = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert again.attempt <= later.attempt, "counted from 1 after a success"


async def test_without_discovery_no_foreign_machine_is_published(stream, talos):
    talos.members = MachineFault(kind="refused", step="Member", message="no control plane")
    async with run_metadata(stream.url, talos, LOOKED_AFTER):
        await join(stream, WEB_9)
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert event.foreign_machines == ()
        assert talos.questions_for_members >= 1


@pytest.mark.parametrize("where", ["its node IP", "a further address", "the first of its two node IPs"])
async def test_a_machine_that_answers_at_another_node_is_not_replaced_though_discovery_lost_it(
    stream, talos, where
):
    """web-1 moved to an address of web-2, and web-9 has its former address."""
    talos.members = frozenset({"web-2", "web-8", "web-9"})
    third = {
        "its node IP": make_node("web-2", uid="uid-2", ip="10.0.0.6"),
        "a further address": make_node(
            "web-2",
            uid="uid-2",
            ip="10.0.0.7",
            addresses=(NodeAddress(type="InternalIP", address="10.0.0.6"),),
        ),
        "the first of its two node IPs": make_node("web-2", uid="uid-2", ip="10.0.0.6,fd00::6"),
    }[where]
    talos.put(make_facts(node_name="web-1", node_ip="10.0.0.6"))
    talos.put(make_facts(node_name="web-8", node_ip="10.0.0.7"))
    talos.put(make_facts(node_name="web-2", node_ip="fd00::6"))
    async with run_metadata(stream.url, talos, LOOKED_AFTER) as service:
        await join(stream, WEB_9)
        await stream.publish_node(third)
        await stream.wait_for_enriched("web-2", NodeEnriched if "first" in where else NodeUnreachable)
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert (event.fault.kind, event.foreign_machines) == ("wrong_machine", ())
        await wait_until(lambda: talos.looks.count("10.0.0.5") >= 4)
        assert service._nodes["web-1"].state.foreign_machines == ()


async def test_without_lifecycle_neither_other_machines_nor_discovery_are_queried(stream, talos):
    async with run_metadata(stream.url, talos, CALM):
        internal = (NodeAddress(type="InternalIP", address="10.1.0.5"),)
        await stream.publish_node(make_node(addresses=internal))
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert event.foreign_machines == ()
        await wait_until(lambda: len(talos.looks) >= 3)
    assert set(talos.looks) == {"10.0.0.5"}
    assert talos.questions_for_members == 0


async def test_the_last_known_facts_have_the_stage_of_a_machine_that_shuts_down(stream, talos):
    talos.put(msgspec.structs.replace(make_facts(), stage="running"))
    async with run_metadata(stream.url, talos, LOOKED_AFTER) as service:
        await stream.publish_node(make_node())
        assert (await stream.wait_for_enriched("web-1", NodeEnriched)).facts.stage == "running"
        await wait_until(lambda: service._nodes["web-1"].state.is_watched)
        talos.put(msgspec.structs.replace(make_facts(), stage="shutting down"))
        await stream.wait_for_enriched(
            "web-1", NodeEnriched, lambda event: event.facts.stage == "shutting down"
        )
        talos.fail_queries("10.0.0.5")
        talos.cut_watch("10.0.0.5")
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert event.fault.kind == "refused"
        assert event.last_known.stage == "shutting down"
        talos.put(msgspec.structs.replace(make_facts(), stage="booting"))
        assert (await stream.wait_for_enriched("web-1", NodeEnriched)).facts.stage == "booting"
