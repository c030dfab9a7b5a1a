"""Since when a Node shows an address, and machines that are probed during an outage."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.address_history import AddressHistory, FirstShown
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import AddressStatus, MachineFault
from services.metadata.core.outage_detector import OutageDetector
from services.metadata.core.shown_addresses import ShownAddresses
from tests.builders import make_facts, make_node, make_node_enriched, make_unreachable

X, Y = "203.0.113.1", "203.0.113.2"
NODE = make_node()


def shows(*addresses: str, node=NODE):
    statuses = tuple(AddressStatus(address=f"{each}/32", link="eth0") for each in ("10.0.0.5", *addresses))
    return make_node_enriched(node, make_facts(addresses=statuses))


def publish(shown: ShownAddresses, event, sequence: int) -> AddressHistory:
    sent = shown.add_history(event)
    assert isinstance(sent, NodeEnriched | NodeUnreachable)
    shown.published(sent, sequence)
    return sent.address_history.resolve(sequence)


def test_an_address_has_the_sequence_of_the_message_that_showed_it_first():
    shown = ShownAddresses(is_up_to_date=True)
    assert publish(shown, shows(X), 10).get(X) == FirstShown(10, None)
    history = publish(shown, shows(X, Y), 20)
    assert (history.get(X), history.get(Y)) == (FirstShown(10, None), FirstShown(20, None))
    history = publish(shown, make_unreachable(NODE, last_known=shows(X, Y).facts), 30)
    assert (history.get(X), history.get(Y)) == (FirstShown(10, None), FirstShown(20, None))
    publish(shown, shows(Y), 40)
    assert publish(shown, shows(X, Y), 50).get(X) == FirstShown(50, None), "it was dropped and taken again"


def test_a_new_uid_starts_again():
    shown = ShownAddresses(is_up_to_date=True)
    publish(shown, shows(X), 10)
    again = publish(shown, shows(X, node=make_node(uid="uid-2")), 20)
    assert again.get(X) == FirstShown(20, None)


def test_what_a_kubelet_writes_makes_no_earlier_claim_of_its_machine():
    shown = ShownAddresses(is_up_to_date=True)
    publish(shown, make_unreachable(make_node(ip=X), last_known=None), 10)
    assert publish(shown, shows(X), 20).get(X) == FirstShown(20, None)


def test_a_pod_cidr_is_no_older_than_the_last_message_without_it():
    cidr = "10.244.1.0/24"
    shown, later = ShownAddresses(is_up_to_date=True), make_node(pod_cidrs=(cidr,))
    publish(shown, shows(X), 10)
    facts = shows(X).facts
    assert publish(shown, make_node_enriched(later, facts), 20).get(cidr) == FirstShown(20, 10)
    history = publish(shown, make_unreachable(later, last_known=facts), 30)
    assert (history.get(X), history.get(cidr)) == (FirstShown(10, None), FirstShown(20, 10))
    first = publish(ShownAddresses(is_up_to_date=True), shows(X, node=later), 40)
    assert first == AddressHistory(since=FirstShown(40, None))


def test_a_replica_that_starts_knows_no_order_of_what_no_message_shows():
    shown, before = ShownAddresses(), ShownAddresses(is_up_to_date=True)
    publish(before, shows(X), 10)
    shown.receive(before.add_history(shows(X)), 11)
    history = publish(shown, shows(X, Y), 20)
    assert (history.get(X), history.get(Y)) == (FirstShown(10, None), FirstShown(20, 11))
    assert publish(ShownAddresses(), shows(X), 20).get(X) == FirstShown(20, 0)
    assert publish(shown, shows(X, Y, "203.0.113.3"), 30).get("203.0.113.3") == FirstShown(30, None)


def test_a_message_after_a_lost_one_counts_though_nats_reuses_the_sequence():
    shown, theirs = ShownAddresses(is_up_to_date=True), shows(Y)
    publish(shown, shows(X), 10)
    shown.is_lost = True
    shown.receive(theirs, 5)
    assert (shown.last, shown.is_lost) == ((theirs, 5), False)
    shown.receive(shows(X), 4)
    assert shown.last == (theirs, 5)


def test_the_newest_message_counts_whichever_replica_published_it():
    mine, theirs = ShownAddresses(is_up_to_date=True), ShownAddresses(is_up_to_date=True)
    publish(mine, shows(), 10)
    event = theirs.add_history(shows(X))
    mine.receive(event, 15)
    assert publish(mine, shows(X), 20).get(X) == FirstShown(15, None)


@pytest.mark.parametrize(
    ("one", "other", "precedes"),
    [
        (FirstShown(10, None), FirstShown(20, None), True),
        (FirstShown(20, None), FirstShown(10, None), False),
        (FirstShown(10, 0), FirstShown(20, None), True),
        (FirstShown(10, None), FirstShown(20, 0), False),  # the other machine may have had it before
        (FirstShown(10, None), FirstShown(20, 15), True),
        (FirstShown(10, 0), FirstShown(20, 0), False),
        (FirstShown(10, None), FirstShown(10, None), False),
        (FirstShown(), FirstShown(20, None), False),
    ],
)
def test_who_precedes_whom(one: FirstShown, other: FirstShown, precedes: bool):
    assert one.precedes(other) is precedes


some = st.builds(FirstShown, st.integers(0, 9), st.none() | st.integers(0, 9)).filter(
    lambda shown: shown.absent_at is None or shown.absent_at <= shown.sequence
)


@given(some, some, st.integers(1, 9))
def test_of_two_claims_at_most_one_precedes_the_other(one: FirstShown, other: FirstShown, sequence: int):
    assert not (
        one.resolve(sequence).precedes(other.resolve(9)) and other.resolve(9).precedes(one.resolve(sequence))
    )


def test_a_sequence_after_that_of_the_message_is_from_a_lost_end_of_the_stream():
    lost = AddressHistory(since=FirstShown(5000, None))
    assert lost.resolve(4150).since == FirstShown(4150, 0)


@given(st.lists(st.tuples(st.sets(st.sampled_from((X, Y, "203.0.113.3"))), st.booleans()), max_size=8))
def test_each_message_tells_of_each_address_when_it_was_shown_since(messages):
    shown, since = ShownAddresses(is_up_to_date=True), dict[str, int]()
    for sequence, (addresses, is_silent) in enumerate(messages, start=1):
        event = shows(*sorted(addresses))
        if is_silent:
            event = make_unreachable(NODE, last_known=event.facts)
        history = publish(shown, event, sequence)
        since = {each: since.get(each, sequence) for each in addresses}
        assert {each: history.get(each).sequence for each in addresses} == since
        assert msgspec.json.decode(msgspec.json.encode(history), type=AddressHistory) == history


# ---- outages


DOWN = MachineFault(kind="refused", step="connect", message="no connection to cp-1:50000: connection refused")
OWN = MachineFault(kind="wrong_machine", step="Nodename", message="another machine")


def outage_of(*names: str) -> OutageDetector:
    outage = OutageDetector()
    for name in names:
        outage.record_poll(name, DOWN, began=0.0, now=1.0)
    return outage


def test_unreachable_machines_are_probed_in_turn_during_an_outage():
    outage = outage_of("a", "b", "c")
    assert outage.select_probe() == "a"
    outage.record_poll("a", DOWN, began=2.0, now=3.0)
    assert outage.select_probe() == "b"


def test_the_first_answer_after_an_outage_has_all_others_polled_once():
    outage = outage_of("a", "b", "c")
    assert outage.record_poll("b", None, began=10.0, now=10.1) == ("a", "c")
    assert outage.record_poll("a", None, began=10.2, now=10.3) == ()
    assert outage.record_poll("c", DOWN, began=11.0, now=11.1) == ()


def test_a_poll_that_began_during_the_outage_is_repeated_after_it():
    outage = outage_of("a", "b")
    outage.record_poll("a", None, began=10.0, now=10.1)
    assert outage.record_poll("b", DOWN, began=9.0, now=14.0) == ("b",)


def test_one_machine_that_is_off_is_no_outage():
    outage = OutageDetector()
    for name in ("a", "b", "c"):
        outage.record_poll(name, None, began=0.0, now=1.0)
    outage.record_poll("off", DOWN, began=0.0, now=1.0)
    assert not outage.select_probe()
    assert not outage.is_active
    assert outage.record_poll("a", None, began=2.0, now=3.0) == (), "a healthy machine has no other polled"


def test_a_machine_with_another_fault_is_reachable():
    outage = outage_of("a")
    assert outage.record_poll("a", OWN, began=2.0, now=3.0) == ()
    assert not outage.is_active


def test_a_node_that_is_gone_is_not_probed():
    outage = outage_of("a")
    outage.forget("a")
    assert not outage.select_probe()


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, DOWN, OWN]))))
def test_only_unreachable_nodes_are_probed_and_polled_again(looks):
    outage, last = OutageDetector(), {}
    for now, (name, fault) in enumerate(looks):
        awakened = outage.record_poll(name, fault, began=now - 0.5, now=float(now))
        last[name] = fault
        assert all(last[one] is DOWN for one in awakened)
        assert not outage.select_probe() or last[outage.select_probe()] is DOWN
