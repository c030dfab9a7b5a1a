from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import MachineFault
from libs.talos.endpoint_selector import (
    BACKOFF_CAP_SECONDS,
    MAX_DETOURS,
    UNTRIED_SECONDS,
    EndpointSelector,
)
from libs.talos.talosconfig import Endpoint

A, B, C = (Endpoint(f"10.0.0.{i}", 50000) for i in (1, 2, 3))
ALL = (A, B, C)
FAULT = MachineFault(kind="refused", step="connect", message="no")


def test_a_machine_has_the_same_endpoint_every_time_whatever_their_order():
    choice = EndpointSelector()
    for i in range(50):
        machine = f"10.1.0.{i}"
        assert choice.candidates(ALL, machine, 0) == choice.candidates((C, A, B), machine, 9)


def test_machines_are_spread_over_the_endpoints():
    choice = EndpointSelector()
    firsts = Counter(choice.candidates(ALL, f"10.1.{i // 250}.{i % 250}", 0)[0] for i in range(900))
    assert all(200 < firsts[endpoint] < 400 for endpoint in ALL)


def test_when_an_endpoint_goes_only_its_own_machines_move():
    choice = EndpointSelector()
    machines = [f"10.1.0.{i}" for i in range(200)]
    before = {machine: choice.candidates(ALL, machine, 0)[0] for machine in machines}
    choice.mark_failed(A, FAULT, 0)
    for machine, endpoint in before.items():
        now = choice.candidates(ALL, machine, 0)
        assert now[-1] == A
        assert now[0] == endpoint or endpoint == A


def test_nobody_is_asked_while_all_are_put_aside():
    choice = EndpointSelector()
    choice.mark_failed(A, FAULT, 0)
    assert choice.candidates((A, B), "m", 0.1) == [B, A]
    choice.mark_failed(B, FAULT, 0.1)
    assert choice.candidates((A, B), "m", 0.2) == []
    assert choice.candidates((A, B), "m", 0.3) == [A, B]


def test_an_endpoint_that_refuses_is_put_aside_for_longer_and_longer_up_to_five_seconds():
    choice = EndpointSelector()
    now, waits = 100.0, []
    for _ in range(8):
        choice.mark_failed(A, FAULT, now)
        assert choice.candidates([A], "m", now) == []
        back = next(s / 100 for s in range(1, 1000) if choice.candidates([A], "m", now + s / 100))
        waits.append(back)
        now += back
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_many_callers_that_saw_the_same_refusal_are_one_refusal():
    choice = EndpointSelector()
    for _ in range(100):
        choice.mark_failed(A, FAULT, 10.0)
    assert choice.candidates([A], "m", 10.25) == [A]


def test_an_endpoint_that_works_again_starts_from_the_shortest_wait():
    choice = EndpointSelector()
    for now in (0.0, 10.0, 20.0):
        choice.mark_failed(A, FAULT, now)
    choice.mark_healthy(A)
    choice.mark_failed(A, FAULT, 30.0)
    assert choice.candidates([A], "m", 30.25) == [A]


def test_a_machine_that_was_not_reached_is_asked_by_the_next_endpoint():
    choice = EndpointSelector()
    order = choice.candidates(ALL, "m", 0)
    choice.use_next_endpoint("m")
    assert choice.candidates(ALL, "m", 0) == [order[1], order[2], order[0]]
    assert choice.candidates([A], "m", 0) == [A]


def test_the_fault_reported_is_that_of_the_endpoint_that_comes_back_first():
    choice = EndpointSelector()
    assert choice.get_first_fault(ALL) is None
    choice.mark_failed(A, FAULT, 1.0)
    choice.mark_failed(B, MachineFault(kind="timeout", step="connect", message="slow"), 0.5)
    fault = choice.get_first_fault(ALL)
    assert fault is not None
    assert fault.kind == "timeout"
    choice.reset()
    assert choice.get_first_fault(ALL) is None


def test_an_outage_lasts_over_the_attempts_that_fail_and_ends_with_the_first_that_does_not():
    choice, now = EndpointSelector(), 0.0
    assert choice.get_outage_fault((), now) is None
    for endpoint in ALL:
        assert choice.get_outage_fault(ALL, now) is None
        choice.mark_failed(endpoint, FAULT, now)
    for _ in range(10):
        now += BACKOFF_CAP_SECONDS
        assert choice.get_outage_fault(ALL, now + 2) == FAULT  # a client retries every few seconds
        for endpoint in ALL:
            choice.mark_failed(endpoint, FAULT, now)
    assert choice.get_outage_fault(ALL, now + BACKOFF_CAP_SECONDS + UNTRIED_SECONDS) is None  # not tried yet
    choice.mark_healthy(B)
    assert choice.get_outage_fault(ALL, now) is None


def test_the_memory_of_detours_is_bounded():
    choice = EndpointSelector()
    for i in range(MAX_DETOURS + 10):
        choice.use_next_endpoint(str(i))
    assert len(choice._detours) <= MAX_DETOURS


@given(st.lists(st.tuples(st.sampled_from("ad"), st.sampled_from(ALL), st.floats(0, 20)), max_size=30))
def test_no_endpoint_is_ever_given_up(steps: list[tuple[str, Endpoint, float]]):
    choice, now = EndpointSelector(), 0.0
    for step, endpoint, seconds in steps:
        now += seconds
        if step == "a":
            choice.mark_failed(endpoint, FAULT, now)
        else:
            choice.use_next_endpoint("m")
    assert sorted(map(str, choice.candidates(ALL, "m", now + BACKOFF_CAP_SECONDS))) == sorted(map(str, ALL))
