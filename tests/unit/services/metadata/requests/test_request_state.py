"""What metadata knows of a request, and what follows: the whole decision without a network."""

from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsrGone
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from services.metadata.nodes.node_state import NodeState
from services.metadata.object_state import NEVER, ForgetObject, Publication, Publish, Wait, make_observation
from services.metadata.poll_schedule import PollIntervals, Timing
from services.metadata.requests.request_state import FRESHNESS_SECONDS, RequestState, create_state
from services.metadata.requests.request_step import DialBack, PollNode, RequestStep, decide_request_step
from tests.builders import (
    NOW,
    make_csr_enriched,
    make_csr_gone,
    make_csr_observed,
    make_facts,
    make_message,
    make_node,
    make_request,
)
from tests.unit.services.metadata.nodes.test_node_state import at, joined, then_failed, then_gone, then_looked

PACE = PollIntervals()
T = 1000.0  # when the request is first heard of
TIMEOUT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer")


def a_known_node(*, ip: str = "10.0.0.5", uid: str = "uid-1", now: float = T) -> NodeState:
    """Not looked at yet."""
    return joined(make_node(ip=ip, uid=uid), now=now)


def looked_at(began: float = T, *, uid: str = "uid-1", facts: MachineFacts | None = None) -> NodeState:
    return then_looked(a_known_node(uid=uid, now=began), facts, began=began, now=began)


def failed(began: float = T) -> NodeState:
    return then_failed(a_known_node(now=began), TIMEOUT, now=began)


def asked(request: SigningRequest | None = None, *, sequence: int = 7, heard: Any = None) -> RequestState:
    event: CsrObserved | CsrGone = make_csr_observed(request or make_request())
    observation = make_observation(make_message(event, sequence=sequence), event)
    return create_state(observation, Publication(event=heard, republish_at=T + 300.0), now=T)


def then_observed(known: RequestState, event: Any, *, sequence: int = 8, now: float = T) -> RequestState:
    return known.observed(make_message(event, sequence=sequence), event, at(now))


def step(
    known: RequestState, node: NodeState | None, now: float = T, *, without_talos: bool = False
) -> RequestStep:
    wall_time = NOW + timedelta(seconds=now - T)
    return decide_request_step(known, node, without_talos=without_talos, now=now, wall_time=wall_time)


def told(known: RequestState, node: NodeState | None, now: float = T) -> CsrEnriched:
    found = step(known, node, now)
    assert isinstance(found, Publish), found
    assert isinstance(found.event, CsrEnriched)
    return found.event


def then_said(known: RequestState, node: NodeState | None, now: float = T) -> RequestState:
    event = told(known, node, now)
    return known.published(event, at(now))


def dialled(known: RequestState, node: NodeState, *addresses: str) -> RequestState:
    assert node.facts is not None
    known = known.dial_started(node.facts, node.uid)
    return known.dialled(frozenset(addresses), again_at=NEVER)


def test_facts_of_a_look_that_is_no_older_than_allowed_are_said():
    event = told(asked(), looked_at(T - FRESHNESS_SECONDS))
    assert event.facts == make_facts()
    assert (event.node_uid, event.answering_addresses, event.observed_sequence) == ("uid-1", ("10.0.0.5",), 7)


def test_older_facts_are_not_said_but_looked_for_once():
    known, node = asked(), looked_at(T - FRESHNESS_SECONDS - 0.1)
    assert step(known, node) == PollNode()
    node = node.poll_within(0.0, now=T)
    assert step(known.poll_requested(now=T), node) == Wait(NEVER)


def test_under_a_live_watch_any_age_will_do_until_it_tells_of_a_change():
    node = msgspec.structs.replace(looked_at(T - 600.0), is_watched=True)
    assert told(asked(), node).facts == make_facts()
    changed = node.machine_changed(now=T, intervals=PACE)
    assert step(asked(), changed) == Wait(NEVER), "the watch itself has one look again"


def test_a_fault_is_said_and_an_old_one_is_looked_into_first():
    event = told(asked(), failed())
    assert (event.fault, event.facts, event.answering_addresses) == (TIMEOUT, None, ())
    old = msgspec.structs.replace(failed(T - 40.0), next_poll_at=T + 20.0)
    assert step(asked(), old) == PollNode()
    assert told(asked(), old.poll_within(0.0, now=T)).fault == TIMEOUT


def test_without_a_node_it_is_said_after_a_moment_that_there_is_none():
    assert step(asked(), None) == Wait(T + 1.0)
    event = told(asked(), None, T + 1.0)
    assert (event.facts, event.fault, event.node_uid) == (None, None, "")


def test_a_node_that_is_gone_is_none():
    node = then_gone(looked_at())
    known = then_said(asked(), looked_at())
    assert told(known, node).facts is None


def test_a_node_that_is_being_looked_at_is_waited_for():
    assert step(asked(), a_known_node()) == Wait(NEVER)
    assert step(asked(), looked_at().stream_replaced()) == Wait(NEVER)


def test_a_node_that_no_look_will_ever_reach_is_a_fault():
    fault = told(asked(), a_known_node(ip="")).fault
    assert fault is not None
    assert fault.kind == "bad_node_ip"
    fault = told(asked(), a_known_node(ip="127.0.0.1")).fault
    assert fault is not None
    assert "loopback" in fault.message


def test_the_same_is_said_once_and_again_before_the_stream_forgets():
    node = looked_at()
    known = dialled(then_said(asked(), node), node)
    later = step(known, node)
    assert isinstance(later, Wait)
    assert later.until == known.next_poll_request_at
    known = msgspec.structs.replace(known, next_poll_request_at=NEVER)
    assert step(known, node) == Wait(known.publication.republish_at)
    assert told(known, node, known.publication.republish_at).facts == make_facts()


def test_another_node_of_the_name_is_said_anew():
    known = then_said(asked(), looked_at())
    assert told(known, looked_at(T + 1.0, uid="uid-2"), T + 1.0).node_uid == "uid-2"


def test_a_second_look_that_saw_the_same_is_not_said():
    known = then_said(asked(), looked_at())
    later = looked_at(T + 5.0, facts=make_facts(queried_at=NOW + timedelta(seconds=5)))
    assert isinstance(step(known, later, T + 5.0), DialBack)
    assert not isinstance(step(dialled(known, later), later, T + 5.0), Publish)


def test_a_machine_that_nobody_watches_is_looked_after_while_a_request_stays_undecided():
    node = looked_at()
    known = dialled(then_said(asked(), node), node)
    assert step(known, node, known.next_poll_request_at) == PollNode()
    again = known.poll_requested(now=known.next_poll_request_at)
    assert again.next_poll_request_at - known.next_poll_request_at == 20.0
    assert not isinstance(
        step(known, msgspec.structs.replace(node, is_watched=True), known.next_poll_request_at), PollNode
    )


def test_a_repetition_puts_off_no_look_that_a_waiting_request_is_owed():
    """csr needs the repetition, and the request may wait for an address that the machine has by now."""
    pace = PollIntervals(republish=5.0)
    node = looked_at()
    known = dialled(then_said(asked(), node), node)
    owed = known.next_poll_request_at
    publication = msgspec.structs.replace(known.publication, republish_at=T + 4.0)
    known = msgspec.structs.replace(known, publication=publication)
    for now in (T + 4.0, T + 8.0):
        event = told(known, node, now)
        known = known.published(event, Timing(now=now, jitter=0.0, intervals=pace))
        assert known.publication.republish_at == now + 4.0
    assert known.next_poll_request_at == owed
    assert step(known, node, owed) == PollNode()


def test_what_is_decided_is_done_and_what_is_gone_is_said():
    approved = make_csr_observed(make_request(conditions=(SigningRequestCondition(type="Approved"),)))
    assert step(then_observed(asked(), approved), looked_at()) == ForgetObject()
    ended = then_observed(then_said(asked(), looked_at()), make_csr_gone(make_request()))
    found = step(ended, None)
    assert isinstance(found, Publish)
    assert isinstance(found.event, EnrichedCsrGone)
    assert step(ended.published(found.event, at(T)), None) == ForgetObject()


def test_another_request_of_the_same_name_is_heard_of_anew():
    known = then_said(asked(), looked_at())
    other = then_observed(known, make_csr_observed(make_request(uid="csr-uid-2")), now=T + 60.0)
    assert (other.first_seen_at, other.uid, other.publication.event) == (
        T + 60.0,
        "csr-uid-2",
        known.publication.event,
    )
    assert step(other, looked_at(), T + 60.0) == PollNode()


def test_an_old_word_of_the_watcher_changes_nothing():
    known = asked(sequence=9)
    assert then_observed(known, make_csr_observed(make_request(usages=())), sequence=8) is known


def test_in_another_stream_all_is_said_again_once_the_request_is_named():
    known = then_said(asked(), looked_at()).stream_replaced()
    assert step(known, looked_at()) == Wait(NEVER)
    known = then_observed(known, make_csr_observed(make_request()), sequence=1)
    assert told(known, looked_at()).observed_sequence == 1
    assert known.fresh_from == T - FRESHNESS_SECONDS


def test_without_talos_nothing_is_asked_of_anybody():
    found = step(asked(), None, without_talos=True)
    assert isinstance(found, Publish)
    assert isinstance(found.event, CsrEnriched)
    assert found.event.without_talos


def test_where_the_own_machine_answered_is_said_as_well():
    node = looked_at()
    known = then_said(asked(), node)
    assert isinstance(step(known, node), DialBack)
    assert told(dialled(known, node, "10.9.0.5"), node).answering_addresses == ("10.0.0.5", "10.9.0.5")


def test_where_a_former_node_of_the_name_answered_says_nothing_of_this_one():
    known = dialled(then_said(asked(), looked_at()), looked_at(), "10.9.0.5")
    assert told(known, looked_at(T + 1.0, uid="uid-2"), T + 1.0).answering_addresses == ("10.0.0.5",)


def test_a_machine_recognized_by_its_uuid_has_answered_nowhere():
    uuid = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
    node = msgspec.structs.replace(looked_at(), facts=make_facts(node_name="other", uuid=uuid))
    assert told(asked(), node).answering_addresses == ()


def test_facts_that_make_the_message_too_large_are_a_fault():
    node = looked_at()
    known = asked().message_oversized(told(asked(), node))
    fault = told(known, node).fault
    assert fault is not None
    assert fault.kind == "invalid"
    assert step(known.message_oversized(told(known, node)), node) == Wait(NEVER)


def test_a_refusal_of_the_bus_is_retried_with_back_off_and_at_once_when_it_is_back():
    known = asked().publish_failed(at(T, 1.0))
    assert step(known, looked_at()) == Wait(T + 0.5)
    known = known.bus_reconnected(at(T, 0.0))
    assert told(known, looked_at()).facts is not None


def test_on_a_tie_whoever_has_facts_is_right():
    mine = told(asked(), looked_at())
    blind = make_csr_enriched(make_request(), fault=TIMEOUT, node_uid="uid-1")
    right = asked().publish_conflicted(mine, blind, now=T)
    assert told(right, looked_at()).facts is not None
    silent = asked().publish_conflicted(blind, mine, now=T)
    assert silent.publication.event == blind
    same = asked().publish_conflicted(mine, msgspec.structs.replace(mine, enriched_at=NOW), now=T)
    assert same.publication.event == mine


def test_on_a_tie_of_different_facts_one_looks_again_before_it_speaks():
    mine = told(asked(), looked_at())
    theirs = msgspec.structs.replace(mine, facts=make_facts(zone="b"))
    known = asked().publish_conflicted(mine, theirs, now=T + 1.0)
    assert step(known, looked_at(), T + 1.0) == PollNode()
    assert told(known, looked_at(T + 1.0), T + 1.0).facts == make_facts()


def test_a_lesser_word_of_somebody_else_is_answered_and_a_better_one_is_left():
    known = then_said(asked(), looked_at())
    lesser = make_csr_enriched(make_request())
    assert told(known.stored(lesser), looked_at()).facts is not None
    blind = then_said(asked(), failed())
    better = make_csr_enriched(make_request(), facts=make_facts())
    assert blind.stored(better) is blind


moments = st.floats(min_value=-100.0, max_value=100.0).map(lambda offset: T + offset)


@st.composite
def any_node(draw: st.DrawFn) -> NodeState:
    """With facts or a fault of some age, watched or not, due or not."""
    began = draw(moments)
    return msgspec.structs.replace(
        looked_at(began) if draw(st.booleans()) else failed(began),
        next_poll_at=draw(moments),
        machine_changed_at=draw(moments),
        is_watched=draw(st.booleans()),
    )


@given(any_node(), st.booleans(), moments, moments, st.floats(min_value=T, max_value=T + 1000.0))
def test_nothing_stale_is_ever_said_and_no_wait_ends_before_it_began(node, has_said, look_due, dial_due, now):
    known = then_said(asked(), looked_at()) if has_said else asked()
    known = msgspec.structs.replace(
        known, next_poll_request_at=look_due, next_dial_at=dial_due, dialled_facts=node.facts
    )
    match step(known, node, now):
        case Publish(event=CsrEnriched(facts=MachineFacts())):
            assert node.polled_at >= T - FRESHNESS_SECONDS or (
                node.is_watched and node.machine_changed_at < node.polled_at
            )
        case PollNode():
            asked_for = node.poll_within(0.0, now=now)
            assert step(known.poll_requested(now=now), asked_for, now) != PollNode()
        case Wait(until=until):
            assert until > now


# ---- the newest request of a requester


def first_heard(name: str, version: int, **options: Any) -> RequestState:
    request = make_request(name, uid=name, resource_version=str(version), **options)
    event: CsrObserved | CsrGone = make_csr_observed(request)
    return create_state(make_observation(make_message(event), event), Publication(republish_at=T), now=T)


def test_of_two_pending_requests_of_a_node_the_one_of_the_lower_version_is_older():
    one, other = first_heard("csr-1", 100), first_heard("csr-2", 101)
    assert one.is_superseded_by(other)
    assert not other.is_superseded_by(one)
    assert not one.is_superseded_by(one)


def test_a_request_is_older_only_for_certain():
    later = NOW + timedelta(seconds=5)
    assert not first_heard("csr-1", 100, created=later).is_superseded_by(first_heard("csr-2", 101)), "clocks"
    assert not first_heard("csr-1", 100).is_superseded_by(first_heard("csr-2", 100)), "no order"
    assert not first_heard("csr-1", 100).is_superseded_by(first_heard("csr-2", 101, node="web-2"))
    assert not first_heard("csr-1", 100).is_superseded_by(first_heard("csr-2", 101, groups=()))
    decided = (SigningRequestCondition(type="Denied"),)
    assert not first_heard("csr-1", 100).is_superseded_by(first_heard("csr-2", 101, conditions=decided))
    assert not first_heard("csr-1", 100).is_superseded_by(first_heard("csr-2", 101).stream_replaced())


def test_a_request_that_was_written_to_after_the_newer_one_came_is_not_older_for_certain():
    written = make_csr_observed(make_request("csr-1", uid="csr-1", resource_version="102"))
    one = then_observed(first_heard("csr-1", 100), written, sequence=9)
    assert not one.is_superseded_by(first_heard("csr-2", 101))
