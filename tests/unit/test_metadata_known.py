"""What metadata knows of one Node, and what follows: the whole decision without a network."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.events import EnrichedNode, EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.machine import AnotherMachine, MachineFacts, MachineFault
from libs.common.node import Node, NodeAddress, same_to_us
from services.metadata import known as knowledge
from services.metadata import looked, said
from services.metadata.known import Known
from services.metadata.next_step import Done, Look, Say, Step, Wait, next_step, same_facts
from services.metadata.schedule import Pace
from services.metadata.talos_api.machine_events import Contents
from tests.builders import NOW, a_message, a_node, gone, observed, some_facts

PACE = Pace()
T = 1000.0  # now, monotonic
UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
TIMEOUT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer")
CONNECT = MachineFault(kind="refused", step="connect", message="nobody listens")


def joined(node: Node | None = None, *, sequence: int = 7, now: float = T) -> Known:
    """A Node as it is seen first."""
    event = observed(node or a_node())
    message = a_message(event, sequence=sequence)
    return knowledge.first_seen(message, event, None, heard_again_in=0.0, now=now, prefer_ipv6=False)


def then_observed(known: Known, node: Node, *, sequence: int = 8, now: float = T) -> Known:
    event = observed(node)
    return knowledge.observe(
        known,
        a_message(event, sequence=sequence),
        event,
        others=[],
        now=now,
        pace=PACE,
        prefer_ipv6=False,
    )


def then_gone(known: Known, *, sequence: int = 9) -> Known:
    assert known.node is not None
    event = gone(known.node)
    message = a_message(event, sequence=sequence)
    return knowledge.observe(known, message, event, others=[], now=T, pace=PACE, prefer_ipv6=False)


def then_looked(
    known: Known, facts: MachineFacts | None = None, *, began: float = T, now: float = T
) -> Known:
    return looked.looked_well(
        known, facts or some_facts(), None, others=[], began=began, now=now, pace=PACE, jitter=0.5
    )


def then_failed(known: Known, fault: MachineFault = TIMEOUT, *, now: float = T) -> Known:
    return looked.looked_badly(known, fault, began=now, now=now, jitter=0.5)


def step(known: Known, now: float = T) -> Step:
    return next_step(known, now=now, at=NOW + timedelta(seconds=now - T))


def then_said(known: Known, now: float = T) -> Known:
    """Whatever is to be said now, said."""
    found = step(known, now)
    assert isinstance(found, Say), found
    return said.said(known, found.event, now=now, pace=PACE, jitter=0.5)


def enriched_node(now: float = T) -> Known:
    return then_said(then_looked(joined(now=now), began=now, now=now), now)


def test_a_new_node_is_looked_at_then_told_then_left_alone():
    known = joined()
    assert step(known) == Look(("10.0.0.5",))
    known = then_looked(known)
    found = step(known)
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeEnriched)
    assert (found.event.observed_sequence, found.event.recognized_by) == (7, "nodename")
    rest = step(then_said(known))
    assert isinstance(rest, Wait)
    assert T + 200 < rest.until <= T + 300


def test_a_node_that_is_not_ours_is_left_alone_for_ever():
    assert step(joined(a_node(ip=""))) == Wait(knowledge.NEVER)


def test_changed_labels_are_said_at_once_and_facts_that_are_old_are_fetched_after():
    known = then_observed(enriched_node(), a_node(labels={"a": "b"}), now=T + 60)
    found = step(known, T + 60)
    assert isinstance(found, Say)
    assert step(then_said(known, T + 60), T + 60) == Look(("10.0.0.5",))


@pytest.mark.parametrize("watched", [True, False])
def test_facts_that_are_young_or_watched_are_not_fetched_again(watched):
    known, later = enriched_node(), T + 59.0
    if watched:
        known, later = (
            then_looked(looked.changed(known, now=T + 1, pace=PACE), began=T + 2, now=T + 2),
            T + 600,
        )
        known = msgspec.structs.replace(known, repeat_due=knowledge.NEVER)
    known = then_said(then_observed(known, a_node(labels={"a": "b"}), now=later), later)
    assert isinstance(step(known, later), Wait)


def test_an_observation_that_changes_nothing_is_not_answered_again():
    known = then_observed(enriched_node(), a_node(resource_version="101"))
    assert isinstance(step(known), Wait)
    assert known.sequence == 8


def test_pod_cidrs_alone_are_no_news_and_stand_in_the_next_word():
    given = ("10.244.1.0/24", "fd00:1::/80")
    known = then_observed(enriched_node(), a_node(pod_cidrs=given), now=T + 60)
    assert isinstance(step(known, T + 60), Wait), "neither said nor looked at: no machine knows of them"
    assert known.sequence == 8
    known = then_observed(known, a_node(pod_cidrs=given, labels={"a": "b"}), sequence=9, now=T + 60)
    found = step(known, T + 60)
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeEnriched)
    assert (found.event.observed_sequence, found.event.node.spec.pod_cidrs) == (9, given)


def test_a_look_that_sees_the_same_later_is_no_news():
    later = some_facts(looked_at=NOW + timedelta(seconds=60))
    assert isinstance(step(then_looked(enriched_node(), later, began=T + 60, now=T + 60), T + 60), Wait)


def test_an_observation_read_again_changes_nothing():
    known = enriched_node()
    assert then_observed(known, a_node(), sequence=7) is known


def test_what_does_not_change_is_said_again_within_the_repeat_period():
    known = enriched_node()
    assert isinstance(step(known, T + PACE.repeat), Say)


def test_the_same_fault_is_said_once_and_again_when_it_or_the_node_changes():
    known = then_said(then_failed(joined()))
    known = then_failed(known, now=T + 1)
    assert isinstance(step(known, T + 1), Wait)
    other = then_failed(known, CONNECT, now=T + 2)
    found = step(other, T + 2)
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeUnreachable)
    assert (found.event.fault, found.event.attempt) == (CONNECT, 1)
    node_changed = then_observed(known, a_node(labels={"a": "b"}), now=T + 1)
    found = step(node_changed, T + 1)
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeUnreachable)
    assert found.event.attempt == 2
    assert found.event.retry_at == NOW + timedelta(seconds=1 + 0.75)


def test_a_failing_node_that_changes_is_not_asked_sooner():
    known = then_said(then_failed(joined()))
    again = then_said(then_observed(known, a_node(labels={"a": "b"})))
    assert isinstance(step(again), Wait)
    assert again.due == known.due


def test_facts_that_were_good_are_told_as_last_known():
    known = then_failed(enriched_node(), now=T + 1)
    found = step(known, T + 1)
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeUnreachable)
    assert found.event.last_known == some_facts()


def test_a_new_uid_inherits_neither_facts_nor_failures():
    known = then_observed(then_failed(enriched_node(), now=T + 1), a_node(uid="uid-2"), now=T + 1)
    assert (known.last_known, known.failures, known.facts) == (None, {}, None)
    assert step(known, T + 1) == Look(("10.0.0.5",))


def test_another_address_makes_another_look_and_keeps_nothing_but_the_last_known():
    known = then_observed(enriched_node(), a_node(ip="10.0.0.6"))
    assert known.facts is None
    assert known.last_known == some_facts()
    assert step(known) == Look(("10.0.0.6",))


def test_an_address_that_nobody_dials_is_told_with_when_it_is_told_again():
    found = step(joined(a_node(ip="localhost")))
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeUnreachable)
    assert found.event.fault.kind == "bad_node_ip"
    known = said.said(joined(a_node(ip="localhost")), found.event, now=T, pace=PACE, jitter=0.5)
    assert step(known) == Wait(known.repeat_due)


def test_a_change_during_a_look_is_not_forgotten_by_it():
    known = looked.changed(enriched_node(), now=T + 5.1, pace=PACE)
    after = then_looked(known, began=T + 5.0, now=T + 5.3)
    assert after.due <= T + 5.6
    assert then_looked(known, began=T + 5.2, now=T + 5.3).due > T + 60


def test_changes_in_a_flock_are_one_look_and_a_flood_is_two_a_second():
    known = looked.changed(enriched_node(), now=T + 5.0, pace=PACE)
    assert known.due == T + 5.05
    assert looked.changed(known, now=T + 5.04, pace=PACE).due == T + 5.05
    flood = looked.changed(then_looked(known, began=T + 5.05, now=T + 5.06), now=T + 5.07, pace=PACE)
    assert flood.due == T + 5.55


def test_a_watch_that_ends_makes_a_look_and_facts_are_no_longer_live():
    known = looked.changed(enriched_node(), now=T + 1, pace=PACE)
    known = then_looked(known, began=T + 2, now=T + 2)
    ended = looked.watch_ended(known, now=T + 10, within=2.0)
    assert not ended.watched
    assert ended.due == T + 12


def contents(facts: MachineFacts) -> Contents:
    return Contents(platform=facts.platform, addresses=facts.addresses, node_name=facts.node_name)


def test_a_watch_that_begins_with_what_the_look_saw_asks_for_no_other():
    before = enriched_node()
    known = looked.watch_opened(before, contents(some_facts()), now=T + 1, pace=PACE)
    assert known.watched
    assert known.due == before.due
    assert isinstance(step(known, T + 2), Wait)


@pytest.mark.parametrize(
    "other",
    [
        contents(some_facts(zone="elsewhere")),
        contents(some_facts(node_name="web-2")),
        contents(some_facts(addresses=())),
        msgspec.structs.replace(contents(some_facts()), platform=None),
    ],
    ids=["zone", "node name", "addresses", "no metadata"],
)
def test_a_watch_that_begins_with_something_else_asks_for_a_look(other):
    known = looked.watch_opened(enriched_node(), other, now=T + 1, pace=PACE)
    assert known.watched
    assert step(known, T + 2) == Look(("10.0.0.5",))


def test_a_look_that_was_under_way_when_the_watch_opened_is_made_again():
    known = looked.watch_opened(enriched_node(), contents(some_facts()), now=T + 5.1, pace=PACE)
    assert then_looked(known, began=T + 5.0, now=T + 5.3).due <= T + 5.6
    assert then_looked(known, began=T + 5.2, now=T + 5.3).due > T + 60


def test_a_booting_machine_takes_nothing_away():
    whole = some_facts(platform="hcloud", provider_id="hcloud://1", region="fsn1")
    known = then_said(then_looked(joined(), whole))
    after = then_looked(known, some_facts(platform="hcloud"), now=T + 1)
    assert after.fault is not None
    assert (after.fault.kind, after.fault.step) == ("not_found", "PlatformMetadata")
    assert after.last_known == whole


def test_a_new_machine_without_metadata_is_told_as_it_is_and_looked_at_again_soon():
    known = then_looked(joined(), some_facts(platform="hcloud"))
    assert known.due <= T + 1.0
    assert isinstance(step(known), Say)
    for _ in range(20):
        known = then_looked(known, some_facts(platform="hcloud"))
    assert T + 20 <= known.due <= T + 30


def test_another_stream_is_told_everything_again_with_the_facts_at_hand():
    known = knowledge.made_void(enriched_node())
    assert step(known) == Wait(knowledge.NEVER)
    known = then_observed(known, a_node(), sequence=1)
    found = step(known)
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeEnriched)
    assert found.event.observed_sequence == 1


def test_gone_is_said_once():
    known = then_gone(enriched_node())
    found = step(known)
    assert found == Say(
        EnrichedNodeGone(incarnation="2026-03-01T11:00:00Z", observed_sequence=9, name="web-1", uid="uid-1")
    )
    assert step(then_said(known)) == Done()
    refused = said.not_said(known, now=T, jitter=0.5)
    assert step(refused) == Wait(refused.say_after)


def test_after_a_tie_the_machine_is_looked_at_before_anything_is_said():
    known = then_looked(joined())
    found = step(known)
    assert isinstance(found, Say)
    tied = said.tied(known, found.event, now=T)
    assert step(tied) == Look(("10.0.0.5",))
    assert isinstance(step(then_looked(tied)), Say)


def test_what_another_metadata_said_is_corrected_by_a_good_look_only():
    wrong = some_facts(zone="wrong")
    known = enriched_node()
    assert isinstance(known.said, NodeEnriched)
    theirs = msgspec.structs.replace(known.said, facts=wrong)
    after = looked.looked_well(
        known, some_facts(), theirs, others=[], began=T + 300, now=T + 300, pace=PACE, jitter=0.5
    )
    assert isinstance(step(msgspec.structs.replace(after, repeat_due=knowledge.NEVER), T + 300), Say)


def test_facts_win_over_another_metadata_that_has_none():
    known = enriched_node()
    contradicted = looked.contradicted(known, now=T + 5, pace=PACE)
    assert step(contradicted, T + 5) == Look(("10.0.0.5",))
    blind = then_said(then_failed(joined()))
    assert looked.contradicted(blind, now=T + 5, pace=PACE) is blind


def test_facts_too_large_for_a_message_are_a_fault_of_the_machine():
    known = said.unsayable(then_looked(joined()), "300000 bytes, the limit is 262144", now=T, jitter=0.5)
    found = step(known)
    assert isinstance(found, Say)
    assert isinstance(found.event, NodeUnreachable)
    assert found.event.last_known is None
    assert "300000" in found.event.fault.message


FACTS = st.builds(
    some_facts,
    platform=st.sampled_from(["metal", "hcloud"]),
    node_name=st.sampled_from(["web-1", "web-1", "other", ""]),
    zone=st.sampled_from(["", "a"]),
    provider_id=st.sampled_from(["", "hcloud://1"]),
)
NODES = st.builds(
    a_node,
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


def after(known: Known, what: str, value: Any, *, sequence: int, now: float) -> Known:
    """One thing happens."""
    match what:
        case "observed":
            return then_observed(known, value, sequence=sequence, now=now)
        case "gone" if known.node is not None:
            return then_gone(known, sequence=sequence)
        case "void":
            return knowledge.made_void(known)
        case "changed":
            return looked.changed(known, now=now, pace=PACE)
        case "watch opened":
            return looked.watch_opened(known, contents(value), now=now, pace=PACE)
        case "watch ended":
            return looked.watch_ended(known, now=now, within=1.0)
        case "hurried":
            return looked.hurried(known, now=now, within=0.0)
        case _:
            return known


def spoken(known: Known, event: EnrichedNode, now: float, data: st.DataObject) -> Known:
    """The bus takes it, or does not; what is said is checked."""
    assert event.incarnation == known.observed.incarnation
    assert event.observed_sequence == known.sequence
    if isinstance(event, NodeEnriched):
        assert event.facts.node_name == event.node.name
        assert event.node == known.node
    if data.draw(st.booleans()):
        return said.said(known, event, now=now, pace=PACE, jitter=data.draw(JITTER))
    return said.not_said(known, now=now, jitter=data.draw(JITTER))


def settled(known: Known, now: float, data: st.DataObject) -> Known:
    """Take steps, without time passing, until there is nothing to do."""
    for _ in range(8):
        assert known.facts is None or known.fault is None
        match step(known, now):
            case Say(event=event):
                known = spoken(known, event, now, data)
            case Look(addresses=addresses):
                assert addresses
                facts = data.draw(st.none() | FACTS)
                known = (
                    then_looked(known, facts, began=now, now=now) if facts else then_failed(known, now=now)
                )
            case Wait(until=until):
                assert until > now
                return known
            case Done():
                assert known.node is None
                return known
    pytest.fail("it does not come to rest")


@given(HAPPENINGS, st.data())
def test_whatever_happens_it_comes_to_rest_and_has_said_what_it_knows(happenings, data):
    known, now = settled(joined(), T, data), T
    for sequence, (what, value) in enumerate(happenings, start=8):
        now += value if what == "later" else 0.0
        known = settled(after(known, what, value, sequence=sequence, now=now), now, data)
        if known.facts is not None and known.node is not None and not known.unsaid and not known.void:
            assert isinstance(known.said, NodeEnriched)
            assert same_facts(known.said.facts, known.facts)
            assert same_to_us(known.said.node, known.node)


ANOTHER = AnotherMachine(address="10.0.0.5", node_name="web-9", uuid=UUID, looked_at=NOW)
WRONG = MachineFault(kind="wrong_machine", step="Nodename", message="another answers")


def then_replaced(known: Known, *, now: float = T) -> Known:
    """Another machine answered in its place."""
    another = msgspec.structs.replace(ANOTHER, looked_at=NOW + timedelta(seconds=now - T))
    return looked.looked_badly(known, WRONG, began=now, now=now, jitter=0.5, answered_by=(another,))


def test_who_answers_in_its_place_is_said_anew_with_each_look_and_each_counts():
    known = then_said(then_replaced(joined()))
    assert isinstance(step(known, T), Wait)
    attempts = []
    now = T
    for _ in range(12):
        now = known.due
        assert isinstance(step(known, now), Look)
        known = then_replaced(known, now=now)
        found = step(known, now)
        assert isinstance(found, Say)
        assert isinstance(found.event, NodeUnreachable)
        assert found.event.answered_by[0].looked_at == NOW + timedelta(seconds=now - T)
        attempts.append(found.event.attempt)
        known = then_said(known, now)
        assert known.due - now <= 60.0, "three looks in ten minutes at least"
    assert attempts == list(range(2, 14))


@pytest.mark.parametrize(
    "contradict",
    [
        lambda known: then_failed(known, WRONG),
        lambda known: then_failed(known, TIMEOUT),
        then_looked,
        lambda known: then_observed(known, a_node(ip="10.0.0.6")),
        lambda known: then_observed(known, a_node(uid="another")),
        lambda known: then_observed(known, a_node(system_uuid=UUID)),
        lambda known: then_observed(
            known, a_node(addresses=(NodeAddress(type="InternalIP", address="10.1.0.5"),))
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
    assert known.answered_by == ()
    found = step(known)
    assert isinstance(found, Say | Look)
    if isinstance(found, Say) and isinstance(found.event, NodeUnreachable):
        assert found.event.answered_by == ()


def test_labels_that_change_do_not_take_back_who_answered():
    known = then_said(then_replaced(joined()))
    event = step(then_observed(known, a_node(labels={"a": "b"})))
    assert isinstance(event, Say)
    assert isinstance(event.event, NodeUnreachable)
    assert event.event.answered_by == (ANOTHER,)


def then_relabelled(known: Known, now: float) -> Known:
    assert known.node is not None
    metadata = msgspec.structs.replace(known.node.metadata, labels={"at": str(now)})
    node = msgspec.structs.replace(known.node, metadata=metadata)
    return then_observed(known, node, sequence=int(now), now=now)


def then_of_another_machine(known: Known, now: float) -> Known:
    node = a_node(system_uuid=f"{UUID[:-4]}{int(now)}")
    return then_observed(known, node, sequence=int(now), now=now)


LOOKS_AND_CHANGES: dict[str, Callable[[Known, float], Known]] = {
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
        event = known.said
        while isinstance(found := step(known, float(now)), Say):
            known, event = then_said(known, float(now)), found.event
        assert bool(known.answered_by) is holds
        if holds:
            assert isinstance(event, NodeUnreachable)
            assert event.answered_by == known.answered_by
        assert not (isinstance(event, NodeUnreachable) and event.answered_by and not holds)
