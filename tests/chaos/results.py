"""The results file, a line of JSON per run that `--resume` reads, and the tables at the end of a sitting."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from tests.chaos.schedule import Schedule


class UndisturbedRecord(msgspec.Struct, frozen=True, kw_only=True, tag="undisturbed"):
    """A run without faults, with which the others of this seed and mode are compared."""

    seed: int
    mode: Mode
    seconds: float
    violations: tuple[Violation, ...]
    left: Undisturbed


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """A run with faults."""

    schedule: Schedule
    seconds: float
    recovery_seconds: float | None  # from the last heal; None: not within the bound
    requests_per_node: float
    violations: tuple[Violation, ...]
    restarts: tuple[str, ...] = ()  # processes that ended without a fault and were started again
    logs: str = ""


Record = UndisturbedRecord | RunRecord
_DECODER: Final = msgspec.json.Decoder(Record)


class Results:
    """What earlier and present sittings have found."""

    def __init__(self, file: Path) -> None:
        """Read the records of the file, if it exists. Raises msgspec.DecodeError."""
        self.file = file
        lines = file.read_bytes().splitlines() if file.exists() else []
        self.records: list[Record] = [_DECODER.decode(line) for line in lines]

    def add(self, record: Record) -> None:
        """Append a record to the file at once, so that an interruption loses nothing."""
        self.records.append(record)
        with self.file.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")

    @property
    def runs(self) -> list[RunRecord]:
        """The runs with faults or a mutant."""
        return [record for record in self.records if isinstance(record, RunRecord)]

    @property
    def judged(self) -> list[Record]:
        """The runs in which nothing may be violated: all but those of mutants."""
        return [
            each for each in self.records if isinstance(each, UndisturbedRecord) or not each.schedule.mutant
        ]

    def find_undisturbed(self, seed: int, mode: Mode) -> Undisturbed | None:
        """What the undisturbed run of that seed and mode has left; None if it has a violation itself."""
        return next(
            (
                record.left
                for record in self.records
                if isinstance(record, UndisturbedRecord)
                if (record.seed, record.mode) == (seed, mode) and not record.violations
            ),
            None,
        )

    def has_run(self, schedule: Schedule) -> bool:
        """Whether this schedule has run already."""
        return any(run.schedule == schedule for run in self.runs)


def list_recoveries(records: Iterable[Record]) -> Mapping[str, list[float | None]]:
    """The recovery times by fault; those of a pair count for the fault that was healed last."""
    found: dict[str, list[float | None]] = {}
    for run in (record for record in records if isinstance(record, RunRecord)):
        last = max(run.schedule.occurrences, key=lambda each: each.until)
        found.setdefault(last.fault, []).append(run.recovery_seconds)
    return found


def list_violations(records: list[Record]) -> Iterator[str]:
    """Every violation with its seed, run and logs."""
    for record in records:
        for violation in record.violations:
            if isinstance(record, RunRecord):
                schedule = record.schedule
                where = f"seed {schedule.seed} run {schedule.number} ({schedule})"
                yield f"{where}: {violation} (logs: {record.logs})"
            else:
                yield f"seed {record.seed}, undisturbed, {record.mode}: {violation}"


def list_missed(runs: Iterable[RunRecord]) -> list[str]:
    """The mutants that the observer did not catch."""
    invariants = {mutant.name: mutant.invariant for mutant in MUTANTS}
    return [
        name
        for run in runs
        if (name := run.schedule.mutant)
        if invariants[name] not in {violation.invariant for violation in run.violations}
    ]


def render_recoveries(records: Iterable[Record]) -> Table:
    """The recovery times by fault."""
    table = Table("fault", "runs", "median s", "max s", title="seconds from the last heal to the end state")
    recoveries = list_recoveries(records)
    for fault in FAULTS:
        times = recoveries.get(fault.name, [])
        within = [seconds for seconds in times if seconds is not None]
        if times:
            most = "never" if len(within) < len(times) else f"{max(within):.1f}"
            middle = f"{median(within):.1f}" if within else "never"
            table.add_row(fault.name, str(len(times)), middle, most)
    return table


def render_violations(records: Sequence[Record]) -> str:
    """One line per violation."""
    lines = list(list_violations(list(records)))
    return "\n".join((*lines, f"{len(lines)} violations in {len(records)} runs"))
