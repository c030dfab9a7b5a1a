"""Faults of the wall clock: it jumps by an hour, in all processes or in one replica of each service."""

from collections.abc import Iterator, Sequence
from typing import Final

from tests.chaos.clocks import set_clock_offset
from tests.chaos.fault import Action, Fault, FaultSite

_HOUR: Final = 3600.0


def _make_jump(seconds: float, *, is_everywhere: bool) -> Action:
    async def jump(site: FaultSite) -> None:
        for process in site.cluster.services.ports:
            if is_everywhere or f"{process}-2" in site.cluster.services.ports:
                set_clock_offset(site.cluster.run_dir, process, seconds)

    return jump


def _list_clock_faults() -> Iterator[Fault]:
    for direction, seconds in (("forward", _HOUR), ("back", -_HOUR)):
        for suffix, is_everywhere in (("", True), ("-in-one-replica", False)):
            yield Fault(
                name=f"clock-jump-{direction}{suffix}",
                target="clock",
                inject=_make_jump(seconds, is_everywhere=is_everywhere),
                heal=_make_jump(0.0, is_everywhere=is_everywhere),  # jumps again, in the other direction
            )


CLOCK_FAULTS: Final[Sequence[Fault]] = tuple(_list_clock_faults())
