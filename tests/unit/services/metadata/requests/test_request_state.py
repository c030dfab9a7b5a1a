"""The state of one request and its next step, without a network."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from libs.common.contract.events import CsrEnriched, CsrGone, CsrObserved
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from services.metadata.core.node_state import NodeState
from services.metadata.core.object_state import (
    NEVER,
    PollIntervals,
    Publication,
    Publish,
    Timing,
    Wait,
    make_observation,
)
from services.metadata.core.request_state import FRESHNESS_SECONDS, RequestState, create_state
from services.metadata.core.request_step import (
    FACTS_SECONDS,
    DialBack,
    PollNode,
    RequestStep,
    decide_request_step,
)
from tests.builders import (
    NOW,
    make_csr_enriched,
    make_csr_observed,
    make_facts,
    make_message,
    make_node,
    make_request,
)
from tests.metadata_csr_flow import make_request_pem
from tests.unit.services.metadata.nodes.test_node_state import at, joined, then_failed, then_gone, then_polled

INTERVALS = PollIntervals()
T = 1000.0  # when the request is first received
TIMEOUT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer")


def a_known_node(*, ip: str = "10.0.0.5", uid: str = "uid-1", now: float = T) -> NodeState:
    """A Node without a poll."""
    return joined(make_node(ip=ip, uid=uid), now=now)


def polled_node(began: float = T, *, uid: str = "uid-1", facts: MachineFacts | None = None) -> NodeState:
    return then_polled(a_known_node(uid=uid, now=began), facts, began=began, now=began)


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


def then_published(known: RequestState, node: NodeState | None, now: float = T) -> RequestState:
    event = told(known, node, now)
    return known.published(event, at(now))


def dialled(known: RequestState, node: NodeState, *addresses: str) -> RequestState:
    assert node.facts is not None
    known = known.dial_started(node.facts, node.uid)
    return known.dialled(frozenset(addresses), again_at=NEVER)


def test_older_facts_are_not_published_but_polled_once():
    known, node = asked(), polled_node(T - FRESHNESS_SECONDS - 0.1)
    assert step(known, node) == PollNode()
    node = node.poll_within(0.0, at(T))
    assert step(known.poll_requested(now=T), node) == Wait(NEVER)


def test_facts_of_any_age_are_published_under_a_live_watch_without_changes():
    node = msgspec.structs.replace(polled_node(T - 600.0), is_watched=True)
    assert told(asked(), node).facts == make_facts()
    changed = node.machine_changed(at(T))
    assert step(asked(), changed) == Wait(NEVER), "the watch itself causes a poll"


def test_a_recent_fault_is_published_and_an_old_one_is_polled_first():
    event = told(asked(), failed())
    assert (event.fault, event.facts, event.answering_addresses) == (TIMEOUT, None, ())
    old = msgspec.structs.replace(failed(T - 40.0), next_poll_at=T + 20.0)
    assert step(asked(), old) == PollNode()
    assert told(asked(), old.poll_within(0.0, at(T))).fault == TIMEOUT


def test_a_request_without_a_node_is_published_after_a_second():
    assert step(asked(), None) == Wait(T + 1.0)
    event = told(asked(), None, T + 1.0)
    assert (event.facts, event.fault, event.node_uid) == (None, None, "")


def test_a_node_that_is_gone_attests_nothing():
    node = then_gone(polled_node())
    known = then_published(asked(), polled_node())
    assert told(known, node).facts is None


def test_a_request_waits_for_the_poll_in_progress():
    assert step(asked(), a_known_node()) == Wait(NEVER)
    assert step(asked(), polled_node().stream_replaced()) == Wait(NEVER)


def test_a_node_that_is_never_dialled_is_a_fault():
    fault = told(asked(), a_known_node(ip="")).fault
    assert fault is not None
    assert fault.kind == "bad_node_ip"
    fault = told(asked(), a_known_node(ip="127.0.0.1")).fault
    assert fault is not None
    assert "loopback" in fault.message


def test_an_unchanged_message_is_published_once_and_again_before_it_expires():
    node = polled_node()
    known = dialled(then_published(asked(), node), node)
    later = step(known, node)
    assert isinstance(later, Wait)
    assert later.until == known.next_poll_request_at
    known = msgspec.structs.replace(known, next_poll_request_at=NEVER)
    assert step(known, node) == Wait(known.publication.republish_at)
    assert told(known, node, known.publication.republish_at).facts == make_facts()


# One address is on the machine of `polled_node`, and one is not.
WAITING = make_request(pem=make_request_pem("10.0.0.5", "10.0.0.6"))


def test_an_unwatched_machine_is_polled_while_a_request_waits_for_its_address():
    node = polled_node()
    known = dialled(then_published(asked(WAITING), node), node)
    assert step(known, node, known.next_poll_request_at) == PollNode()
    again = known.poll_requested(now=known.next_poll_request_at)
    assert again.next_poll_request_at - known.next_poll_request_at == 20.0
    assert not isinstance(
        step(known, msgspec.structs.replace(node, is_watched=True), known.next_poll_request_at), PollNode
    )


def test_a_machine_that_reports_what_a_request_needs_is_polled_again_only_after_a_minute():
    node = polled_node()
    known = dialled(then_published(asked(make_request(pem=make_request_pem("10.0.0.5"))), node), node)
    due = known.next_poll_request_at
    assert step(known, node, due) == Wait(min(known.publication.republish_at, T + FACTS_SECONDS))
    assert step(known, node, T + FACTS_SECONDS) == PollNode()
    for facts in (make_facts(addresses=()), make_facts(node_name="web-2", uuid="u-1")):
        changed = msgspec.structs.replace(node, facts=facts)
        again = dialled(then_published(known, changed, due - 1.0), changed)
        assert step(again, changed, again.next_poll_request_at) == PollNode()


def test_a_republish_does_not_delay_the_next_requested_poll():
    """csr needs the republished message, and the request may wait for an address that the machine has now."""
    pace = PollIntervals(republish=5.0)
    node = polled_node()
    known = dialled(then_published(asked(WAITING), node), node)
    owed = known.next_poll_request_at
    publication = msgspec.structs.replace(known.publication, republish_at=T + 4.0)
    known = msgspec.structs.replace(known, publication=publication)
    for now in (T + 4.0, T + 8.0):
        event = told(known, node, now)
        known = known.published(event, Timing(now=now, jitter=0.0, intervals=pace))
        assert known.publication.republish_at == now + 4.0
    assert known.next_poll_request_at == owed
    assert step(known, node, owed) == PollNode()


def test_another_request_with_the_same_name_starts_a_new_state():
    known = then_published(asked(), polled_node())
    other = then_observed(known, make_csr_observed(make_request(uid="csr-uid-2")), now=T + 60.0)
    assert (other.first_seen_at, other.uid, other.publication.event) == (
        T + 60.0,
        "csr-uid-2",
        known.publication.event,
    )
    assert step(other, polled_node(), T + 60.0) == PollNode()


def test_an_older_observation_changes_nothing():
    known = asked(sequence=9)
    assert then_observed(known, make_csr_observed(make_request(usages=())), sequence=8) is known


def test_a_new_stream_gets_the_message_once_it_has_the_request():
    known = then_published(asked(), polled_node()).stream_replaced()
    assert step(known, polled_node()) == Wait(NEVER)
    known = then_observed(known, make_csr_observed(make_request()), sequence=1)
    assert told(known, polled_node()).observed_sequence == 1
    assert known.fresh_from == T - FRESHNESS_SECONDS


def test_addresses_at_which_the_nodes_machine_answers_are_published():
    node = polled_node()
    known = then_published(asked(), node)
    assert isinstance(step(known, node), DialBack)
    assert told(dialled(known, node, "10.9.0.5"), node).answering_addresses == ("10.0.0.5", "10.9.0.5")


def test_answers_of_a_former_node_with_the_name_do_not_count():
    known = dialled(then_published(asked(), polled_node()), polled_node(), "10.9.0.5")
    event = told(known, polled_node(T + 1.0, uid="uid-2"), T + 1.0)
    assert (event.node_uid, event.answering_addresses) == ("uid-2", ("10.0.0.5",))


def test_answers_of_a_machine_verified_by_uuid_do_not_count():
    uuid = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
    node = msgspec.structs.replace(polled_node(), facts=make_facts(node_name="other", uuid=uuid))
    assert told(asked(), node).answering_addresses == ()


def test_facts_that_make_the_message_too_large_are_a_fault():
    node = polled_node()
    known = asked().message_oversized(told(asked(), node))
    fault = told(known, node).fault
    assert fault is not None
    assert fault.kind == "invalid"
    assert step(known.message_oversized(told(known, node)), node) == Wait(NEVER)


def test_a_failed_publish_is_retried_with_back_off_and_at_once_after_a_reconnect():
    known = asked()
    known = replace(known, publication=known.publication.failed(at(T, 1.0)))
    assert step(known, polled_node()) == Wait(T + 0.5)
    known = replace(known, publication=known.publication.reconnected(at(T, 0.0)))
    assert told(known, polled_node()).facts is not None


def test_facts_are_published_again_after_a_fault_whose_acknowledgement_was_lost():
    node = polled_node()
    known = dialled(then_published(asked(), node), node)
    refused = replace(known, publication=known.publication.failed(at(T)))  # perhaps the stream has the fault
    assert told(refused, node, refused.publication.retry_at).facts is not None


def test_the_message_with_facts_wins_a_tie():
    mine = told(asked(), polled_node())
    blind = make_csr_enriched(make_request(), fault=TIMEOUT, node_uid="uid-1")
    right = asked().published(mine, at(T)).publish_conflicted(blind, now=T)
    assert told(right, polled_node()).facts is not None
    silent = asked().published(blind, at(T)).publish_conflicted(mine, now=T)
    assert silent.publication.event == blind
    again = msgspec.structs.replace(mine, enriched_at=NOW)
    same = asked().published(mine, at(T)).publish_conflicted(again, now=T)
    assert same.publication.event == mine


def test_a_tie_of_different_facts_causes_a_poll():
    mine = told(asked(), polled_node())
    theirs = msgspec.structs.replace(mine, facts=make_facts(zone="b"))
    known = asked().published(mine, at(T)).publish_conflicted(theirs, now=T + 1.0)
    assert step(known, polled_node(), T + 1.0) == PollNode()
    assert told(known, polled_node(T + 1.0), T + 1.0).facts == make_facts()


def test_a_message_with_less_data_is_replaced_and_one_with_more_is_kept():
    known = then_published(asked(), polled_node())
    lesser = make_csr_enriched(make_request())
    assert told(known.stored(lesser), polled_node()).facts is not None
    blind = then_published(asked(), failed())
    better = make_csr_enriched(make_request(), facts=make_facts())
    assert blind.stored(better) is blind


def test_a_message_that_the_stream_has_lost_is_published_again():
    node = polled_node()
    known = dialled(then_published(asked(), node), node)
    assert isinstance(step(known, node), Wait)
    assert told(known.stored(None), node).facts is not None
    # another replica's message has expired meanwhile
    assert told(known.publish_conflicted(None, now=T), node).facts is not None


moments = st.floats(min_value=-100.0, max_value=100.0).map(lambda offset: T + offset)


@st.composite
def any_node(draw: st.DrawFn) -> NodeState:
    """A Node with facts or a fault of some age, watched or not, due or not."""
    began = draw(moments)
    return msgspec.structs.replace(
        polled_node(began) if draw(st.booleans()) else failed(began),
        next_poll_at=draw(moments),
        machine_changed_at=draw(moments),
        is_watched=draw(st.booleans()),
    )


@given(any_node(), st.booleans(), moments, moments, st.floats(min_value=T, max_value=T + 1000.0))
def test_stale_facts_are_never_published_and_no_wait_ends_in_the_past(
    node, has_said, look_due, dial_due, now
):
    known = then_published(asked(), polled_node()) if has_said else asked()
    known = msgspec.structs.replace(
        known, next_poll_request_at=look_due, next_dial_at=dial_due, dialled_facts=node.facts
    )
    match step(known, node, now):
        case Publish(event=CsrEnriched(facts=MachineFacts())):
            assert node.polled_at >= T - FRESHNESS_SECONDS or (
                node.is_watched and node.machine_changed_at < node.polled_at
            )
        case PollNode():
            asked_for = node.poll_within(0.0, at(now))
            assert step(known.poll_requested(now=now), asked_for, now) != PollNode()
        case Wait(until=until):
            assert until > now


# ---- the newest request of a requester


def first_heard(name: str, version: int, **options: Any) -> RequestState:
    request = make_request(name, uid=name, resource_version=str(version), **options)
    event: CsrObserved | CsrGone = make_csr_observed(request)
    return create_state(make_observation(make_message(event), event), Publication(republish_at=T), now=T)


@pytest.mark.parametrize(
    ("other", "is_superseded"),
    [
        (first_heard("csr-2", 101), True),
        (first_heard("csr-1", 100), False),
        (first_heard("csr-2", 99), False),
        (first_heard("csr-2", 101, created=NOW - timedelta(hours=1)), False),
        (first_heard("csr-2", 100), False),
        (first_heard("csr-2", 101, node="web-2"), False),
        (first_heard("csr-2", 101, groups=()), False),
        (first_heard("csr-2", 101, conditions=(SigningRequestCondition(type="Denied"),)), False),
        (first_heard("csr-2", 101).stream_replaced(), False),
    ],
    ids=["newer", "itself", "older", "clocks", "no order", "Node", "requester", "decided", "stale"],
)
def test_only_a_newer_pending_request_of_the_requester_supersedes(other: RequestState, is_superseded: bool):
    assert first_heard("csr-1", 100).is_superseded_by(other) is is_superseded


def test_a_request_written_after_the_newer_one_arrived_is_not_superseded():
    written = make_csr_observed(make_request("csr-1", uid="csr-1", resource_version="102"))
    one = then_observed(first_heard("csr-1", 100), written, sequence=9)
    assert not one.is_superseded_by(first_heard("csr-2", 101))
