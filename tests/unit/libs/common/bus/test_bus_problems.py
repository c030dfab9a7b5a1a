"""What keeps a bus from being usable: a full stream and consumers that do not consume."""

from dataclasses import dataclass

from libs.common.bus.bus_problems import BusProblems


@dataclass
class Call:
    problem: str


def test_a_stream_is_full_until_twice_the_rejected_publish_fits():
    problems = BusProblems()
    problems.record_size(100, 100)
    assert problems.full() == ""
    problems.record_full(10)
    problems.record_size(80, 100)
    assert "rejected a publish of 10 bytes" in problems.full()
    problems.record_size(79, 100)
    assert problems.full() == ""


def test_a_stream_without_a_limit_is_not_full():
    problems = BusProblems()
    problems.record_full(10)
    problems.record_size(10**9, -1)
    assert problems.full() == ""


def test_the_problem_of_a_call_counts_while_it_runs():
    problems = BusProblems()
    stuck, well = Call("stuck"), Call("")
    with problems.during(stuck), problems.during(well):
        assert problems.consuming() == ("stuck",)
        stuck.problem = ""
        assert problems.consuming() == ()
        stuck.problem = "again"
    assert problems.consuming() == ()
