"""The results file: a line of JSON per run, which `--resume` reads. Pure but for the file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from tests.chaos.cluster import Mode
from tests.chaos.expectation import Undisturbed
from tests.chaos.invariants import Violation
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
        """The runs with faults."""
        return [record for record in self.records if isinstance(record, RunRecord)]

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


def list_recoveries(runs: list[RunRecord]) -> Mapping[str, list[float | None]]:
    """The recovery times by fault; those of a pair count for the fault that was healed last."""
    found: dict[str, list[float | None]] = {}
    for run in runs:
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
