"""The runs of one sitting, one after the other, each in a directory of its own."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.cluster import MODES, Mode
from tests.chaos.expectation import Undisturbed
from tests.chaos.faults import FAULTS, get_fault
from tests.chaos.mutants import MUTANTS, run_mutated
from tests.chaos.results import Record, Results, RunRecord
from tests.chaos.run import ClusterNotStarted, run_schedule
from tests.chaos.schedule import Schedule, plan_alone, plan_pair, plan_undisturbed
from tests.chaos.workload import plan_workload

_ATTEMPTS: Final = 2


class UndisturbedFailed(RuntimeError):
    """A run without faults violates an invariant, or its cluster does not start."""


class Sitting(msgspec.Struct, frozen=True, kw_only=True):
    """The seed of all runs, and where results and logs go."""

    seed: int
    results: Results
    directory: Path
    keep_logs: bool
    report: Callable[[str], None]
    missed: list[str] = []  # mutants that were not caught
    not_run: list[str] = []  # runs whose cluster did not start; modes without an undisturbed run

    async def run_pairs(self, numbers: Sequence[int]) -> None:
        """Run the pairs of these numbers, except those in the results."""
        await self._run_all([plan_pair(self.seed, number) for number in numbers])

    async def run_alone(self, names: Sequence[str]) -> None:
        """Run each of these faults alone; all faults if there are no names."""
        faults = [get_fault(name) for name in names] or FAULTS
        await self._run_all([plan_alone(self.seed, number, fault) for number, fault in enumerate(faults, 1)])

    async def run_mutants(self, names: Sequence[str]) -> None:
        """Run each mutant, or those of these names; `missed` gets those that are not caught."""
        for mutant in MUTANTS:
            if names and mutant.name not in names:
                continue
            undisturbed = await self._try_undisturbed(mutant.mode, mutant.name)
            if undisturbed is None:
                continue
            self.report(f"{mutant.name}: must violate {mutant.invariant!r}")
            run_dir = self._make_run_dir(mutant.name)
            schedule = msgspec.structs.replace(mutant.schedule, seed=self.seed)
            with run_mutated(mutant):
                record = await self._try_schedule(run_dir, schedule, undisturbed)
            if record is None:
                self.not_run.append(mutant.name)
                continue
            found = next((v for v in record.violations if v.invariant == mutant.invariant), None)
            others = sorted({v.invariant for v in record.violations} - {mutant.invariant})
            self.report(f"    {found or 'NOT CAUGHT'}{f'; also: {others}' if others else ''}")
            if found is None:
                self.missed.append(mutant.name)
            elif not self.keep_logs:
                shutil.rmtree(run_dir)

    async def measure_undisturbed(self, mode: Mode) -> Undisturbed:
        """What a run without faults leaves, from the results if they have it.

        Raises UndisturbedFailed if that run failed, so nothing can be compared with it.
        """
        known = self.results.find_undisturbed(self.seed, mode)
        if known is None:
            await self._run_one(plan_undisturbed(self.seed, mode), None)
            known = self.results.find_undisturbed(self.seed, mode)
        if known is None:
            raise UndisturbedFailed(f"seed {self.seed}, {mode}: the run without faults failed, see above")
        return known

    async def _run_all(self, schedules: Sequence[Schedule]) -> None:
        missing = [schedule for schedule in schedules if not self.results.has_run(schedule)]
        modes = [mode for mode in MODES if any(schedule.mode == mode for schedule in missing)]
        undisturbed = {mode: await self._try_undisturbed(mode, mode) for mode in modes}
        for schedule in missing:
            if (compared := undisturbed[schedule.mode]) is not None:
                await self._run_one(schedule, compared)

    async def _try_undisturbed(self, mode: Mode, name: str) -> Undisturbed | None:
        """What a run without faults leaves; None if it failed, so that nothing of that name can run."""
        try:
            return await self.measure_undisturbed(mode)
        except UndisturbedFailed as error:
            self.report(f"{name}: not run. {error}")
            self.not_run.append(name)
            return None

    async def _run_one(self, schedule: Schedule, undisturbed: Undisturbed | None) -> None:
        run_dir = self._make_run_dir(f"seed-{schedule.seed}-run-{schedule.number}-{schedule.mode}")
        self.report(f"seed {schedule.seed} run {schedule.number}: {schedule}")
        record = await self._try_schedule(run_dir, schedule, undisturbed)
        if record is None:
            self.not_run.append(run_dir.name)
            return
        self.results.add(record)
        self.report(f"    {_describe(record)}")
        for violation in record.violations:
            self.report(f"    VIOLATION {violation}")
        if not (record.violations or self.keep_logs):
            shutil.rmtree(run_dir)

    async def _try_schedule(
        self, run_dir: Path, schedule: Schedule, undisturbed: Undisturbed | None
    ) -> Record | None:
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


def _describe(record: Record) -> str:
    if not isinstance(record, RunRecord):
        return f"{record.seconds:.0f} s, {record.left.requests_per_node:.1f} requests per Node"
    recovery = (
        "not recovered"
        if record.recovery_seconds is None
        else f"recovered in {record.recovery_seconds:.1f} s"
    )
    restarts = f", restarted: {', '.join(record.restarts)}" if record.restarts else ""
    return f"{record.seconds:.0f} s, {recovery}, {record.requests_per_node:.1f} requests per Node{restarts}"
