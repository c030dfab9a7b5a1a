"""What metadata knows of a request, and what follows: the whole decision without a network."""

from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import CsrEnriched, EnrichedCsrGone
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from services.metadata import node_state as nodes
from services.metadata import poll_transitions, request_state
from services.metadata.node_state import NEVER, NodeState
from services.metadata.node_step import ForgetObject, Wait
from services.metadata.poll_schedule import PollIntervals
from services.metadata.request_state import FRESHNESS_SECONDS, RequestState, is_superseded_by
from services.metadata.request_step import DialBack, PollNode, PublishCsr, RequestStep, decide_request_step
from tests.builders import (
    NOW,
    make_csr_enriched,
    make_csr_gone,
    make_csr_observed,
    make_facts,
    make_message,
    make_node,
    make_node_gone,
    make_node_observed,
    make_request,
)

PACE = PollIntervals()
T = 1000.0  # when the request is first heard of
TIMEOUT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer")


def a_known_node(*, ip: str = "10.0.0.5", uid: str = "uid-1", now: float = T) -> NodeState:
    """Not looked at yet."""
    event = make_node_observed(make_node(ip=ip, uid=uid))
    return nodes.create_state(make_message(event), event, None, republish_in=0.0, now=now, prefer_ipv6=False)


def looked_at(began: float = T, *, uid: str = "uid-1", facts: MachineFacts | None = None) -> NodeState:
    return poll_transitions.apply_poll_success(
        a_known_node(uid=uid, now=began),
        facts or make_facts(),
        None,
        all_nodes=[],
        began=began,
        now=began,
        intervals=PACE,
        jitter=0.5,
    )


def failed(began: float = T) -> NodeState:
    return poll_transitions.apply_poll_failure(
        a_known_node(now=began), TIMEOUT, began=began, now=began, jitter=0.5
    )


def asked(request: SigningRequest | None = None, *, sequence: int = 7, heard: Any = None) -> RequestState:
    event = make_csr_observed(request or make_request())
    return request_state.create_state(
        make_message(event, sequence=sequence), event, heard, republish_in=300.0, now=T
    )


def then_observed(known: RequestState, event: Any, *, sequence: int = 8, now: float = T) -> RequestState:
    return request_state.apply_observation(
        known, make_message(event, sequence=sequence), event, now=now, intervals=PACE
    )


def step(
    known: RequestState, node: NodeState | None, now: float = T, *, without_talos: bool = False
) -> RequestStep:
    at = NOW + timedelta(seconds=now - T)
    return decide_request_step(known, node, without_talos=without_talos, now=now, wall_time=at)


def told(known: RequestState, node: NodeState | None, now: float = T) -> CsrEnriched:
    found = step(known, node, now)
    assert isinstance(found, PublishCsr), found
    assert isinstance(found.event, CsrEnriched)
    return found.event


def then_said(known: RequestState, node: NodeState | None, now: float = T) -> RequestState:
    event = told(known, node, now)
    return request_state.apply_published(known, event, now=now, intervals=PACE, jitter=0.5)


def dialled(known: RequestState, node: NodeState, *addresses: str) -> RequestState:
    assert node.facts is not None
    known = request_state.apply_dial_started(known, node.facts, node.uid)
    return request_state.apply_dial_result(known, frozenset(addresses), again_at=NEVER)


def test_facts_of_a_look_that_is_no_older_than_allowed_are_said():
    event = told(asked(), looked_at(T - FRESHNESS_SECONDS))
    assert event.facts == make_facts()
    assert (event.node_uid, event.answering_addresses, event.observed_sequence) == ("uid-1", ("10.0.0.5",), 7)


def test_older_facts_are_not_said_but_looked_for_once():
    known, node = asked(), looked_at(T - FRESHNESS_SECONDS - 0.1)
    assert step(known, node) == PollNode()
    node = poll_transitions.expedite_poll(node, now=T, within=0.0)
    assert step(request_state.apply_poll_requested(known, now=T), node) == Wait(NEVER)


def test_under_a_live_watch_any_age_will_do_until_it_tells_of_a_change():
    node = msgspec.structs.replace(looked_at(T - 600.0), is_watched=True)
    assert told(asked(), node).facts == make_facts()
    changed = poll_transitions.apply_machine_change(node, now=T, intervals=PACE)
    assert step(asked(), changed) == Wait(NEVER), "the watch itself has one look again"


def test_a_fault_is_said_and_an_old_one_is_looked_into_first():
    event = told(asked(), failed())
    assert (event.fault, event.facts, event.answering_addresses) == (TIMEOUT, None, ())
    old = msgspec.structs.replace(failed(T - 40.0), next_poll_at=T + 20.0)
    assert step(asked(), old) == PollNode()
    assert told(asked(), poll_transitions.expedite_poll(old, now=T, within=0.0)).fault == TIMEOUT


def test_without_a_node_it_is_said_after_a_moment_that_there_is_none():
    assert step(asked(), None) == Wait(T + 1.0)
    event = told(asked(), None, T + 1.0)
    assert (event.facts, event.fault, event.node_uid) == (None, None, "")


def test_a_node_that_is_gone_is_none():
    event = make_node_gone(make_node())
    node = nodes.apply_observation(
        looked_at(),
        make_message(event, sequence=9),
        event,
        all_nodes=[],
        now=T,
        intervals=PACE,
        prefer_ipv6=False,
    )
    known = then_said(asked(), looked_at())
    assert told(known, node).facts is None


def test_a_node_that_is_being_looked_at_is_waited_for():
    assert step(asked(), a_known_node()) == Wait(NEVER)
    assert step(asked(), nodes.mark_stale(looked_at())) == Wait(NEVER)


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
    assert step(known, node) == Wait(known.republish_at)
    assert told(known, node, known.republish_at).facts == make_facts()


def test_another_node_of_the_name_is_said_anew():
    known = then_said(asked(), looked_at())
    assert told(known, looked_at(T + 1.0, uid="uid-2"), T + 1.0).node_uid == "uid-2"


def test_a_second_look_that_saw_the_same_is_not_said():
    known = then_said(asked(), looked_at())
    later = looked_at(T + 5.0, facts=make_facts(queried_at=NOW + timedelta(seconds=5)))
    assert isinstance(step(known, later, T + 5.0), DialBack)
    assert not isinstance(step(dialled(known, later), later, T + 5.0), PublishCsr)


def test_a_machine_that_nobody_watches_is_looked_after_while_a_request_stays_undecided():
    node = looked_at()
    known = dialled(then_said(asked(), node), node)
    assert step(known, node, known.next_poll_request_at) == PollNode()
    again = request_state.apply_poll_requested(known, now=known.next_poll_request_at)
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
    known = msgspec.structs.replace(known, republish_at=T + 4.0)
    for now in (T + 4.0, T + 8.0):
        event = told(known, node, now)
        known = request_state.apply_published(known, event, now=now, intervals=pace, jitter=0.0)
        assert known.republish_at == now + 4.0
    assert known.next_poll_request_at == owed
    assert step(known, node, owed) == PollNode()


def test_what_is_decided_is_done_and_what_is_gone_is_said():
    approved = make_csr_observed(make_request(conditions=(SigningRequestCondition(type="Approved"),)))
    assert step(then_observed(asked(), approved), looked_at()) == ForgetObject()
    ended = then_observed(then_said(asked(), looked_at()), make_csr_gone(make_request()))
    found = step(ended, None)
    assert isinstance(found, PublishCsr)
    assert isinstance(found.event, EnrichedCsrGone)
    assert (
        step(request_state.apply_published(ended, found.event, now=T, intervals=PACE, jitter=0.5), None)
        == ForgetObject()
    )


def test_another_request_of_the_same_name_is_heard_of_anew():
    known = then_said(asked(), looked_at())
    other = then_observed(known, make_csr_observed(make_request(uid="csr-uid-2")), now=T + 60.0)
    assert (other.first_seen_at, other.uid, other.published) == (T + 60.0, "csr-uid-2", known.published)
    assert step(other, looked_at(), T + 60.0) == PollNode()


def test_an_old_word_of_the_watcher_changes_nothing():
    known = asked(sequence=9)
    assert then_observed(known, make_csr_observed(make_request(usages=())), sequence=8) is known


def test_in_another_stream_all_is_said_again_once_the_request_is_named():
    known = request_state.mark_stale(then_said(asked(), looked_at()))
    assert step(known, looked_at()) == Wait(NEVER)
    known = then_observed(known, make_csr_observed(make_request()), sequence=1)
    assert told(known, looked_at()).observed_sequence == 1
    assert known.fresh_from == T - FRESHNESS_SECONDS


def test_without_talos_nothing_is_asked_of_anybody():
    found = step(asked(), None, without_talos=True)
    assert isinstance(found, PublishCsr)
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
    known = request_state.apply_oversized_message(asked(), told(asked(), node))
    fault = told(known, node).fault
    assert fault is not None
    assert fault.kind == "invalid"
    assert step(request_state.apply_oversized_message(known, told(known, node)), node) == Wait(NEVER)


def test_a_refusal_of_the_bus_is_retried_with_back_off_and_at_once_when_it_is_back():
    known = request_state.apply_publish_failure(asked(), now=T, jitter=1.0)
    assert step(known, looked_at()) == Wait(T + 0.5)
    known = request_state.apply_bus_reconnect(known, now=T, jitter=0.0)
    assert told(known, looked_at()).facts is not None


def test_on_a_tie_whoever_has_facts_is_right():
    mine = told(asked(), looked_at())
    blind = make_csr_enriched(make_request(), fault=TIMEOUT, node_uid="uid-1")
    right = request_state.apply_publish_conflict(asked(), mine, blind, now=T)
    assert told(right, looked_at()).facts is not None
    silent = request_state.apply_publish_conflict(asked(), blind, mine, now=T)
    assert silent.published == blind
    same = request_state.apply_publish_conflict(
        asked(), mine, msgspec.structs.replace(mine, enriched_at=NOW), now=T
    )
    assert same.published == mine


def test_on_a_tie_of_different_facts_one_looks_again_before_it_speaks():
    mine = told(asked(), looked_at())
    theirs = msgspec.structs.replace(mine, facts=make_facts(zone="b"))
    known = request_state.apply_publish_conflict(asked(), mine, theirs, now=T + 1.0)
    assert step(known, looked_at(), T + 1.0) == PollNode()
    assert told(known, looked_at(T + 1.0), T + 1.0).facts == make_facts()


def test_a_lesser_word_of_somebody_else_is_answered_and_a_better_one_is_left():
    known = then_said(asked(), looked_at())
    lesser = make_csr_enriched(make_request())
    assert told(request_state.apply_stored(known, lesser), looked_at()).facts is not None
    blind = then_said(asked(), failed())
    better = make_csr_enriched(make_request(), facts=make_facts())
    assert request_state.apply_stored(blind, better) is blind


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
        case PublishCsr(event=CsrEnriched(facts=MachineFacts())):
            assert node.polled_at >= T - FRESHNESS_SECONDS or (
                node.is_watched and node.machine_changed_at < node.polled_at
            )
        case PollNode():
            asked_for = poll_transitions.expedite_poll(node, now=now, within=0.0)
            assert step(request_state.apply_poll_requested(known, now=now), asked_for, now) != PollNode()
        case Wait(until=until):
            assert until > now


# ---- the newest request of a requester


def first_heard(name: str, version: int, **options: Any) -> RequestState:
    request = make_request(name, uid=name, resource_version=str(version), **options)
    event = make_csr_observed(request)
    return request_state.create_state(make_message(event), event, None, republish_in=0.0, now=T)


def test_of_two_pending_requests_of_a_node_the_one_of_the_lower_version_is_older():
    one, other = first_heard("csr-1", 100), first_heard("csr-2", 101)
    assert is_superseded_by(one, other)
    assert not is_superseded_by(other, one)
    assert not is_superseded_by(one, one)


def test_a_request_is_older_only_for_certain():
    later = NOW + timedelta(seconds=5)
    assert not is_superseded_by(first_heard("csr-1", 100, created=later), first_heard("csr-2", 101)), "clocks"
    assert not is_superseded_by(first_heard("csr-1", 100), first_heard("csr-2", 100)), "no order"
    assert not is_superseded_by(first_heard("csr-1", 100), first_heard("csr-2", 101, node="web-2"))
    assert not is_superseded_by(first_heard("csr-1", 100), first_heard("csr-2", 101, groups=()))
    decided = (SigningRequestCondition(type="Denied"),)
    assert not is_superseded_by(first_heard("csr-1", 100), first_heard("csr-2", 101, conditions=decided))
    assert not is_superseded_by(
        first_heard("csr-1", 100), request_state.mark_stale(first_heard("csr-2", 101))
    )


def test_a_request_that_was_written_to_after_the_newer_one_came_is_not_older_for_certain():
    written = make_csr_observed(make_request("csr-1", uid="csr-1", resource_version="102"))
    one = request_state.apply_observation(
        first_heard("csr-1", 100), make_message(written, sequence=9), written, now=T, intervals=PACE
    )
    assert not is_superseded_by(one, first_heard("csr-2", 101))
