"""A sitting leaves its results and the logs of violations."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.chaos import run
from tests.chaos import sitting as sitting_module
from tests.chaos.__main__ import main
from tests.chaos.cluster import MODES, ChaosCluster
from tests.chaos.expectation import Undisturbed
from tests.chaos.invariants import Violation
from tests.chaos.results import Results, RunRecord, UndisturbedRecord
from tests.chaos.schedule import Occurrence, Schedule, plan_pair
from tests.chaos.sitting import Sitting
from tests.chaos.workload import Workload


def make_sitting(directory: Path, lines: list[str]) -> Sitting:
    results = Results(directory / "results.jsonl")
    return Sitting(results=results, directory=directory, keep_logs=False, report=lines.append)


def count_logs(directory: Path) -> int:
    return len(list(directory.glob("*-not-started-*")))


async def test_a_cluster_that_does_not_start_is_tried_twice_and_reported_in_plain_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class NotStarting(AbstractAsyncContextManager[ChaosCluster]):
        async def __aenter__(self) -> ChaosCluster:
            inner = ExceptionGroup("inner", [TimeoutError("nats-2 is not healthy after 30 s")])
            raise ExceptionGroup("outer", [inner])

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError("never entered")

    monkeypatch.setattr(run, "start_cluster", lambda run_dir, mode: NotStarting())
    lines: list[str] = []
    sitting = make_sitting(tmp_path, lines)
    await sitting.run([plan_pair(1, number) for number in range(1, 4)])
    assert [line.split("; logs")[0].strip() for line in lines if "NOT RUN" in line] == [
        "NOT RUN: the cluster did not start: nats-2 is not healthy after 30 s"
    ] * (2 * len(MODES))
    assert set(MODES) <= set(sitting.not_run)
    assert sitting.results.records == []
    assert count_logs(tmp_path) == 2 * len(MODES)


def test_the_exit_status_is_1_if_a_run_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def run_schedule(*_: object) -> RunRecord:
        raise run.ClusterNotStarted("a port is taken")

    monkeypatch.setattr(sitting_module, "run_schedule", run_schedule)
    missing = CliRunner().invoke(main, ["--runs", "1", "--seed", "1", "--logs", str(tmp_path)])
    assert missing.exit_code == 1
    assert "not run: " in missing.output
    assert "--seed 1 --resume" in missing.output


async def test_the_second_attempt_of_a_run_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    attempts: list[Path] = []

    async def run_schedule(
        run_dir: Path, schedule: Schedule, workload: Workload, undisturbed: Undisturbed | None
    ) -> UndisturbedRecord | RunRecord:
        attempts.append(run_dir)
        if len(attempts) % 2:
            raise run.ClusterNotStarted("a port is taken")
        if undisturbed is None:
            left = Undisturbed(nodes={}, first_addresses={}, requests_per_node=9.0)
            return UndisturbedRecord(seed=1, mode=schedule.mode, seconds=1.0, violations=(), left=left)
        return RunRecord(
            schedule=schedule, seconds=1.0, recovery_seconds=0.1, requests_per_node=9.0, violations=()
        )

    monkeypatch.setattr(sitting_module, "run_schedule", run_schedule)
    sitting = make_sitting(tmp_path, [])
    await sitting.run([plan_pair(1, 1)])
    assert len(attempts) == 4
    assert len(sitting.results.runs) == 1
    assert sitting.not_run == []


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
