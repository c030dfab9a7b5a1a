"""The state of one Node and its next step, without a network."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from libs.common.contract import events
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault, has_same_facts
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    Node,
    NodeAddress,
    NodeCondition,
    Taint,
    is_same_object,
)
from libs.talos.machine_events import WatchSnapshot
from services.metadata.core.node_state import NodeState, create_state
from services.metadata.core.node_step import NodeStep, PollMachine, decide_node_step
from services.metadata.core.object_state import (
    NEVER,
    ForgetObject,
    PollIntervals,
    Publication,
    Publish,
    Timing,
    Wait,
    make_observation,
)
from tests.builders import (
    NOW,
    UNINITIALIZED,
    make_facts,
    make_message,
    make_node,
    make_node_gone,
    make_node_observed,
)

INTERVALS = PollIntervals()
T = 1000.0  # now, monotonic
UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
TIMEOUT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer")
CONNECT = MachineFault(kind="refused", step="connect", message="connection refused")


def at(now: float, jitter: float = 0.5) -> Timing:
    return Timing(now=now, jitter=jitter, intervals=INTERVALS)


def joined(node: Node | None = None, *, sequence: int = 7, now: float = T) -> NodeState:
    """The state after the first observation."""
    event: events.NodeObserved | events.NodeGone = make_node_observed(node or make_node())
    observation = make_observation(make_message(event, sequence=sequence), event)
    return create_state(observation, Publication(republish_at=now), now=now, prefer_ipv6=False)


def then_observed(known: NodeState, node: Node, *, sequence: int = 8, now: float = T) -> NodeState:
    event = make_node_observed(node)
    message = make_message(event, sequence=sequence)
    return known.observed(message, event, all_nodes=[], prefer_ipv6=False, timing=at(now))


def then_gone(known: NodeState, *, sequence: int = 9) -> NodeState:
    assert known.node is not None
    event = make_node_gone(known.node)
    message = make_message(event, sequence=sequence)
    return known.observed(message, event, all_nodes=[], prefer_ipv6=False, timing=at(T))


def then_polled(
    known: NodeState,
    facts: MachineFacts | None = None,
    *,
    stored: events.NodeEnriched | None = None,
    began: float = T,
    now: float = T,
) -> NodeState:
    return known.polled(facts or make_facts(), stored, all_nodes=[], began=began, timing=at(now))


def then_failed(known: NodeState, fault: MachineFault = TIMEOUT, *, now: float = T) -> NodeState:
    return known.poll_failed(fault, began=now, timing=at(now))


def step(known: NodeState, now: float = T) -> NodeStep:
    return decide_node_step(known, now=now, wall_time=NOW + timedelta(seconds=now - T))


def then_published(known: NodeState, now: float = T) -> NodeState:
    """The state after the due publish."""
    found = step(known, now)
    assert isinstance(found, Publish), found
    return known.published(found.event, at(now))


def never_republished(known: NodeState) -> NodeState:
    publication = msgspec.structs.replace(known.publication, republish_at=NEVER)
    return msgspec.structs.replace(known, publication=publication)


def enriched_node() -> NodeState:
    return then_published(then_polled(joined()))


def test_a_new_node_is_polled_then_published_then_left_alone():
    known = joined()
    assert step(known) == PollMachine(("10.0.0.5",))
    known = then_polled(known)
    found = step(known)
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeEnriched)
    assert (found.event.observed_sequence, found.event.verified_by) == (7, "nodename")
    rest = step(then_published(known))
    assert isinstance(rest, Wait)
    assert T + 200 < rest.until <= T + 300


def test_the_observed_and_the_published_node_share_what_is_equal():
    """There are thousands: the published message keeps the Node that it reports."""
    known = enriched_node()
    node = make_node(taints=(), resource_version="101")
    later = then_observed(known, node)
    published = later.publication.event
    assert isinstance(published, events.NodeEnriched)
    assert later.node == node != published.node
    assert later.node is not None
    assert later.node.annotations is published.node.annotations
    assert later.node.status.addresses is published.node.status.addresses


def test_a_node_that_is_not_ours_is_never_polled_or_published():
    assert step(joined(make_node(ip=""))) == Wait(NEVER)


@pytest.mark.parametrize("watched", [True, False])
def test_young_or_watched_facts_are_not_polled_again(watched):
    known, later = enriched_node(), T + 59.0
    if watched:
        known, later = (
            then_polled(
                known.machine_changed(at(T + 1)),
                began=T + 2,
                now=T + 2,
            ),
            T + 600,
        )
        known = never_republished(known)
    known = then_published(then_observed(known, make_node(labels={"a": "b"}), now=later), later)
    assert isinstance(step(known, later), Wait)


def test_changed_pod_cidrs_are_published_only_with_the_next_other_change():
    given = ("10.244.1.0/24", "fd00:1::/80")
    known = then_observed(enriched_node(), make_node(pod_cidrs=given), now=T + 60)
    assert isinstance(step(known, T + 60), Wait), "neither published nor polled: no machine reports them"
    assert known.observation.sequence == 8
    known = then_observed(known, make_node(pod_cidrs=given, labels={"a": "b"}), sequence=9, now=T + 60)
    found = step(known, T + 60)
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeEnriched)
    assert (found.event.observed_sequence, found.event.node.spec.pod_cidrs) == (9, given)


NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
READY = NodeCondition(type="Ready", status="True")
BLOCKED = NodeCondition(type=BLOCKED_CONDITION, status="True")
OTHER_ADDRESS = NodeAddress(type="ExternalIP", address="198.51.100.7")


@pytest.mark.parametrize(
    "change",
    [
        {"conditions": (READY,)},
        {"taints": (UNINITIALIZED, NOT_READY)},
        {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}},
    ],
    ids=["ready", "not-ready-taint", "attach-detach", "csi"],
)
def test_a_field_that_no_consumer_plans_from_is_published_with_the_next_other_change(change: dict[str, Any]):
    known = then_observed(enriched_node(), make_node(**change))
    assert isinstance(step(known), Wait)
    known = then_observed(known, make_node(**change, labels={"a": "b"}), sequence=9)
    found = step(known)
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeEnriched)
    assert (found.event.observed_sequence, found.event.node) == (9, known.node)


BEING_DELETED = replace(make_node(), metadata=replace(make_node().metadata, deletion_timestamp=NOW))


@pytest.mark.parametrize(
    "node",
    [
        make_node(taints=()),
        make_node(taints=(UNINITIALIZED, Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule"))),
        make_node(labels={"a": "b"}),
        make_node(annotations={"talos.dev/owned-labels": '["a"]'}),
        make_node(provider_id="talos://metal/10.0.0.5"),
        make_node(addresses=(OTHER_ADDRESS,)),
        make_node(conditions=(BLOCKED,)),
        make_node(system_uuid=UUID),
        BEING_DELETED,
    ],
    ids=[
        "untainted",
        "tainted",
        "label",
        "annotation",
        "provider ID",
        "address",
        "blocked",
        "UUID",
        "deleted",
    ],
)
def test_a_field_that_a_consumer_plans_from_is_published_at_once(node: Node):
    assert isinstance(step(then_observed(enriched_node(), node)), Publish)


def test_a_poll_with_the_same_facts_is_not_published():
    later = make_facts(queried_at=NOW + timedelta(seconds=60))
    assert isinstance(step(then_polled(enriched_node(), later, began=T + 60, now=T + 60), T + 60), Wait)


def test_a_replayed_observation_changes_nothing():
    known = enriched_node()
    assert then_observed(known, make_node(), sequence=7) is known


def test_a_fault_is_published_once_and_again_when_it_or_the_node_changes():
    known = then_published(then_failed(joined()))
    known = then_failed(known, now=T + 1)
    assert isinstance(step(known, T + 1), Wait)
    other = then_failed(known, CONNECT, now=T + 2)
    found = step(other, T + 2)
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeUnreachable)
    assert (found.event.fault, found.event.attempt) == (CONNECT, 1)
    node_changed = then_observed(known, make_node(labels={"a": "b"}), now=T + 1)
    found = step(node_changed, T + 1)
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeUnreachable)
    assert found.event.attempt == 2
    assert found.event.retry_at == NOW + timedelta(seconds=1 + 0.75)


def test_a_new_uid_inherits_neither_facts_nor_failures():
    known = then_observed(then_failed(enriched_node(), now=T + 1), make_node(uid="uid-2"), now=T + 1)
    assert (known.last_known, known.failures, known.facts) == (None, {}, None)
    assert step(known, T + 1) == PollMachine(("10.0.0.5",))


def test_a_changed_address_causes_a_poll_and_keeps_only_the_last_known_facts():
    known = then_observed(enriched_node(), make_node(ip="10.0.0.6"))
    assert known.facts is None
    assert known.last_known == make_facts()
    assert step(known) == PollMachine(("10.0.0.6",))


def test_an_address_that_is_never_dialled_is_a_fault_that_is_republished():
    found = step(joined(make_node(ip="localhost")))
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeUnreachable)
    assert found.event.fault.kind == "bad_node_ip"
    known = joined(make_node(ip="localhost")).published(found.event, at(T))
    assert step(known) == Wait(known.publication.republish_at)


def test_a_burst_of_changes_causes_one_poll_and_a_flood_two_per_second():
    known = enriched_node().machine_changed(at(T + 5.0))
    assert known.next_poll_at == T + 5.05
    assert known.machine_changed(at(T + 5.04)).next_poll_at == T + 5.05
    flood = then_polled(known, began=T + 5.05, now=T + 5.06).machine_changed(at(T + 5.07))
    assert flood.next_poll_at == T + 5.55


def test_the_end_of_a_watch_causes_a_poll():
    known = enriched_node().machine_changed(at(T + 1))
    known = then_polled(known, began=T + 2, now=T + 2)
    ended = known.watch_ended(2.0, at(T + 10))
    assert not ended.is_watched
    assert ended.next_poll_at == T + 12


def test_the_end_of_a_watch_during_a_poll_causes_another_one():
    ended = enriched_node().watch_ended(2.0, at(T + 1.5))
    polled = then_polled(ended, began=T + 1, now=T + 2)
    assert polled.next_poll_at < T + 2
    assert then_polled(polled, began=T + 2, now=T + 3).next_poll_at > T + 30


def contents(facts: MachineFacts) -> WatchSnapshot:
    return WatchSnapshot(platform=facts.platform, addresses=facts.addresses, node_name=facts.node_name)


def test_a_watch_that_opens_with_the_polled_facts_causes_no_poll():
    before = enriched_node()
    known = before.watch_opened(contents(make_facts()), at(T + 1))
    assert known.is_watched
    assert known.next_poll_at == before.next_poll_at
    assert isinstance(step(known, T + 2), Wait)


@pytest.mark.parametrize(
    "other",
    [
        contents(make_facts(zone="elsewhere")),
        contents(make_facts(node_name="web-2")),
        contents(make_facts(addresses=())),
        msgspec.structs.replace(contents(make_facts()), platform=None),
    ],
    ids=["zone", "node name", "addresses", "no metadata"],
)
def test_a_watch_that_opens_with_other_facts_causes_a_poll(other):
    known = enriched_node().watch_opened(other, at(T + 1))
    assert known.is_watched
    assert step(known, T + 2) == PollMachine(("10.0.0.5",))


@pytest.mark.parametrize(
    "change",
    [
        lambda known, timing: known.machine_changed(timing),
        lambda known, timing: known.watch_opened(contents(make_facts()), timing),
    ],
    ids=["a change", "a watch that opens"],
)
def test_a_poll_in_progress_is_repeated_after(change: Callable[[NodeState, Timing], NodeState]):
    known = change(enriched_node(), at(T + 5.1))
    assert then_polled(known, began=T + 5.0, now=T + 5.3).next_poll_at <= T + 5.6
    assert then_polled(known, began=T + 5.2, now=T + 5.3).next_poll_at > T + 60


def test_the_incomplete_metadata_of_a_booting_machine_removes_nothing():
    whole = make_facts(platform="hcloud", provider_id="hcloud://1", region="fsn1")
    known = then_published(then_polled(joined(), whole))
    after = then_polled(known, make_facts(platform="hcloud"), now=T + 1)
    assert after.fault is not None
    assert (after.fault.kind, after.fault.step) == ("not_found", "PlatformMetadata")
    assert after.last_known == whole


def test_a_new_machine_without_cloud_metadata_is_published_and_polled_again_soon():
    known = then_polled(joined(), make_facts(platform="hcloud"))
    assert known.next_poll_at <= T + 1.0
    assert isinstance(step(known), Publish)
    for _ in range(20):
        known = then_polled(known, make_facts(platform="hcloud"))
    assert T + 20 <= known.next_poll_at <= T + 30


def test_the_end_of_a_node_waits_for_the_end_of_the_back_off():
    known = then_gone(enriched_node())
    refused = replace(known, publication=known.publication.failed(at(T)))
    assert step(refused) == Wait(refused.publication.retry_at)


@pytest.mark.parametrize("has_stored", [False, True])
def test_a_machine_that_answers_after_a_lost_acknowledgement_is_published_again(has_stored: bool):
    known = enriched_node()
    refused = replace(
        then_failed(known), publication=known.publication.failed(at(T))
    )  # perhaps the stream has the fault
    enriched = known.publication.event
    assert isinstance(enriched, events.NodeEnriched)
    back = then_polled(refused, stored=enriched if has_stored else None)
    found = step(back, back.publication.retry_at)
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeEnriched)


def test_after_a_tie_the_machine_is_polled_before_the_next_publish():
    known = then_polled(joined())
    found = step(known)
    assert isinstance(found, Publish)
    tied = known.publish_conflicted(found.event, now=T)
    assert step(tied) == PollMachine(("10.0.0.5",))
    assert isinstance(step(then_polled(tied)), Publish)


def test_a_message_of_another_replica_is_corrected_only_after_a_successful_poll():
    wrong = make_facts(zone="wrong")
    known = enriched_node()
    assert isinstance(known.publication.event, events.NodeEnriched)
    theirs = msgspec.structs.replace(known.publication.event, facts=wrong)
    after = known.polled(make_facts(), theirs, all_nodes=[], began=T + 300, timing=at(T + 300))
    assert isinstance(step(never_republished(after), T + 300), Publish)


def test_facts_win_over_another_replica_that_has_none():
    known = enriched_node()
    contradicted = known.contradicted(at(T + 5))
    assert step(contradicted, T + 5) == PollMachine(("10.0.0.5",))
    blind = then_published(then_failed(joined()))
    assert blind.contradicted(at(T + 5)) is blind


def test_facts_too_large_for_a_message_are_a_fault_of_the_machine():
    known = then_polled(joined()).message_oversized("300000 bytes, the limit is 262144", at(T))
    found = step(known)
    assert isinstance(found, Publish)
    assert isinstance(found.event, events.NodeUnreachable)
    assert found.event.last_known is None
    assert "300000" in found.event.fault.message


FACTS = st.builds(
    make_facts,
    platform=st.sampled_from(["metal", "hcloud"]),
    node_name=st.sampled_from(["web-1", "web-1", "other", ""]),
    zone=st.sampled_from(["", "a"]),
    provider_id=st.sampled_from(["", "hcloud://1"]),
)
NODES = st.builds(
    make_node,
    uid=st.sampled_from(["uid-1", "uid-1", "uid-2"]),
    ip=st.sampled_from(["10.0.0.5", "10.0.0.5", "fd00::5,10.0.0.5", "", "localhost"]),
    labels=st.sampled_from([{}, {"a": "b"}]),
)
JITTER = st.floats(0.0, 1.0, exclude_max=True)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("observed"), NODES),
        st.tuples(st.just("gone"), st.none()),
        st.tuples(st.just("void"), st.none()),
        st.tuples(st.just("changed"), st.none()),
        st.tuples(st.just("watch opened"), FACTS),
        st.tuples(st.just("watch ended"), st.none()),
        st.tuples(st.just("hurried"), st.none()),
        st.tuples(st.just("later"), st.sampled_from([0.01, 0.6, 31.0, 400.0, 2000.0])),
    ),
    max_size=12,
)


def after(known: NodeState, what: str, value: Any, *, sequence: int, now: float) -> NodeState:
    """The state after one event."""
    match what:
        case "observed":
            return then_observed(known, value, sequence=sequence, now=now)
        case "gone" if known.node is not None:
            return then_gone(known, sequence=sequence)
        case "void":
            return known.stream_replaced()
        case "changed":
            return known.machine_changed(at(now))
        case "watch opened":
            return known.watch_opened(contents(value), at(now))
        case "watch ended":
            return known.watch_ended(1.0, at(now))
        case "hurried":
            return known.poll_within(0.0, at(now))
        case _:
            return known


def after_publish(known: NodeState, event: events.EnrichedNode, now: float, data: st.DataObject) -> NodeState:
    """The state after a publish that may fail; the event is checked."""
    assert event.stream_id == known.observation.event.stream_id
    assert event.observed_sequence == known.observation.sequence
    if isinstance(event, events.NodeEnriched):
        assert event.facts.node_name == event.node.name
        assert event.node == known.node
    if data.draw(st.booleans()):
        return known.published(event, at(now, data.draw(JITTER)))
    return replace(known, publication=known.publication.failed(at(now, data.draw(JITTER))))


def settled(known: NodeState, now: float, data: st.DataObject) -> NodeState:
    """The state after all steps that are due now."""
    for _ in range(8):
        assert known.facts is None or known.fault is None
        match step(known, now):
            case Publish(event=event):
                known = after_publish(known, event, now, data)
            case PollMachine(addresses=addresses):
                assert addresses
                facts = data.draw(st.none() | FACTS)
                known = (
                    then_polled(known, facts, began=now, now=now) if facts else then_failed(known, now=now)
                )
            case Wait(until=until):
                assert until > now
                return known
            case ForgetObject():
                assert known.node is None
                return known
    pytest.fail("the state does not settle")


@given(EVENTS, st.data())
def test_after_any_events_the_state_settles_and_the_facts_are_published(history, data):
    known, now = settled(joined(), T, data), T
    for sequence, (what, value) in enumerate(history, start=8):
        now += value if what == "later" else 0.0
        known = settled(after(known, what, value, sequence=sequence, now=now), now, data)
        if (
            known.facts is not None
            and known.node is not None
            and not known.publication.failures
            and not known.observation.is_stale
        ):
            assert isinstance(known.publication.event, events.NodeEnriched)
            assert has_same_facts(known.publication.event.facts, known.facts)
            assert is_same_object(known.publication.event.node, known.node)


ANOTHER = ForeignMachine(address="10.0.0.5", node_name="web-9", uuid=UUID, queried_at=NOW)
WRONG = MachineFault(kind="wrong_machine", step="Nodename", message="another answers")


def then_replaced(known: NodeState, *, now: float = T) -> NodeState:
    """The state after a poll in which another machine answered."""
    another = msgspec.structs.replace(ANOTHER, queried_at=NOW + timedelta(seconds=now - T))
    return known.poll_failed(WRONG, began=now, timing=at(now), foreign_machines=(another,))


def test_foreign_machines_are_published_with_each_poll_that_found_them():
    known = then_published(then_replaced(joined()))
    assert isinstance(step(known, T), Wait)
    attempts = []
    now = T
    for _ in range(12):
        now = known.next_poll_at
        assert isinstance(step(known, now), PollMachine)
        known = then_replaced(known, now=now)
        found = step(known, now)
        assert isinstance(found, Publish)
        assert isinstance(found.event, events.NodeUnreachable)
        assert found.event.foreign_machines[0].queried_at == NOW + timedelta(seconds=now - T)
        attempts.append(found.event.attempt)
        known = then_published(known, now)
        assert known.next_poll_at - now <= 60.0, "at least three polls in ten minutes"
    assert attempts == list(range(2, 14))


@pytest.mark.parametrize(
    "contradict",
    [
        lambda known: then_observed(known, make_node(ip="10.0.0.6")),
        lambda known: then_observed(known, make_node(uid="another")),
        lambda known: then_observed(
            known, make_node(addresses=(NodeAddress(type="InternalIP", address="10.1.0.5"),))
        ),
    ],
    ids=["elsewhere", "another Node", "more addresses"],
)
def test_another_node_or_address_removes_the_foreign_machines(contradict):
    known = contradict(then_published(then_replaced(joined())))
    assert known.foreign_machines == ()
    found = step(known)
    assert isinstance(found, Publish | PollMachine)
    if isinstance(found, Publish) and isinstance(found.event, events.NodeUnreachable):
        assert found.event.foreign_machines == ()


def then_relabelled(known: NodeState, now: float) -> NodeState:
    assert known.node is not None
    metadata = msgspec.structs.replace(known.node.metadata, labels={"at": str(now)})
    node = msgspec.structs.replace(known.node, metadata=metadata)
    return then_observed(known, node, sequence=int(now), now=now)


def then_of_another_machine(known: NodeState, now: float) -> NodeState:
    node = make_node(system_uuid=f"{UUID[:-4]}{int(now)}")
    return then_observed(known, node, sequence=int(now), now=now)


POLLS_AND_CHANGES: dict[str, Callable[[NodeState, float], NodeState]] = {
    "replaced": lambda known, now: then_replaced(known, now=now),
    "silent": lambda known, now: then_failed(known, TIMEOUT, now=now),
    "partial answer": lambda known, now: then_failed(known, WRONG, now=now),
    "itself": lambda known, now: then_polled(known, began=now, now=now),
    "relabelled": then_relabelled,
    "another machine": then_of_another_machine,
}


@given(st.lists(st.sampled_from(sorted(POLLS_AND_CHANGES)), max_size=12))
def test_foreign_machines_are_published_only_while_the_newest_poll_found_them(history: list[str]):
    known, holds = joined(), False
    for now, happening in enumerate(history, start=int(T) + 1):
        known = POLLS_AND_CHANGES[happening](known, float(now))
        holds = happening == "replaced" or (holds and happening == "relabelled")
        event = known.publication.event
        while isinstance(found := step(known, float(now)), Publish):
            known, event = then_published(known, float(now)), found.event
        assert bool(known.foreign_machines) is holds
        if holds:
            assert isinstance(event, events.NodeUnreachable)
            assert event.foreign_machines == known.foreign_machines
        assert not (isinstance(event, events.NodeUnreachable) and event.foreign_machines and not holds)
