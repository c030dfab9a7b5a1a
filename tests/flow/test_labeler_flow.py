"""The labeler on a real bus and an in-memory API server: the requests that it sends and avoids."""

import asyncio
from typing import Any

import msgspec
import pytest

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.events import DeadLetter
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Taint
from libs.common.contract.subjects import DEAD_LETTERS, ENRICHED_NODE
from libs.common.kube.errors import FenceFailed
from libs.common.observability import metrics
from libs.testbed.nats_server import NatsServer
from tests.builders import UNINITIALIZED, make_facts, make_node
from tests.bus_actors import wait_for_value, wait_until
from tests.clocks import ManualClock
from tests.flow_actors import FlowActor
from tests.labeler_actors import InMemoryNodes, run_labeler

REFUSED = MachineFault(kind="refused", step="connect", endpoint="cp:50000", message="connection refused")


def count_plans() -> float:
    name = "talosccm_transformer_duration_seconds_count"
    return metrics.REGISTRY.get_sample_value(name, {"type": "transformer"}) or 0.0


async def test_a_joining_node_costs_two_plans_two_node_writes_and_one_event_and_no_read(flow: FlowActor):
    """The message that its writes cause costs nothing."""
    kube, facts = InMemoryNodes(make_node()), make_facts(platform="hcloud", provider_id="hcloud://7")
    delays, plans = metrics.TAINT_REMOVAL_DELAY._sum.get(), count_plans()
    clock = ManualClock()
    clock.advance(2.5)
    async with run_labeler(flow.url, kube, clock=clock):
        await flow.enrich(make_node(), facts)
        decided = await flow.wait_for_decision("web-1", "initialized")
        await flow.enrich(kube.node("web-1"), facts)
        await flow.wait_until_handled()
    assert count_plans() == plans + 2
    assert kube.requests == [("patch", "nodes/status"), ("patch", "nodes"), ("create", "events")]
    node = kube.node("web-1")
    assert node.is_initialized
    assert node.spec.provider_id == "hcloud://7"
    [event] = kube.events
    assert (event.reason, event.message, event.type, event.component) == (
        "Synced", "Node synced successfully", "Normal", "cloud-node-controller",
    )  # fmt: skip
    assert decided.uid == "uid-1"
    assert "providerID hcloud://7" in decided.changes
    assert metrics.TAINT_REMOVAL_DELAY._sum.get() - delays == pytest.approx(2.5)


async def test_a_condition_written_a_moment_ago_goes_with_the_writes_that_cure_it(flow: FlowActor):
    kube, clock = InMemoryNodes(make_node()), ManualClock()
    async with run_labeler(flow.url, kube, clock=clock):
        await flow.publish_unreachable(make_node(), REFUSED)
        await flow.wait_for_decision("web-1", "blocked")

        async def is_said() -> bool:
            clock.advance(2.0)
            await flow.publish_leading()
            return kube.node("web-1").find_condition(BLOCKED_CONDITION) is not None

        await wait_until(is_said, "the condition is written")
        await flow.enrich(make_node(), make_facts())  # the watcher has not seen the condition yet
        await flow.wait_for_decision("web-1", "initialized")
    assert kube.node("web-1").find_condition(BLOCKED_CONDITION) is None


async def test_a_value_of_a_newer_version_is_refused_once_and_reported_and_holds_up_no_node(flow: FlowActor):
    kube, dead = InMemoryNodes(make_node()), f"{DEAD_LETTERS}.labeler.node.web-1"
    async with run_labeler(flow.url, kube):
        newer: Any = "frozen"
        await flow.publish_unreachable(make_node(), msgspec.structs.replace(REFUSED, kind=newer))
        letter = await wait_for_value(lambda: flow.bus.get_last(dead))
        assert isinstance(letter.event, DeadLetter)
        assert "Invalid enum value 'frozen' - at `$.fault.kind`" in letter.event.reason
        await flow.wait_until_handled()
        assert [each.redelivered for each in (await flow.bus.stats()).consumers if each.unacknowledged] == []
        await flow.enrich(make_node(), make_facts())
        await flow.wait_for_decision("web-1", "initialized")
        again = await flow.bus.get_last(dead)
        assert again is not None
        assert again.sequence == letter.sequence


async def test_a_changed_machine_changes_its_node_in_one_write(flow: FlowActor):
    kube = InMemoryNodes(make_node())
    async with run_labeler(flow.url, kube):
        await flow.enrich(make_node(), make_facts(platform="aws", provider_id="aws:///a/1", zone="a"))
        await flow.wait_for_decision("web-1", "initialized")
        await flow.enrich(kube.node("web-1"), make_facts(platform="aws", provider_id="aws:///a/1", zone="b"))
        decided = await flow.wait_for_decision("web-1", "updated")
    assert kube.list_patches() == ["nodes/status", "nodes", "nodes"]
    assert decided.changes == (
        "label topology.kubernetes.io/zone=b",
        "label failure-domain.beta.kubernetes.io/zone=b",
    )


# ---- fences


async def test_a_write_between_view_and_patch_is_planned_again_on_what_is_there_now(flow: FlowActor):
    kube = InMemoryNodes(make_node())
    not_ready = Taint(key="node.kubernetes.io/not-ready", effect="NoExecute")

    def somebody_taints(resource: str) -> None:
        if resource == "nodes" and not_ready not in kube.node("web-1").spec.taints:
            node = kube.node("web-1")
            spec = msgspec.structs.replace(node.spec, taints=(not_ready, *node.spec.taints))
            kube.put(msgspec.structs.replace(node, spec=spec))

    kube.before = somebody_taints
    async with run_labeler(flow.url, kube):
        await flow.enrich(make_node(), make_facts())
        await flow.wait_for_decision("web-1", "initialized")
    assert kube.node("web-1").spec.taints == (not_ready,)
    assert kube.requests == [
        ("patch", "nodes/status"), ("patch", "nodes"), ("get", "nodes"), ("patch", "nodes"),
        ("create", "events"),
    ]  # fmt: skip


async def test_the_answer_to_the_first_write_is_the_view_for_the_second(flow: FlowActor):
    not_ready = Taint(key="node.kubernetes.io/not-ready", effect="NoExecute")
    kube = InMemoryNodes(make_node(taints=(not_ready, UNINITIALIZED)))
    async with run_labeler(flow.url, kube):
        await flow.enrich(make_node(), make_facts())  # an older view, with the taint at another index
        await flow.wait_for_decision("web-1", "initialized")
    assert kube.node("web-1").spec.taints == (not_ready,)
    assert ("get", "nodes") not in kube.requests


async def test_a_message_that_is_not_the_last_of_its_node_writes_nothing_after_a_failed_fence(
    flow: FlowActor,
):
    kube = InMemoryNodes(make_node())
    kube.failing = {"nodes": FenceFailed("the server rejected our request", status=422)}
    newer = make_facts(platform="aws", provider_id="aws:///z/1")
    published: list[asyncio.Task[int]] = []

    def newer_word_arrives(resource: str) -> None:
        if resource == "nodes" and not published:
            published.append(asyncio.create_task(flow.enrich(kube.node("web-1"), newer)))

    kube.before = newer_word_arrives
    original_get = kube.get_node

    async def get_after_the_newer_word(name: str):
        await published[0]
        kube.failing.clear()
        return await original_get(name)

    kube.get_node = get_after_the_newer_word  # type: ignore[method-assign]  # the moment between fence and read
    async with run_labeler(flow.url, kube):
        await flow.enrich(make_node(), make_facts())
        await flow.wait_for_decision("web-1", "initialized")
        await flow.wait_until_handled()
    assert kube.node("web-1").spec.provider_id == "aws:///z/1"
    assert kube.requests.count(("get", "nodes")) == 1


async def test_a_fence_that_fails_twice_is_tried_again_later(flow: FlowActor):
    kube = InMemoryNodes(make_node())
    kube.failing = {"nodes": FenceFailed("the server rejected our request", status=422)}
    async with run_labeler(flow.url, kube):
        await flow.enrich(make_node(), make_facts())
        await wait_until(lambda: kube.requests.count(("patch", "nodes")) >= 2, "both tries")
        assert not kube.node("web-1").is_initialized
        kube.failing.clear()
        await flow.wait_for_decision("web-1", "initialized")


async def test_a_node_that_is_deleted_before_the_write_is_no_failure(flow: FlowActor):
    kube = InMemoryNodes()
    async with run_labeler(flow.url, kube):
        await flow.enrich(make_node(), make_facts())
        await flow.wait_until_handled()
    assert kube.list_writes() == ["nodes/status"]
    assert await flow.get_decision("web-1") is None


async def test_word_of_a_replaced_node_writes_nothing_to_its_successor(flow: FlowActor):
    kube = InMemoryNodes(make_node(uid="uid-2"))
    async with run_labeler(flow.url, kube):
        place = await flow.publish_node(make_node())
        await flow.publish_node(make_node(uid="uid-2"))
        await flow.enrich(make_node(), make_facts(), observed=place)
        await flow.wait_until_handled()
        assert kube.requests == []
        await flow.enrich(make_node("other", uid="uid-1"), make_facts(node_name="other"))
        await flow.wait_until_handled()
    assert kube.node("web-1").uid == "uid-2"
    assert not kube.node("web-1").is_initialized


async def test_the_uid_fences_a_successor_that_the_flow_has_not_told_of_yet(flow: FlowActor):
    kube = InMemoryNodes(make_node(uid="uid-2"))
    async with run_labeler(flow.url, kube):
        await flow.enrich(make_node(), make_facts())
        await flow.wait_until_handled()
    assert kube.requests == [("patch", "nodes/status"), ("get", "nodes")]
    assert kube.node("web-1").labels == make_node().labels


async def test_no_message_is_dropped_for_a_newer_one_that_nats_may_have_lost(
    flow: FlowActor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("libs.common.bus.flow.SYNC_TIMEOUT_SECONDS", 0.1)
    async with run_labeler(flow.url, InMemoryNodes(make_node())) as labeler:
        await flow.enrich(make_node(), make_facts())
        await flow.wait_for_decision("web-1", "initialized")
        last = await flow.bus.get_last(f"{ENRICHED_NODE}.web-1")
        assert last is not None
        # NATS has lost the end of the stream, and metadata has published again.
        again = msgspec.structs.replace(last, sequence=last.sequence - 1)
        assert await labeler._on_node_enriched.reconcile(again) == "superseded"
        labeler._stream_cache.mark_disconnected("the server has lost power")
        with pytest.raises(TemporaryError, match="the server has lost power"):
            await labeler._on_node_enriched.reconcile(again)


# ---- who leads


async def test_nothing_is_written_while_no_leader_is_heard_and_nothing_is_lost(flow: FlowActor):
    kube, clock = InMemoryNodes(make_node()), ManualClock()
    retried = metrics.HANDLED.labels("labeler", "NodeEnriched", "retried")
    before = retried._value.get()
    async with run_labeler(flow.url, kube, clock=clock) as labeler:
        clock.advance(10.5)
        assert ["no leader heartbeat" in problem for problem in labeler.problems()] == [True]
        await flow.enrich(make_node(), make_facts())
        await wait_until(lambda: retried._value.get() > before, "handed back")
        assert kube.requests == []
        await flow.publish_leading()
        await flow.wait_for_decision("web-1", "initialized")
        assert not labeler.problems()


async def test_a_labeler_that_has_never_heard_a_leader_takes_no_message(nats_server: NatsServer):
    kube = InMemoryNodes(make_node())
    retried = metrics.HANDLED.labels("labeler", "NodeEnriched", "retried")
    before = retried._value.get()
    async with (
        FlowActor.open(nats_server.url) as flow,
        run_labeler(nats_server.url, kube, ready=False) as labeler,
    ):
        await flow.publish_snapshot(0)
        await flow.enrich(make_node(), make_facts())
        await wait_until(lambda: len(labeler.problems()) == 1, "all but the leader is there")
        assert "no leader heartbeat" in labeler.problems()[0]
        assert (kube.requests, retried._value.get()) == ([], before)
        await flow.publish_leading()
        await flow.wait_for_decision("web-1", "initialized")


async def test_observe_only_writes_nothing_and_publishes_what_it_would_have_written(flow: FlowActor):
    kube, clock = InMemoryNodes(make_node()), ManualClock()
    async with run_labeler(flow.url, kube, clock=clock, observe_only=True):
        clock.advance(3600.0)  # no watcher leads; observe-only needs no leader
        await flow.enrich(make_node(), make_facts())
        decided = await flow.wait_for_decision("web-1", "would-initialize")
        await flow.publish_unreachable(make_node("down"), REFUSED)
        await flow.wait_for_decision("down", "blocked")
    assert kube.requests == []
    assert "providerID talos://metal/10.0.0.5" in decided.changes
    assert "taint node.cloudprovider.kubernetes.io/uninitialized:NoSchedule removed" in decided.changes


# ---- what is not initialised


async def test_a_notice_is_one_event_however_often_the_node_is_looked_at(flow: FlowActor):
    kube, clock = InMemoryNodes(make_node()), ManualClock()
    facts = make_facts(platform="nocloud", hostname="h", zone="Standard PC (i440FX + PIIX, 1996)")
    async with run_labeler(flow.url, kube, clock=clock):
        await flow.enrich(make_node(), facts)
        await flow.wait_for_decision("web-1", "initialized")
        for _ in range(3):
            clock.advance(61.0)  # another minute, so another Event name
            await flow.publish_leading()
            await flow.enrich(kube.node("web-1"), facts)
            await flow.wait_until_handled()
    assert kube.list_event_reasons("web-1") == ["Synced", "LabelSkipped"]


async def test_a_gone_node_is_forgotten_and_its_successor_is_told_anew(flow: FlowActor):
    kube = InMemoryNodes(make_node())
    async with run_labeler(flow.url, kube) as labeler:
        await flow.enrich(make_node(), make_facts())
        await flow.wait_for_decision("web-1", "initialized")
        kube.delete("web-1")
        await flow.publish_node_gone(make_node())
        await wait_until(lambda: make_node().uid not in labeler._events._histories, "forgotten")
        await flow.publish_enriched_gone(make_node())
        await flow.wait_until_handled()
        kube.put(make_node(uid="uid-2"))
        await flow.enrich(make_node(uid="uid-2"), make_facts())
        await wait_until(lambda: _of_uid(flow, "uid-2"), "published again")
    assert kube.list_event_reasons("web-1") == ["Synced", "Synced"]


async def _of_uid(flow: FlowActor, uid: str) -> bool:
    decided = await flow.get_decision("web-1")
    return decided is not None and decided.uid == uid
