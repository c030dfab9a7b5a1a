"""The results file survives an interruption, and its tables show what went wrong."""

from pathlib import Path

from tests.chaos.expectation import Undisturbed
from tests.chaos.invariants import Violation
from tests.chaos.results import (
    Results,
    RunRecord,
    UndisturbedRecord,
)
from tests.chaos.schedule import Occurrence, Schedule, plan_pair

LEFT = Undisturbed(nodes={}, first_addresses={"web-1": (("InternalIP", "10.0.0.1"),)}, requests_per_node=9.5)
VIOLATION = Violation("pod CIDRs are disjoint", "web-1", "shares a block")


def a_run(
    number: int, *faults: tuple[str, float], recovery: float | None = 1.5, **fields: object
) -> RunRecord:
    occurrences = tuple(Occurrence(name, 2.0, until) for name, until in faults)
    schedule = Schedule(seed=7, number=number, mode="separate", occurrences=occurrences)
    values = {"seconds": 30.0, "requests_per_node": 9.0, "violations": ()} | fields
    return RunRecord(schedule=schedule, recovery_seconds=recovery, **values)  # type: ignore[arg-type]


def test_what_was_added_is_there_after_a_restart(tmp_path: Path):
    results = Results(tmp_path / "results.jsonl")
    undisturbed = UndisturbedRecord(seed=7, mode="separate", seconds=20, violations=(), left=LEFT)
    run = a_run(1, ("nats-killed", 5.0), violations=(VIOLATION,))
    results.add(undisturbed)
    results.add(run)
    again = Results(results.file)
    assert again.records == [undisturbed, run]
    assert again.find_undisturbed(7, "separate") == LEFT
    assert again.find_undisturbed(7, "all-in-one") is None
    assert again.has_run(run.schedule)
    assert not again.has_run(plan_pair(7, 1))


def test_nothing_is_compared_with_a_run_without_faults_that_has_a_violation(tmp_path: Path):
    results = Results(tmp_path / "results.jsonl")
    results.add(UndisturbedRecord(seed=7, mode="separate", seconds=20, violations=(VIOLATION,), left=LEFT))
    assert results.find_undisturbed(7, "separate") is None
