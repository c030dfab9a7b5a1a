"""The metadata service on a real nats-server, with scripted machines and a scripted watcher."""

import asyncio
import logging
import time
from datetime import UTC, datetime

import msgspec
import nats
import pytest

from libs.common.bus.protocol import BusError
from libs.common.contract.address_history import FirstShown
from libs.common.contract.events import EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.subjects import ENRICHED_CSR, ENRICHED_NODE, STREAM
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings
from tests.builders import make_csr_observed, make_facts, make_node, make_request, make_unreachable
from tests.bus_actors import wait_for_value, wait_until
from tests.flow_actors import QUICK, FlowActor
from tests.metadata_actors import CALM, ScriptedTalos, run_metadata


@pytest.fixture
def talos() -> ScriptedTalos:
    return ScriptedTalos(make_facts())


def heard(service: MetadataService, name: str) -> int:
    """The sequence of the newest observation of that Node."""
    return service._nodes[name].state.observation.sequence


async def test_a_joining_node_is_enriched_with_the_facts_of_its_machine(stream, talos):
    async with run_metadata(stream.url, talos):
        await stream.publish_snapshot(0)
        sequence = await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
    assert event.observed_sequence == sequence
    assert event.stream_id == stream.stream_id
    assert event.facts.addresses == make_facts().addresses
    assert event.node == make_node()
    assert event.verified_by == "nodename"
    assert talos.closed


async def test_watches_wait_until_no_more_nodes_join(stream, talos):
    late = msgspec.structs.replace(CALM, watches_opened_after_seconds=1.0)
    async with run_metadata(stream.url, talos, late):
        for i in range(8):
            talos.put(make_facts(node_name=f"n-{i}", node_ip=f"10.0.5.{i + 1}"))
            joins = time.monotonic()
            await stream.publish_node(make_node(f"n-{i}", uid=f"n-{i}", ip=f"10.0.5.{i + 1}"))
            await stream.wait_for_enriched(f"n-{i}", NodeEnriched)
        await wait_until(lambda: talos.watching.total() == 8)
        assert time.monotonic() - joins > 1.0
        assert len(talos.looks) == 8, "what a watch begins with is what the look saw"


async def test_a_newer_observation_during_a_poll_gets_its_facts(stream, talos):
    talos.held["10.0.0.5"] = asyncio.Event()
    async with run_metadata(stream.url, talos, MetadataSettings(watched_machines=0)) as service:
        await stream.publish_node(make_node())
        await wait_until(lambda: talos.looking["10.0.0.5"] == 1)
        newest = await stream.publish_node(make_node(labels={"team": "b"}))
        await wait_until(lambda: heard(service, "web-1") == newest)
        talos.held["10.0.0.5"].set()
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.observed_sequence == newest
        assert event.node.labels == {"team": "b"}
        assert (talos.looks, talos.most_at_once["10.0.0.5"]) == (["10.0.0.5"], 1)


async def test_a_machine_that_changes_under_a_watch_reaches_its_node(stream, talos):
    async with run_metadata(stream.url, talos):
        await stream.publish_node(make_node())
        first = await stream.wait_for_enriched("web-1", NodeEnriched)
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
        for i in range(5):
            talos.put(make_facts(addresses=(AddressStatus(address=f"10.0.0.{i + 10}/24", link="eth0"),)))
        event = await stream.wait_for_enriched(
            "web-1", NodeEnriched, lambda event: event.facts.addresses[0].address == "10.0.0.14/24"
        )
        assert event.observed_sequence == first.observed_sequence
        assert len(talos.looks) == 2, "a flock of changes is one look"


async def test_an_ended_watch_is_reopened_and_missed_changes_are_found(stream, talos):
    async with run_metadata(stream.url, talos):
        await stream.publish_node(make_node())
        await stream.wait_for_enriched("web-1", NodeEnriched)
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
        talos.machines["10.0.0.5"] = make_facts(zone="b")  # while no watch is open
        talos.cut_watch("10.0.0.5")
        await stream.wait_for_enriched("web-1", NodeEnriched, lambda event: event.facts.platform.zone == "b")
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)


async def test_the_last_known_facts_survive_a_restart(stream, talos):
    async with run_metadata(stream.url, talos):
        await stream.publish_node(make_node())
        await stream.publish_snapshot()
        before = await stream.wait_for_enriched("web-1", NodeEnriched)
    talos.fail_queries("10.0.0.5", "timeout")
    async with run_metadata(stream.url, talos, seed=2):
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
    assert event.last_known == before.facts


async def test_everything_that_a_new_stream_has_is_published_to_it(nats_server, stream, talos):
    async with run_metadata(stream.url, talos) as service:
        talos.put(make_facts(node_name="web-2", node_ip="10.0.0.6"))
        await stream.publish_node(make_node("web-2", uid="uid-2", ip="10.0.0.6"))
        await stream.wait_for_enriched("web-2", NodeEnriched)
        await stream.publish_snapshot()
        await wait_until(lambda: service._stream_cache.is_complete)
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.address_history.since == FirstShown(0, None), "the Node is new"
        await stream.bus.publish(make_csr_observed(make_request(), stream_id=stream.stream_id))
        await wait_for_value(lambda: stream.bus.get_last(f"{ENRICHED_CSR}.csr-1"))
        await nats_server.wipe()
        await stream.provision_another()
        for _ in range(20):  # so that the sequences are not lower than the former ones
            await stream.publish_leading()
        sequence = await stream.publish_node(make_node())
        await stream.bus.publish(make_csr_observed(make_request(), stream_id=stream.stream_id))
        await stream.publish_snapshot()
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        of_csr = await wait_for_value(lambda: stream.bus.get_last(f"{ENRICHED_CSR}.csr-1"))
        assert of_csr.event.stream_id == stream.stream_id
        await wait_until(lambda: set(service._nodes) == {"web-1"})
        assert await stream.get_enriched("web-2") is None
    assert (event.stream_id, event.observed_sequence) == (stream.stream_id, sequence)
    assert event.address_history.since == FirstShown(0, 0), "a new stream does not know who was first"


@pytest.mark.parametrize("is_polling", [False, True], ids=["between polls", "during a poll"])
async def test_a_message_that_nats_has_lost_is_published_again_though_the_node_is_still_there(
    nats_server, stream, talos, is_polling: bool
):
    async with run_metadata(stream.url, talos) as service:
        await stream.publish_node(make_node())
        await stream.publish_snapshot()
        before = await stream.wait_for_enriched("web-1", NodeEnriched)
        if is_polling:
            await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
            talos.held["10.0.0.5"] = asyncio.Event()
            talos.put(make_facts())
            await wait_until(lambda: talos.looking["10.0.0.5"] == 1)
        operator = await nats.connect(nats_server.url)
        await operator.jetstream().delete_msg(STREAM, await stream.get_sequence("web-1"))
        await operator.close()
        assert await stream.get_enriched("web-1") is None
        await nats_server.kill()
        await nats_server.restart()
        if is_polling:
            await wait_until(lambda: service._nodes["web-1"].state.publication.event is None)
            talos.held["10.0.0.5"].set()
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
    assert event.observed_sequence == before.observed_sequence


async def test_nothing_is_lost_while_nats_is_down(nats_server, stream, talos):
    failing_soon = msgspec.structs.replace(QUICK, publish_deadline=3.0)
    async with run_metadata(stream.url, talos, timing=failing_soon) as service:
        await stream.publish_node(make_node())
        await stream.publish_snapshot()
        await stream.wait_for_enriched("web-1", NodeEnriched)
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
        await nats_server.kill()
        looks = len(talos.looks)
        talos.put(make_facts(zone="c"))
        await wait_until(lambda: len(talos.looks) > looks)
        node = service._nodes["web-1"]
        await wait_until(lambda: node.state.publication.failures > 0)
        # As after a long time without NATS: the next try is far away.
        publication = msgspec.structs.replace(node.state.publication, retry_at=time.monotonic() + 3600.0)
        node.state = msgspec.structs.replace(node.state, publication=publication)
        await nats_server.restart()

        async def told():
            try:
                event = await stream.get_enriched("web-1")
            except BusError:
                return False
            return isinstance(event, NodeEnriched) and event.facts.platform.zone == "c"

        await wait_until(told)


async def test_the_end_of_a_node_is_published_and_the_node_forgotten(stream, talos):
    async with run_metadata(stream.url, talos) as service:
        await stream.publish_node(make_node())
        await stream.wait_for_enriched("web-1", NodeEnriched)
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
        sequence = await stream.publish_node_gone(make_node())
        event = await stream.wait_for_enriched("web-1", EnrichedNodeGone)
        assert (event.uid, event.observed_sequence) == ("uid-1", sequence)
        await wait_until(lambda: not service._nodes and talos.watching["10.0.0.5"] == 0)


async def test_a_node_recreated_during_a_poll_is_polled_again(stream, talos, caplog):
    caplog.set_level(logging.INFO, "services.metadata")
    talos.held["10.0.0.5"] = asyncio.Event()
    async with run_metadata(stream.url, talos) as service:
        await stream.publish_node(make_node())
        await wait_until(lambda: len(talos.looks) == 1)
        sequence = await stream.publish_node(make_node(uid="uid-2"))
        await wait_until(lambda: heard(service, "web-1") == sequence)
        created = datetime.now(UTC)
        talos.held["10.0.0.5"].set()
        event = await stream.wait_for_enriched("web-1", NodeEnriched)
        assert event.node.uid == "uid-2"
        assert event.facts.queried_at >= created
    assert "poll discarded" in caplog.text, "otherwise a Node that changes in each poll would be silent"


async def test_a_message_of_another_replica_without_facts_is_corrected(stream, talos):
    async with run_metadata(stream.url, talos):
        await stream.publish_node(make_node())
        mine = await stream.wait_for_enriched("web-1", NodeEnriched)
        fields = {"stream_id": mine.stream_id, "observed_sequence": mine.observed_sequence}
        theirs = await stream.bus.publish(make_unreachable(mine.node, **fields))
        await wait_for_value(lambda: stream.get_sequence("web-1"), lambda sequence: sequence > theirs)
        assert isinstance(await stream.get_enriched("web-1"), NodeEnriched)
        assert len(talos.looks) >= 2


async def test_two_replicas_settle_with_the_current_facts(stream, talos):
    others = ScriptedTalos(make_facts())
    async with run_metadata(stream.url, talos), run_metadata(stream.url, others, seed=2):
        await stream.publish_snapshot(20)
        for i in range(20):
            facts = make_facts(node_name=f"n-{i}", node_ip=f"10.0.2.{i + 1}")
            talos.put(facts)
            others.put(facts)
            await stream.publish_node(make_node(f"n-{i}", uid=f"n-{i}", ip=f"10.0.2.{i + 1}"))
        newest = {}
        for i in range(20):
            node = make_node(f"n-{i}", uid=f"n-{i}", ip=f"10.0.2.{i + 1}", labels={"round": "2"})
            newest[node.name] = await stream.publish_node(node)
        for name, sequence in newest.items():
            await stream.wait_for_enriched(
                name, NodeEnriched, lambda event, s=sequence: event.observed_sequence == s
            )
        await wait_until(lambda: len(talos.looks) >= 20 and len(others.looks) >= 20)
        facts = make_facts(node_name="n-0", node_ip="10.0.2.1", zone="z")
        talos.put(facts)
        others.put(facts)
        await stream.wait_for_enriched("n-0", NodeEnriched, lambda event: event.facts.platform.zone == "z")
        last = (await stream.bus.get_last(f"{ENRICHED_NODE}.n-0")).sequence
    assert last < sum(newest.values()), "no endless to and fro"


async def test_an_outage_of_talos_ends_for_all_within_seconds(stream, talos):
    names = [f"w-{i}" for i in range(40)]
    for i, name in enumerate(names):
        ip = f"10.0.3.{i + 1}"
        talos.put(make_facts(node_name=name, node_ip=ip))
        talos.fail_queries(ip, "no_endpoint", "connect")
    settings = MetadataSettings(watched_machines=0, probe_seconds=0.1)
    async with run_metadata(stream.url, talos, settings) as service:
        for i, name in enumerate(names):
            await stream.publish_node(make_node(name, uid=name, ip=f"10.0.3.{i + 1}"))
        for name in names:
            await stream.wait_for_enriched(name, NodeUnreachable)
        # as after a long outage: the next poll is far away
        for node in service._nodes.values():
            node.state = msgspec.structs.replace(node.state, next_poll_at=time.monotonic() + 3600.0)
        for i in range(len(names)):
            talos.clear_fault(f"10.0.3.{i + 1}")
        for name in names:
            await stream.wait_for_enriched(name, NodeEnriched)


async def test_a_hanging_machine_delays_no_other(stream, talos):
    settings = MetadataSettings(max_concurrent_queries=2, watched_machines=0)
    gate = asyncio.Event()
    async with run_metadata(stream.url, talos, settings):
        for i in range(3):
            talos.held[f"10.0.4.{i + 1}"] = gate
            await stream.publish_node(make_node(f"hung-{i}", uid=f"hung-{i}", ip=f"10.0.4.{i + 1}"))
        await stream.publish_node(make_node())
        await stream.wait_for_enriched("web-1", NodeEnriched)
        gate.set()


async def test_metadata_is_not_ready_while_it_cannot_query_talos(stream, talos):
    talos.trouble = "talosconfig: field crt: expired"
    async with run_metadata(stream.url, talos) as service:
        await stream.publish_snapshot(0)
        await wait_until(
            lambda: service.problems() == ("cannot query Talos: talosconfig: field crt: expired",)
        )
        talos.trouble = ""
        assert service.problems() == ()


async def test_an_unexpected_error_in_a_poll_is_a_fault_and_the_node_is_not_lost(stream, talos):
    class Defective(ScriptedTalos):
        async def fetch_facts(
            self, node_ip: str, *, deadline_seconds: float, with_system: bool = True
        ) -> MachineFacts:
            if not self.trouble:
                return await super().fetch_facts(
                    node_ip, deadline_seconds=deadline_seconds, with_system=with_system
                )
            raise ZeroDivisionError(self.trouble)

    broken = Defective(make_facts())
    broken.trouble = "a defect"
    async with run_metadata(stream.url, broken):
        await stream.publish_node(make_node())
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
        assert (event.fault.kind, event.fault.message) == (
            "internal",
            "ZeroDivisionError: a defect",
        )
        broken.trouble = ""
        await stream.wait_for_enriched("web-1", NodeEnriched)


async def test_metadata_waits_for_nats_at_the_start(nats_server, stream, talos):
    await stream.publish_node(make_node())
    await nats_server.kill()
    async with run_metadata(stream.url, talos) as service:
        assert any("not following" in problem for problem in service.problems())
        await nats_server.restart()
        await wait_until(lambda: talos.looks == ["10.0.0.5"])
        await stream.wait_for_enriched("web-1", NodeEnriched)


async def test_metadata_waits_until_the_watcher_creates_the_stream(nats_server, talos):
    async with run_metadata(nats_server.url, talos) as service:
        await wait_until(lambda: any("not following" in problem for problem in service.problems()))
        async with FlowActor.open(nats_server.url) as stream:
            await stream.publish_node(make_node())
            await stream.wait_for_enriched("web-1", NodeEnriched)
            await stream.publish_snapshot()
            await wait_until(lambda: service.problems() == ())
