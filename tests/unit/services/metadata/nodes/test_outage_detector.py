"""The detection of an outage of Talos and of its end."""

from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import MachineFault
from services.metadata.core.outage_detector import OutageDetector

DOWN = MachineFault(kind="refused", step="connect", message="no connection to cp-1:50000: connection refused")
OWN = MachineFault(kind="wrong_machine", step="Nodename", message="another machine")


def test_unreachable_machines_are_probed_in_turn_during_an_outage():
    outage = OutageDetector()
    for name in ("a", "b", "c"):
        outage.record_poll(name, DOWN, began=0.0, now=1.0)
    assert outage.select_probe() == "a"
    outage.record_poll("a", DOWN, began=2.0, now=3.0)
    assert outage.select_probe() == "b"


def test_the_first_answer_after_an_outage_has_all_others_polled_once():
    outage = OutageDetector()
    for name in ("a", "b", "c"):
        outage.record_poll(name, DOWN, began=0.0, now=1.0)
    assert outage.record_poll("b", None, began=10.0, now=10.1) == ("a", "c")
    assert outage.record_poll("a", None, began=10.2, now=10.3) == ()
    assert outage.record_poll("c", DOWN, began=11.0, now=11.1) == ()


def test_a_poll_that_began_during_the_outage_is_repeated_after_it():
    outage = OutageDetector()
    for name in ("a", "b"):
        outage.record_poll(name, DOWN, began=0.0, now=1.0)
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
    outage = OutageDetector()
    outage.record_poll("a", DOWN, began=0.0, now=1.0)
    assert outage.record_poll("a", OWN, began=2.0, now=3.0) == ()
    assert not outage.is_active


def test_a_node_that_is_gone_is_not_probed():
    outage = OutageDetector()
    outage.record_poll("a", DOWN, began=0.0, now=1.0)
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
