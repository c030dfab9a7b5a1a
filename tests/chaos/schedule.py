"""Which faults occur in a run, and when: a schedule that follows from a seed. Pure."""

import random
from typing import Final

import msgspec

from tests.chaos.cluster import MODES, Mode
from tests.chaos.fault import Fault
from tests.chaos.faults import list_faults

_FIRST_SECONDS: Final = (2.0, 10.0)  # when the first fault is injected
_SECOND_AFTER: Final = (0.0, 6.0)  # seconds after the first one


class Occurrence(msgspec.Struct, frozen=True):
    """A fault with its planned times, in seconds of the run. It is held as long if its injection is slow."""

    fault: str
    at: float
    until: float


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The mode and the faults of one run."""

    seed: int
    number: int  # counts the runs from 1
    mode: Mode
    occurrences: tuple[Occurrence, ...]
    mutant: str = ""  # the defect of the services

    def __str__(self) -> str:
        times = (f"{each.fault} {each.at:g}-{each.until:g} s" for each in self.occurrences)
        return f"{self.mode}: {', '.join(times) or 'undisturbed'}"


def plan_pair(seed: int, number: int) -> Schedule:
    """The schedule of a run with two faults; modes alternate."""
    choose = random.Random(f"schedule {seed} {number}")
    mode = MODES[number % len(MODES)]
    faults = list_faults(mode)
    first = choose.choice(faults)
    second = choose.choice([each for each in faults if each.target != first.target])
    begin = choose.uniform(*_FIRST_SECONDS)
    occurrences = (
        _make_occurrence(first, begin, choose),
        _make_occurrence(second, begin + choose.uniform(*_SECOND_AFTER), choose),
    )
    return Schedule(seed=seed, number=number, mode=mode, occurrences=occurrences)


def plan_alone(seed: int, number: int, fault: Fault) -> Schedule:
    """The schedule of a run with this fault alone."""
    choose = random.Random(f"schedule {seed} {number}")
    mode = fault.modes[number % len(fault.modes)]
    occurrence = _make_occurrence(fault, choose.uniform(*_FIRST_SECONDS), choose)
    return Schedule(seed=seed, number=number, mode=mode, occurrences=(occurrence,))


def plan_undisturbed(seed: int, mode: Mode) -> Schedule:
    """A run without faults."""
    return Schedule(seed=seed, number=0, mode=mode, occurrences=())


def _make_occurrence(fault: Fault, at: float, choose: random.Random) -> Occurrence:
    return Occurrence(fault.name, round(at, 1), round(at + choose.uniform(*fault.hold_seconds), 1))
