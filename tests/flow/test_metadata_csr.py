"""Certificate requests through the metadata service, with scripted machines and a scripted watcher."""

import asyncio
import contextlib
import math
import time

import msgspec
import pytest

from libs.common.bus.protocol import StreamPosition
from libs.common.contract.events import CsrEnriched, EnrichedCsrGone, NodeEnriched
from libs.common.contract.machine import AddressStatus
from libs.common.contract.node import NodeAddress
from libs.common.contract.signing_request import SigningRequestCondition
from libs.common.contract.subjects import ENRICHED_CSR, ENRICHED_NODE, OBSERVED_CSR, OBSERVED_NODE, SNAPSHOT
from libs.testbed.child_process import HANG_SECONDS
from services.metadata import on_csr_observed
from services.metadata.core.contested_addresses import MAX_DIALLED
from services.metadata.machines.dial_back import MAX_CONCURRENT_DIALS, DialBackCache
from services.metadata.machines.query_machine import QuerySlots
from services.metadata.settings import MetadataSettings
from tests.builders import make_facts, make_node, make_request
from tests.bus_actors import wait_for_value, wait_until
from tests.metadata_actors import CALM, ScriptedTalos
from tests.metadata_csr_flow import UNWATCHED, MetadataCsrFlow, has_facts, has_fault, make_request_pem


def without_facts(event: CsrEnriched) -> bool:
    return event.facts is None


WRITTEN = NodeAddress(type="InternalIP", address="10.9.0.5")
APPROVED = SigningRequestCondition(type="Approved")


@pytest.fixture
async def flow() -> MetadataCsrFlow:
    flow = MetadataCsrFlow()
    await flow.provision()
    return flow


@pytest.fixture
def talos() -> ScriptedTalos:
    return ScriptedTalos(make_facts())


async def test_a_request_is_published_with_the_facts_of_the_first_poll(flow, talos):
    async with flow.metadata(talos):
        await flow.publish_snapshot()
        await flow.publish_node(make_node())
        sequence = await flow.file_request(make_request())
        event = await flow.wait_for_enriched()
    assert event.facts is not None
    assert event.facts.addresses == make_facts().addresses
    assert event.answering_addresses == ("10.0.0.5",)
    assert (event.node_uid, event.observed_sequence) == ("uid-1", sequence)
    assert (event.fault, event.without_talos, event.request) == (None, False, make_request())
    assert (talos.looks, flow.count_enriched()) == (["10.0.0.5"], 1)


async def test_in_an_outage_the_fault_is_published_and_the_facts_within_a_second_of_the_poll(flow, talos):
    talos.fail_queries("10.0.0.5", "timeout")
    async with flow.metadata(talos):
        await flow.publish_node(make_node())
        await flow.file_request(make_request())
        event = await flow.wait_for_enriched(has_fault)
        assert event.fault is not None
        assert (event.fault.kind, event.facts, event.node_uid) == ("timeout", None, "uid-1")
        await wait_until(lambda: len(talos.looks) >= 3)
        assert flow.count_enriched() == 1, "the same fault is published once"
        talos.clear_fault("10.0.0.5")
        looks = len(talos.looks)
        await wait_until(lambda: len(talos.looks) > looks)
        await flow.wait_for_enriched(has_facts)
        assert len(talos.looks) == looks + 1, "that look brought them, not a later one"


async def test_only_the_newest_request_of_a_node_carries_facts_and_then_the_next_one(flow, talos):
    requests = [make_request(f"csr-{i}", uid=f"csr-{i}", resource_version=f"{100 + i}") for i in range(16)]
    async with flow.metadata(talos):
        await flow.publish_node(make_node())
        for request in requests:
            await flow.file_request(request)
            await flow.wait_for_enriched(has_facts, request.name)
        for older in requests[:-1]:
            event = await flow.wait_for_enriched(without_facts, older.name)
            assert (event.fault, event.answering_addresses, event.request) == (None, (), older)
        held = [await flow.get_enriched(request.name) for request in requests]
        assert [event.facts is not None for event in held if event] == [False] * 15 + [True]
        await flow.delete_request(requests[-1])
        event = await flow.wait_for_enriched(has_facts, "csr-14")
        assert event.facts is not None, "the next one is the newest now"
        await flow.file_request(
            make_request("csr-14", uid="csr-14", resource_version="200", conditions=(APPROVED,))
        )
        await flow.wait_for_enriched(has_facts, "csr-13")
        await flow.wait_for_enriched(without_facts, "csr-12")


async def test_after_a_restart_only_the_newest_request_carries_facts(flow, talos):
    for i in range(3):
        await flow.file_request(make_request(f"csr-{i}", uid=f"csr-{i}", resource_version=f"{100 + i}"))
    await flow.publish_node(make_node())
    async with flow.metadata(talos):
        await flow.wait_for_enriched(has_facts, "csr-2")
        for name in ("csr-0", "csr-1"):
            await flow.wait_for_enriched(without_facts, name)
            assert flow.count_enriched(name) == 1


async def test_a_change_on_the_machine_is_published_for_every_request(flow, talos):
    async with flow.metadata(talos, CALM, in_real_time=True):
        await flow.publish_node(make_node())
        for i in range(3):
            await flow.file_request(make_request(f"csr-{i}", uid=f"csr-{i}"))
            await flow.wait_for_enriched(has_facts, f"csr-{i}")
        await wait_until(lambda: talos.watching["10.0.0.5"] == 1)
        looks = len(talos.looks)
        talos.put(make_facts(zone="b"))
        for i in range(3):
            await flow.wait_for_enriched(
                lambda event: event.facts and event.facts.platform.zone == "b", f"csr-{i}"
            )
        assert len(talos.looks) == looks + 1


async def test_a_decided_request_is_forgotten_and_its_end_is_published(flow, talos):
    async with flow.metadata(talos) as service:
        await flow.publish_node(make_node())
        await flow.file_request(make_request())
        await flow.wait_for_enriched(has_facts)
        await flow.file_request(make_request(conditions=(APPROVED,), resource_version="101"))
        await wait_until(lambda: not service._requests)
        assert flow.count_enriched() == 1
        assert not service._stream_cache.list_under(OBSERVED_CSR)
        await flow.delete_request(make_request())
        last = await wait_for_value(
            lambda: flow.last("csr-1"), lambda message: isinstance(message.event, EnrichedCsrGone)
        )
        assert last.event.uid == "csr-uid-1"
        await wait_until(lambda: not service._requests)


async def test_the_end_of_an_unpublished_request_is_not_published(flow, talos):
    async with flow.metadata(talos) as service:
        await flow.publish_node(make_node())
        await flow.file_request(
            make_request("other", uid="o", signer="kubernetes.io/kube-apiserver-client-kubelet")
        )
        await flow.file_request(make_request("done", uid="d", conditions=(APPROVED,)))
        await flow.delete_request(make_request("done", uid="d"))
        await flow.file_request(make_request())
        await flow.wait_for_enriched(has_facts)
        assert (flow.count_enriched("other"), flow.count_enriched("done")) == (0, 0)
        assert set(service._requests) == {"csr-1"}


async def test_no_request_is_kept_twice(flow, talos):
    async with flow.metadata(talos) as service:
        await flow.publish_node(make_node())
        await flow.file_request(make_request())
        await flow.wait_for_enriched(has_facts)
        await flow.file_request(make_request("csr-2", uid="u2"))
        await flow.wait_for_enriched(has_facts, "csr-2")  # the echo of the first message has arrived by then
        known = service._requests["csr-1"].state
        assert service._stream_cache.get(f"{OBSERVED_CSR}.csr-1").event is known.observation.event
        assert known.publication.event.request is known.observation.event.request
        assert known.publication.event.facts is service._nodes["web-1"].state.facts
        await wait_until(lambda: not service._stream_cache.list_under(ENRICHED_CSR))
        assert not service._stream_cache.list_under(ENRICHED_NODE)


async def test_a_restart_publishes_only_what_has_changed(flow, talos):
    async with flow.metadata(talos):
        await flow.publish_snapshot()
        await flow.publish_node(make_node())
        for name in ("same", "changed"):
            await flow.file_request(make_request(name, uid=name, node="web-1" if name == "same" else "web-2"))
        await flow.publish_node(make_node("web-2", uid="uid-2", ip="10.0.0.6"))
        await flow.wait_for_enriched(has_facts, "same")
        await flow.wait_for_enriched(has_fault, "changed")
    flow.subjects.clear()
    talos.put(make_facts(node_name="web-2", node_ip="10.0.0.6"))
    await flow.file_request(make_request("new", uid="new"))
    async with flow.metadata(talos, seed=2) as service:
        await flow.wait_for_enriched(has_facts, "changed")
        await flow.wait_for_enriched(has_facts, "new")
        await wait_until(lambda: service._nodes["web-1"].state.facts is not None)
        assert (flow.count_enriched("same"), flow.count_enriched("changed"), flow.count_enriched("new")) == (
            0,
            1,
            1,
        )
        assert not service._stream_cache.list_under(ENRICHED_CSR)


async def test_the_end_of_a_request_during_a_downtime_is_published_at_the_next_start(flow, talos):
    async with flow.metadata(talos):
        await flow.publish_node(make_node())
        for name in ("gone", "decided"):
            await flow.file_request(make_request(name, uid=name))
            await flow.wait_for_enriched(has_facts, name)
    await flow.delete_request(make_request("gone", uid="gone"))
    await flow.file_request(
        make_request("decided", uid="decided", conditions=(APPROVED,), resource_version="101")
    )
    flow.subjects.clear()
    async with flow.metadata(talos, seed=2) as service:
        await wait_until(lambda: flow.count_enriched("gone") == 1)
        await wait_until(lambda: not service._requests)
        assert flow.count_enriched("decided") == 0


async def replayed(flow, table, *messages):
    """Replay the stream after a lost connection, with these messages only: their subjects, or older ones."""
    table.mark_disconnected("the server went away")
    last = flow.server.stream.last_sequence
    table.start_replay(StreamPosition(stream_id=flow.stream_id, last_sequence=last))
    for each in messages:
        table.apply(await flow.bus.get_last(each) if isinstance(each, str) else each)
    table.finish_replay()


async def test_a_message_whose_successor_the_server_lost_is_published_again(flow, talos):
    async with flow.metadata(talos) as service:
        await flow.publish_snapshot()
        await flow.publish_node(make_node())
        await flow.file_request(make_request())
        await flow.wait_for_enriched(has_facts)
        former = await flow.last("csr-1")
        await flow.file_request(make_request(resource_version="101", groups=("system:nodes",)))
        await wait_until(lambda: flow.count_enriched() == 2)
        await wait_until(lambda: service._requests["csr-1"].state.observation.is_answered)
        observed = (f"{OBSERVED_NODE}.web-1", f"{OBSERVED_CSR}.csr-1")
        await replayed(flow, service._stream_cache, SNAPSHOT, *observed, former)
        await wait_until(lambda: flow.count_enriched() == 3)


async def test_a_node_with_a_reused_sequence_is_received(flow, talos):
    observed, enriched = f"{OBSERVED_NODE}.web-1", f"{ENRICHED_NODE}.web-1"

    async def get_enriched() -> NodeEnriched | None:
        message = await flow.bus.get_last(enriched)
        return message.event if message is not None and isinstance(message.event, NodeEnriched) else None

    async with flow.metadata(talos) as service:
        await flow.publish_snapshot()
        last = [await flow.publish_node(make_node()) for _ in range(5)][-1]
        await flow.wait_for_node()
        node = service._nodes["web-1"]
        await wait_until(lambda: node.state.observation.sequence == last)
        flow.server.stream._remove(observed)
        flow.server.stream._remove(enriched)
        flow.server.stream.last_sequence = 3
        await replayed(flow, service._stream_cache)  # the snapshot is lost, too
        await flow.publish_node(make_node(labels={"new": "true"}))
        event = await wait_for_value(
            get_enriched, lambda event: "new" in event.node.labels, "the Node is enriched again"
        )
        assert event.observed_sequence == 4


async def test_a_pending_request_is_republished_whatever_it_waits_for(flow, talos):
    """csr ignores old messages, and these requests may wait for hours."""
    settings = msgspec.structs.replace(UNWATCHED, republish_interval_seconds=1.0)
    talos.fail_queries("10.0.0.6", "timeout")
    async with flow.metadata(talos, settings, in_real_time=True):
        await flow.publish_node(make_node("web-2", uid="uid-2", ip="10.0.0.6"))
        await flow.file_request(make_request("csr-silent", uid="u2", node="web-2"))
        await flow.file_request(make_request("csr-early", uid="u3", node="web-3"))
        await wait_until(lambda: flow.count_enriched("csr-silent") >= 3, "it is published again")
        await wait_until(lambda: flow.count_enriched("csr-early") >= 3, "it is published again")
    without = msgspec.structs.replace(settings, without_talos=True)
    other = MetadataCsrFlow()
    await other.provision()
    async with other.metadata(talos, without, in_real_time=True):
        await other.file_request(make_request())
        await wait_until(lambda: other.count_enriched() >= 3, "it is published again")


async def test_without_talos_every_request_is_published_at_once_without_a_poll(flow):
    settings = MetadataSettings(without_talos=True)
    async with flow.metadata(None, settings) as service:
        await flow.publish_snapshot()
        await flow.publish_node(make_node())
        await flow.file_request(make_request())
        event = await flow.wait_for_enriched()
        assert (event.without_talos, event.facts, event.fault, event.answering_addresses) == (
            True,
            None,
            None,
            (),
        )
        assert service.problems() == ()
        assert await flow.bus.get_last(f"{ENRICHED_NODE}.web-1") is None
        assert service._nodes == {}


async def contest(flow, talos):
    """web-1 requests and attests 10.9.0.5 too, which web-2 announces."""
    statuses = tuple(AddressStatus(address=f"{each}/24", link="eth0") for each in ("10.0.0.5", "10.9.0.5"))
    talos.put(make_facts(addresses=statuses))
    await flow.publish_node(make_node("web-2", uid="uid-2", ip="10.0.0.6", addresses=(WRITTEN,)))
    await flow.publish_node(make_node())
    await flow.wait_for_node()
    await flow.wait_for_node("web-2")


async def test_a_contested_address_is_published_only_once_it_was_dialled(flow, talos):
    talos.held["10.9.0.5"] = asyncio.Event()
    talos.put(make_facts(node_ip="10.9.0.5"))
    async with flow.metadata(talos):
        await contest(flow, talos)
        await flow.file_request(make_request(pem=make_request_pem("10.0.0.5", "10.9.0.5")))
        assert (await flow.wait_for_enriched(has_facts)).answering_addresses == ("10.0.0.5",)
        await wait_until(lambda: talos.looking["10.9.0.5"] == 1)
        assert flow.count_enriched() == 1
        talos.held["10.9.0.5"].set()
        await flow.wait_for_enriched(lambda event: event.answering_addresses == ("10.0.0.5", "10.9.0.5"))
        await flow.file_request(make_request("csr-2", uid="u2", pem=make_request_pem("10.0.0.5", "10.9.0.5")))
        await flow.wait_for_enriched(lambda event: len(event.answering_addresses) == 2, "csr-2")
    assert talos.looks.count("10.9.0.5") == 1, "what was answered is kept for a minute"


async def test_an_address_that_another_node_claims_later_is_dialled(flow, talos, monkeypatch):
    monkeypatch.setattr(on_csr_observed, "CLAIM_CHECK_SECONDS", 0.05)
    statuses = tuple(AddressStatus(address=f"{each}/24", link="eth0") for each in ("10.0.0.5", "10.9.0.5"))
    talos.put(make_facts(addresses=statuses))
    talos.put(make_facts(node_ip="10.9.0.5"))
    async with flow.metadata(talos) as service:
        await flow.publish_node(make_node())
        await flow.file_request(make_request(pem=make_request_pem("10.0.0.5", "10.9.0.5")))
        await flow.wait_for_enriched(has_facts)
        request = service._requests["csr-1"]
        await wait_until(lambda: request.state.next_dial_at == math.inf)
        assert "10.9.0.5" not in talos.looks
        await flow.publish_node(make_node("web-2", uid="uid-2", ip="10.0.0.6", addresses=(WRITTEN,)))
        await flow.wait_for_enriched(lambda event: event.answering_addresses == ("10.0.0.5", "10.9.0.5"))


async def test_a_hanging_dial_delays_neither_other_requests_nor_the_end(flow, talos):
    talos.held["10.9.0.5"] = asyncio.Event()
    async with flow.metadata(talos) as service:
        await contest(flow, talos)
        for i in range(3):
            await flow.file_request(make_request(f"csr-{i}", uid=f"u{i}", pem=make_request_pem("10.9.0.5")))
            await flow.wait_for_enriched(has_facts, f"csr-{i}")
        await wait_until(lambda: talos.looking["10.9.0.5"] == 1)
        await flow.file_request(
            make_request("csr-0", uid="u0", conditions=(APPROVED,), resource_version="101")
        )
        await wait_until(lambda: "csr-0" not in service._requests)
    assert talos.most_at_once["10.9.0.5"] == 1
    assert talos.looking["10.9.0.5"] == 0


async def test_few_contested_addresses_are_dialled_at_once_and_each_once_a_minute(talos):
    now = 1000.0
    dial_backs = DialBackCache(talos, QuerySlots(64), deadline_seconds=5.0, monotonic=lambda: now)
    askers = tuple(f"web-{n}" for n in range(1, 2 * MAX_CONCURRENT_DIALS // MAX_DIALLED + 1))
    addresses = {n: tuple(f"10.9.{n[-1]}.{i}" for i in range(1, MAX_DIALLED + 1)) for n in askers}
    gate = asyncio.Event()
    for name, of_node in addresses.items():
        for address in of_node:
            talos.put(make_facts(node_name=name, node_ip=address))
            talos.held[address] = gate
    answering = [
        asyncio.create_task(dial_backs.filter_answering(n, addresses[n])) for n in askers for _ in range(2)
    ]
    await wait_until(lambda: talos.looking.total() == MAX_CONCURRENT_DIALS)
    gate.set()
    assert await asyncio.gather(*answering) == [frozenset(addresses[n]) for n in askers for _ in range(2)]
    assert len(talos.looks) == 2 * MAX_CONCURRENT_DIALS
    now += 59.0
    assert await dial_backs.filter_answering("web-2", addresses["web-1"]) == frozenset()
    assert len(talos.looks) == 2 * MAX_CONCURRENT_DIALS
    now += 2.0
    talos.fail_queries(addresses["web-1"][0])
    assert await dial_backs.filter_answering("web-1", addresses["web-1"]) == frozenset(addresses["web-1"][1:])
    await dial_backs.close()


async def test_a_node_that_requests_many_contested_addresses_delays_no_other_node(talos):
    # its machine attests and another conspirator's Node claims whatever hangs; each new request causes a dial
    dial_backs = DialBackCache(
        talos, QuerySlots(64), deadline_seconds=10 * HANG_SECONDS, monotonic=time.monotonic
    )
    never = asyncio.Event()
    for n in range(50):
        addresses = tuple(f"10.66.{n}.{i}" for i in range(MAX_DIALLED))
        talos.held |= dict.fromkeys(addresses, never)
        with contextlib.suppress(TimeoutError):  # superseded, decided or gone
            async with asyncio.timeout(0.01):
                await dial_backs.filter_answering("noisy", addresses)
    talos.put(make_facts(node_name="web-2", node_ip="10.9.0.6"))
    async with asyncio.timeout(HANG_SECONDS):
        assert await dial_backs.filter_answering("web-2", ("10.9.0.6",)) == {"10.9.0.6"}
    assert talos.looking.total() == MAX_DIALLED
    assert len(dial_backs._answers) == MAX_DIALLED + 1, "nor does what it asks for pile up"
    await dial_backs.close()
    assert talos.looking.total() == 0


async def test_two_hundred_requests_after_as_many_joins_cost_no_poll_and_one_message_each(flow, talos):
    names = [f"web-{i}" for i in range(200)]
    for i, name in enumerate(names):
        talos.put(make_facts(node_name=name, node_ip=f"10.1.0.{i + 1}"))
    async with flow.metadata(talos):
        await flow.publish_snapshot()
        for i, name in enumerate(names):
            await flow.publish_node(make_node(name, uid=name, ip=f"10.1.0.{i + 1}"))
        for name in names:
            await flow.wait_for_node(name)
        for name in names:
            await flow.file_request(make_request(name, uid=f"csr-{name}", node=name))
        for name in names:
            await flow.wait_for_enriched(has_facts, name)
        assert len(talos.looks) == 200
        assert all(flow.count_enriched(name) == 1 for name in names)
