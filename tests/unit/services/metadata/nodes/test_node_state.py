"""What metadata knows of one Node, and what follows: the whole decision without a network."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import (
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node, NodeAddress, is_same_node
from libs.talos.machine_events import WatchSnapshot
from services.metadata.event_equivalence import has_same_facts
from services.metadata.nodes.node_state import NodeState, create_state
from services.metadata.nodes.node_step import NodeStep, PollMachine, decide_node_step
from services.metadata.object_state import NEVER, ForgetObject, Publication, Publish, Wait, make_observation
from services.metadata.poll_schedule import PollIntervals, Timing
from tests.builders import NOW, make_facts, make_message, make_node, make_node_gone, make_node_observed

PACE = PollIntervals()
T = 1000.0  # now, monotonic
UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
TIMEOUT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer")
CONNECT = MachineFault(kind="refused", step="connect", message="nobody listens")


def at(now: float, jitter: float = 0.5) -> Timing:
    return Timing(now=now, jitter=jitter, intervals=PACE)


def joined(node: Node | None = None, *, sequence: int = 7, now: float = T) -> NodeState:
    """A Node as it is seen first."""
    event: NodeObserved | NodeGone = make_node_observed(node or make_node())
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


def then_looked(
    known: NodeState, facts: MachineFacts | None = None, *, began: float = T, now: float = T
) -> NodeState:
    return known.polled(facts or make_facts(), None, all_nodes=[], began=began, timing=at(now))


def then_failed(known: NodeState, fault: MachineFault = TIMEOUT, *, now: float = T) -> NodeState:
    return known.poll_failed(fault, began=now, timing=at(now))


def step(known: NodeState, now: float = T) -> NodeStep:
    return decide_node_step(known, now=now, wall_time=NOW + timedelta(seconds=now - T))


def then_said(known: NodeState, now: float = T) -> NodeState:
    """Whatever is to be said now, said."""
    found = step(known, now)
    assert isinstance(found, Publish), found
    return known.published(found.event, at(now))


def never_republished(known: NodeState) -> NodeState:
    publication = msgspec.structs.replace(known.publication, republish_at=NEVER)
    return msgspec.structs.replace(known, publication=publication)


def enriched_node(now: float = T) -> NodeState:
    return then_said(then_looked(joined(now=now), began=now, now=now), now)


def test_a_new_node_is_looked_at_then_told_then_left_alone():
    known = joined()
    assert step(known) == PollMachine(("10.0.0.5",))
    known = then_looked(known)
    found = step(known)
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeEnriched)
    assert (found.event.observed_sequence, found.event.verified_by) == (7, "nodename")
    rest = step(then_said(known))
    assert isinstance(rest, Wait)
    assert T + 200 < rest.until <= T + 300


def test_a_node_that_is_not_ours_is_left_alone_for_ever():
    assert step(joined(make_node(ip=""))) == Wait(NEVER)


def test_changed_labels_are_said_at_once_and_facts_that_are_old_are_fetched_after():
    known = then_observed(enriched_node(), make_node(labels={"a": "b"}), now=T + 60)
    found = step(known, T + 60)
    assert isinstance(found, Publish)
    assert step(then_said(known, T + 60), T + 60) == PollMachine(("10.0.0.5",))


@pytest.mark.parametrize("watched", [True, False])
def test_facts_that_are_young_or_watched_are_not_fetched_again(watched):
    known, later = enriched_node(), T + 59.0
    if watched:
        known, later = (
            then_looked(
                known.machine_changed(now=T + 1, intervals=PACE),
                began=T + 2,
                now=T + 2,
            ),
            T + 600,
        )
        known = never_republished(known)
    known = then_said(then_observed(known, make_node(labels={"a": "b"}), now=later), later)
    assert isinstance(step(known, later), Wait)


def test_an_observation_that_changes_nothing_is_not_answered_again():
    known = then_observed(enriched_node(), make_node(resource_version="101"))
    assert isinstance(step(known), Wait)
    assert known.observation.sequence == 8


def test_pod_cidrs_alone_are_no_news_and_stand_in_the_next_word():
    given = ("10.244.1.0/24", "fd00:1::/80")
    known = then_observed(enriched_node(), make_node(pod_cidrs=given), now=T + 60)
    assert isinstance(step(known, T + 60), Wait), "neither said nor looked at: no machine knows of them"
    assert known.observation.sequence == 8
    known = then_observed(known, make_node(pod_cidrs=given, labels={"a": "b"}), sequence=9, now=T + 60)
    found = step(known, T + 60)
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeEnriched)
    assert (found.event.observed_sequence, found.event.node.spec.pod_cidrs) == (9, given)


def test_a_look_that_sees_the_same_later_is_no_news():
    later = make_facts(queried_at=NOW + timedelta(seconds=60))
    assert isinstance(step(then_looked(enriched_node(), later, began=T + 60, now=T + 60), T + 60), Wait)


def test_an_observation_read_again_changes_nothing():
    known = enriched_node()
    assert then_observed(known, make_node(), sequence=7) is known


def test_what_does_not_change_is_said_again_within_the_repeat_period():
    known = enriched_node()
    assert isinstance(step(known, T + PACE.republish), Publish)


def test_the_same_fault_is_said_once_and_again_when_it_or_the_node_changes():
    known = then_said(then_failed(joined()))
    known = then_failed(known, now=T + 1)
    assert isinstance(step(known, T + 1), Wait)
    other = then_failed(known, CONNECT, now=T + 2)
    found = step(other, T + 2)
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeUnreachable)
    assert (found.event.fault, found.event.attempt) == (CONNECT, 1)
    node_changed = then_observed(known, make_node(labels={"a": "b"}), now=T + 1)
    found = step(node_changed, T + 1)
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeUnreachable)
    assert found.event.attempt == 2
    assert found.event.retry_at == NOW + timedelta(seconds=1 + 0.75)


def test_a_failing_node_that_changes_is_not_asked_sooner():
    known = then_said(then_failed(joined()))
    again = then_said(then_observed(known, make_node(labels={"a": "b"})))
    assert isinstance(step(again), Wait)
    assert again.next_poll_at == known.next_poll_at


def test_facts_that_were_good_are_told_as_last_known():
    known = then_failed(enriched_node(), now=T + 1)
    found = step(known, T + 1)
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeUnreachable)
    assert found.event.last_known == make_facts()


def test_a_new_uid_inherits_neither_facts_nor_failures():
    known = then_observed(then_failed(enriched_node(), now=T + 1), make_node(uid="uid-2"), now=T + 1)
    assert (known.last_known, known.failures, known.facts) == (None, {}, None)
    assert step(known, T + 1) == PollMachine(("10.0.0.5",))


def test_another_address_makes_another_look_and_keeps_nothing_but_the_last_known():
    known = then_observed(enriched_node(), make_node(ip="10.0.0.6"))
    assert known.facts is None
    assert known.last_known == make_facts()
    assert step(known) == PollMachine(("10.0.0.6",))


def test_an_address_that_nobody_dials_is_told_with_when_it_is_told_again():
    found = step(joined(make_node(ip="localhost")))
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeUnreachable)
    assert found.event.fault.kind == "bad_node_ip"
    known = joined(make_node(ip="localhost")).published(found.event, at(T))
    assert step(known) == Wait(known.publication.republish_at)


def test_a_change_during_a_look_is_not_forgotten_by_it():
    known = enriched_node().machine_changed(now=T + 5.1, intervals=PACE)
    after = then_looked(known, began=T + 5.0, now=T + 5.3)
    assert after.next_poll_at <= T + 5.6
    assert then_looked(known, began=T + 5.2, now=T + 5.3).next_poll_at > T + 60


def test_changes_in_a_flock_are_one_look_and_a_flood_is_two_a_second():
    known = enriched_node().machine_changed(now=T + 5.0, intervals=PACE)
    assert known.next_poll_at == T + 5.05
    assert known.machine_changed(now=T + 5.04, intervals=PACE).next_poll_at == T + 5.05
    flood = then_looked(known, began=T + 5.05, now=T + 5.06).machine_changed(now=T + 5.07, intervals=PACE)
    assert flood.next_poll_at == T + 5.55


def test_a_watch_that_ends_makes_a_look_and_facts_are_no_longer_live():
    known = enriched_node().machine_changed(now=T + 1, intervals=PACE)
    known = then_looked(known, began=T + 2, now=T + 2)
    ended = known.watch_ended(within=2.0, now=T + 10)
    assert not ended.is_watched
    assert ended.next_poll_at == T + 12


def contents(facts: MachineFacts) -> WatchSnapshot:
    return WatchSnapshot(platform=facts.platform, addresses=facts.addresses, node_name=facts.node_name)


def test_a_watch_that_begins_with_what_the_look_saw_asks_for_no_other():
    before = enriched_node()
    known = before.watch_opened(contents(make_facts()), now=T + 1, intervals=PACE)
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
def test_a_watch_that_begins_with_something_else_asks_for_a_look(other):
    known = enriched_node().watch_opened(other, now=T + 1, intervals=PACE)
    assert known.is_watched
    assert step(known, T + 2) == PollMachine(("10.0.0.5",))


def test_a_look_that_was_under_way_when_the_watch_opened_is_made_again():
    known = enriched_node().watch_opened(contents(make_facts()), now=T + 5.1, intervals=PACE)
    assert then_looked(known, began=T + 5.0, now=T + 5.3).next_poll_at <= T + 5.6
    assert then_looked(known, began=T + 5.2, now=T + 5.3).next_poll_at > T + 60


def test_a_booting_machine_takes_nothing_away():
    whole = make_facts(platform="hcloud", provider_id="hcloud://1", region="fsn1")
    known = then_said(then_looked(joined(), whole))
    after = then_looked(known, make_facts(platform="hcloud"), now=T + 1)
    assert after.fault is not None
    assert (after.fault.kind, after.fault.step) == ("not_found", "PlatformMetadata")
    assert after.last_known == whole


def test_a_new_machine_without_metadata_is_told_as_it_is_and_looked_at_again_soon():
    known = then_looked(joined(), make_facts(platform="hcloud"))
    assert known.next_poll_at <= T + 1.0
    assert isinstance(step(known), Publish)
    for _ in range(20):
        known = then_looked(known, make_facts(platform="hcloud"))
    assert T + 20 <= known.next_poll_at <= T + 30


def test_another_stream_is_told_everything_again_with_the_facts_at_hand():
    known = enriched_node().stream_replaced()
    assert step(known) == Wait(NEVER)
    known = then_observed(known, make_node(), sequence=1)
    found = step(known)
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeEnriched)
    assert found.event.observed_sequence == 1


def test_gone_is_said_once():
    known = then_gone(enriched_node())
    found = step(known)
    assert found == Publish(
        EnrichedNodeGone(stream_id="2026-03-01T11:00:00Z", observed_sequence=9, name="web-1", uid="uid-1")
    )
    assert step(then_said(known)) == ForgetObject()
    refused = known.publish_failed(at(T, 0.5))
    assert step(refused) == Wait(refused.publication.retry_at)


def test_after_a_tie_the_machine_is_looked_at_before_anything_is_said():
    known = then_looked(joined())
    found = step(known)
    assert isinstance(found, Publish)
    tied = known.publish_conflicted(found.event, now=T)
    assert step(tied) == PollMachine(("10.0.0.5",))
    assert isinstance(step(then_looked(tied)), Publish)


def test_what_another_metadata_said_is_corrected_by_a_good_look_only():
    wrong = make_facts(zone="wrong")
    known = enriched_node()
    assert isinstance(known.publication.event, NodeEnriched)
    theirs = msgspec.structs.replace(known.publication.event, facts=wrong)
    after = known.polled(make_facts(), theirs, all_nodes=[], began=T + 300, timing=at(T + 300))
    assert isinstance(step(never_republished(after), T + 300), Publish)


def test_facts_win_over_another_metadata_that_has_none():
    known = enriched_node()
    contradicted = known.contradicted(now=T + 5, intervals=PACE)
    assert step(contradicted, T + 5) == PollMachine(("10.0.0.5",))
    blind = then_said(then_failed(joined()))
    assert blind.contradicted(now=T + 5, intervals=PACE) is blind


def test_facts_too_large_for_a_message_are_a_fault_of_the_machine():
    known = then_looked(joined()).message_oversized("300000 bytes, the limit is 262144", at(T))
    found = step(known)
    assert isinstance(found, Publish)
    assert isinstance(found.event, NodeUnreachable)
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
HAPPENINGS = st.lists(
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
    """One thing happens."""
    match what:
        case "observed":
            return then_observed(known, value, sequence=sequence, now=now)
        case "gone" if known.node is not None:
            return then_gone(known, sequence=sequence)
        case "void":
            return known.stream_replaced()
        case "changed":
            return known.machine_changed(now=now, intervals=PACE)
        case "watch opened":
            return known.watch_opened(contents(value), now=now, intervals=PACE)
        case "watch ended":
            return known.watch_ended(within=1.0, now=now)
        case "hurried":
            return known.poll_within(0.0, now=now)
        case _:
            return known


def spoken(known: NodeState, event: EnrichedNode, now: float, data: st.DataObject) -> NodeState:
    """The bus takes it, or does not; what is said is checked."""
    assert event.stream_id == known.observation.event.stream_id
    assert event.observed_sequence == known.observation.sequence
    if isinstance(event, NodeEnriched):
        assert event.facts.node_name == event.node.name
        assert event.node == known.node
    if data.draw(st.booleans()):
        return known.published(event, at(now, data.draw(JITTER)))
    return known.publish_failed(at(now, data.draw(JITTER)))


def settled(known: NodeState, now: float, data: st.DataObject) -> NodeState:
    """Take steps, without time passing, until there is nothing to do."""
    for _ in range(8):
        assert known.facts is None or known.fault is None
        match step(known, now):
            case Publish(event=event):
                known = spoken(known, event, now, data)
            case PollMachine(addresses=addresses):
                assert addresses
                facts = data.draw(st.none() | FACTS)
                known = (
                    then_looked(known, facts, began=now, now=now) if facts else then_failed(known, now=now)
                )
            case Wait(until=until):
                assert until > now
                return known
            case ForgetObject():
                assert known.node is None
                return known
    pytest.fail("it does not come to rest")


@given(HAPPENINGS, st.data())
def test_whatever_happens_it_comes_to_rest_and_has_said_what_it_knows(happenings, data):
    known, now = settled(joined(), T, data), T
    for sequence, (what, value) in enumerate(happenings, start=8):
        now += value if what == "later" else 0.0
        known = settled(after(known, what, value, sequence=sequence, now=now), now, data)
        if (
            known.facts is not None
            and known.node is not None
            and not known.publication.failures
            and not known.observation.is_stale
        ):
            assert isinstance(known.publication.event, NodeEnriched)
            assert has_same_facts(known.publication.event.facts, known.facts)
            assert is_same_node(known.publication.event.node, known.node)


ANOTHER = ForeignMachine(address="10.0.0.5", node_name="web-9", uuid=UUID, queried_at=NOW)
WRONG = MachineFault(kind="wrong_machine", step="Nodename", message="another answers")


def then_replaced(known: NodeState, *, now: float = T) -> NodeState:
    """Another machine answered in its place."""
    another = msgspec.structs.replace(ANOTHER, queried_at=NOW + timedelta(seconds=now - T))
    return known.poll_failed(WRONG, began=now, timing=at(now), foreign_machines=(another,))


def test_who_answers_in_its_place_is_said_anew_with_each_look_and_each_counts():
    known = then_said(then_replaced(joined()))
    assert isinstance(step(known, T), Wait)
    attempts = []
    now = T
    for _ in range(12):
        now = known.next_poll_at
        assert isinstance(step(known, now), PollMachine)
        known = then_replaced(known, now=now)
        found = step(known, now)
        assert isinstance(found, Publish)
        assert isinstance(found.event, NodeUnreachable)
        assert found.event.foreign_machines[0].queried_at == NOW + timedelta(seconds=now - T)
        attempts.append(found.event.attempt)
        known = then_said(known, now)
        assert known.next_poll_at - now <= 60.0, "three looks in ten minutes at least"
    assert attempts == list(range(2, 14))


@pytest.mark.parametrize(
    "contradict",
    [
        lambda known: then_failed(known, WRONG),
        lambda known: then_failed(known, TIMEOUT),
        then_looked,
        lambda known: then_observed(known, make_node(ip="10.0.0.6")),
        lambda known: then_observed(known, make_node(uid="another")),
        lambda known: then_observed(known, make_node(system_uuid=UUID)),
        lambda known: then_observed(
            known, make_node(addresses=(NodeAddress(type="InternalIP", address="10.1.0.5"),))
        ),
    ],
    ids=[
        "half an answer",
        "silence",
        "itself",
        "elsewhere",
        "another Node",
        "another machine",
        "more addresses",
    ],
)
def test_whatever_contradicts_them_takes_back_who_answered(contradict):
    known = contradict(then_said(then_replaced(joined())))
    assert known.foreign_machines == ()
    found = step(known)
    assert isinstance(found, Publish | PollMachine)
    if isinstance(found, Publish) and isinstance(found.event, NodeUnreachable):
        assert found.event.foreign_machines == ()


def test_labels_that_change_do_not_take_back_who_answered():
    known = then_said(then_replaced(joined()))
    event = step(then_observed(known, make_node(labels={"a": "b"})))
    assert isinstance(event, Publish)
    assert isinstance(event.event, NodeUnreachable)
    assert event.event.foreign_machines == (ANOTHER,)


def then_relabelled(known: NodeState, now: float) -> NodeState:
    assert known.node is not None
    metadata = msgspec.structs.replace(known.node.metadata, labels={"at": str(now)})
    node = msgspec.structs.replace(known.node, metadata=metadata)
    return then_observed(known, node, sequence=int(now), now=now)


def then_of_another_machine(known: NodeState, now: float) -> NodeState:
    node = make_node(system_uuid=f"{UUID[:-4]}{int(now)}")
    return then_observed(known, node, sequence=int(now), now=now)


LOOKS_AND_CHANGES: dict[str, Callable[[NodeState, float], NodeState]] = {
    "replaced": lambda known, now: then_replaced(known, now=now),
    "silent": lambda known, now: then_failed(known, TIMEOUT, now=now),
    "half an answer": lambda known, now: then_failed(known, WRONG, now=now),
    "itself": lambda known, now: then_looked(known, began=now, now=now),
    "relabelled": then_relabelled,
    "another machine": then_of_another_machine,
}


@given(st.lists(st.sampled_from(sorted(LOOKS_AND_CHANGES)), max_size=12))
def test_others_are_said_to_answer_only_while_the_newest_look_saw_them(history: list[str]):
    known, holds = joined(), False
    for now, happening in enumerate(history, start=int(T) + 1):
        known = LOOKS_AND_CHANGES[happening](known, float(now))
        holds = happening == "replaced" or (holds and happening == "relabelled")
        event = known.publication.event
        while isinstance(found := step(known, float(now)), Publish):
            known, event = then_said(known, float(now)), found.event
        assert bool(known.foreign_machines) is holds
        if holds:
            assert isinstance(event, NodeUnreachable)
            assert event.foreign_machines == known.foreign_machines
        assert not (isinstance(event, NodeUnreachable) and event.foreign_machines and not holds)
