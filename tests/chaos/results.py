"""The results file, a line of JSON per run that `--resume` reads, and the tables at the end of a sitting."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
from rich.table import Table

from tests.chaos.cluster import Mode
from tests.chaos.expectation import Undisturbed
from tests.chaos.faults import FAULTS
from tests.chaos.invariants import Violation
from tests.chaos.mutants import MUTANTS
from tests.chaos.schedule import Schedule, plan_undisturbed


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run with faults, or one without, with which the others of its seed and mode are compared."""

    schedule: Schedule
    seconds: float
    recovery_seconds: float | None  # from the last heal; None: not within the bound
    requests_per_node: float
    violations: tuple[Violation, ...]
    restarts: tuple[str, ...] = ()  # processes that ended without a fault and were started again
    logs: str = ""
    left: Undisturbed | None = None  # None: of a run with faults or a mutant


_DECODER: Final = msgspec.json.Decoder(RunRecord)


class Results:
    """What earlier and present sittings have found."""

    def __init__(self, file: Path) -> None:
        """Read the records of the file, if it exists. Raises msgspec.DecodeError."""
        self.file = file
        lines = file.read_bytes().splitlines() if file.exists() else []
        self.records: list[RunRecord] = [_DECODER.decode(line) for line in lines]

    def add(self, record: RunRecord) -> None:
        """Append a record to the file at once, so that an interruption loses nothing."""
        self.records.append(record)
        with self.file.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")

    @property
    def judged(self) -> list[RunRecord]:
        """The runs in which nothing may be violated: all but those of mutants."""
        return [record for record in self.records if not record.schedule.mutant]

    def find_undisturbed(self, seed: int, mode: Mode) -> Undisturbed | None:
        """What the undisturbed run of that seed and mode has left; None if it has a violation itself."""
        wanted = plan_undisturbed(seed, mode)
        runs = (run for run in self.records if run.schedule == wanted and not run.violations)
        return next((run.left for run in runs), None)

    def has_run(self, schedule: Schedule) -> bool:
        """Whether this schedule has run already."""
        return any(run.schedule == schedule for run in self.records)


def list_recoveries(runs: Iterable[RunRecord]) -> Mapping[str, list[float | None]]:
    """The recovery times by fault; those of a pair count for the fault that was healed last."""
    found: dict[str, list[float | None]] = {}
    for run in (run for run in runs if run.schedule.occurrences):
        last = max(run.schedule.occurrences, key=lambda each: each.until)
        found.setdefault(last.fault, []).append(run.recovery_seconds)
    return found


def list_missed(runs: Iterable[RunRecord]) -> list[str]:
    """The mutants that the observer did not catch."""
    invariants = {mutant.name: mutant.invariant for mutant in MUTANTS}
    return [
        name
        for run in runs
        if (name := run.schedule.mutant)
        if invariants[name] not in {violation.invariant for violation in run.violations}
    ]


def render_recoveries(runs: Iterable[RunRecord]) -> Table:
    """The recovery times by fault."""
    table = Table("fault", "runs", "median s", "max s", title="seconds from the last heal to the end state")
    recoveries = list_recoveries(runs)
    for fault in FAULTS:
        times = recoveries.get(fault.name, [])
        within = [seconds for seconds in times if seconds is not None]
        if times:
            most = "never" if len(within) < len(times) else f"{max(within):.1f}"
            middle = f"{median(within):.1f}" if within else "never"
            table.add_row(fault.name, str(len(times)), middle, most)
    return table


def render_violations(runs: Sequence[RunRecord]) -> str:
    """One line per violation, with its seed, run and logs."""
    lines = [
        f"seed {run.schedule.seed} run {run.schedule.number} ({run.schedule}): {violation} (logs: {run.logs})"
        for run in runs
        for violation in run.violations
    ]
    return "\n".join((*lines, f"{len(lines)} violations in {len(runs)} runs"))
