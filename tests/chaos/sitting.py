"""The runs of one sitting, one after the other, each in a directory of its own."""

import contextlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.cluster import Mode
from tests.chaos.expectation import Undisturbed
from tests.chaos.mutants import run_mutated
from tests.chaos.results import Results, RunRecord
from tests.chaos.run import ClusterNotStarted, run_schedule
from tests.chaos.schedule import Schedule, plan_undisturbed
from tests.chaos.workload import plan_workload

_ATTEMPTS: Final = 2


class Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """Where results and logs go."""

    results: Results
    directory: Path
    keep_logs: bool
    report: Callable[[str], None]
    not_run: list[str] = []  # runs whose cluster did not start; modes without an undisturbed run

    async def run(self, schedules: Iterable[Schedule]) -> None:
        """Run these schedules, except those in the results, and before them their mode without faults."""
        compared: dict[Mode, Undisturbed | None] = {}
        for schedule in schedules:
            if self.results.has_run(schedule):
                continue
            if schedule.mode not in compared:
                compared[schedule.mode] = await self._measure_undisturbed(schedule.seed, schedule.mode)
            if (undisturbed := compared[schedule.mode]) is not None:
                await self._run_one(schedule, undisturbed)

    async def _measure_undisturbed(self, seed: int, mode: Mode) -> Undisturbed | None:
        """What a run without faults leaves; None if it failed, so nothing can be compared with it."""
        if self.results.find_undisturbed(seed, mode) is None:
            await self._run_one(plan_undisturbed(seed, mode), None)
        known = self.results.find_undisturbed(seed, mode)
        if known is None:
            self.report(f"{mode}: not run, because the run without faults failed")
            self.not_run.append(mode)
        return known

    async def _run_one(self, schedule: Schedule, undisturbed: Undisturbed | None) -> None:
        what = schedule.mutant or f"run-{schedule.number}"
        run_dir = self._make_run_dir(f"seed-{schedule.seed}-{what}-{schedule.mode}")
        self.report(f"seed {schedule.seed} {what}: {schedule}")
        with run_mutated(schedule.mutant) if schedule.mutant else contextlib.nullcontext():
            record = await self._try_schedule(run_dir, schedule, undisturbed)
        if record is None:
            self.not_run.append(run_dir.name)
            return
        self.results.add(record)
        self.report(f"    {_describe(record)}")
        for violation in record.violations:
            self.report(f"    VIOLATION {violation}")
        if not (self.keep_logs or (record.violations and not schedule.mutant)):
            shutil.rmtree(run_dir)

    async def _try_schedule(
        self, run_dir: Path, schedule: Schedule, undisturbed: Undisturbed | None
    ) -> RunRecord | None:
        """Run it, once more if its cluster does not start; None if that fails, too."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await run_schedule(run_dir, schedule, plan_workload(schedule.seed), undisturbed)
            except ClusterNotStarted as error:
                self.report(f"    NOT RUN: {error}; logs in {self._move_logs(run_dir, attempt)}")
        return None

    def _move_logs(self, run_dir: Path, attempt: int) -> Path:
        logs = self._make_run_dir(f"{run_dir.name}-not-started-{attempt}")
        run_dir.replace(logs)
        run_dir.mkdir()
        return logs

    def _make_run_dir(self, name: str) -> Path:
        run_dir = self.directory / name
        shutil.rmtree(run_dir, ignore_errors=True)  # an interrupted run of the same name
        run_dir.mkdir(parents=True)
        return run_dir


def _describe(record: RunRecord) -> str:
    recovery = (
        "not recovered"
        if record.recovery_seconds is None
        else f"recovered in {record.recovery_seconds:.1f} s"
    )
    restarts = f", restarted: {', '.join(record.restarts)}" if record.restarts else ""
    return f"{record.seconds:.0f} s, {recovery}, {record.requests_per_node:.1f} requests per Node{restarts}"
