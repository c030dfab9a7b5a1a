"""The type of one fault: how to inject and heal it, and how long the recovery may take."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from tests.chaos.cluster import MODES, ChaosCluster, Mode
from tests.chaos.fleet import Fleet
from tests.chaos.workload import Workload

BOUND_SECONDS: Final = 60.0  # for recovery, where no quarantine, grace period or back-off is longer


class FaultSite(NamedTuple):
    """What a fault acts on."""

    cluster: ChaosCluster
    fleet: Fleet
    workload: Workload
    write_again: Callable[[], Awaitable[None]]  # what nodes and operators wrote, and etcd has lost


Action = Callable[[FaultSite], Awaitable[None]]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table of faults. Two faults with the same target never occur together."""

    name: str
    target: str
    inject: Action
    heal: Action
    hold_seconds: tuple[float, float] = (4.0, 12.0)  # the schedule chooses a time in between
    bound_seconds: float = BOUND_SECONDS
    modes: tuple[Mode, ...] = MODES


class FaultFailed(TimeoutError):
    """A fault could not be injected or healed, so its run proves nothing."""


async def hold_fault(site: FaultSite, fault: Fault, seconds: float) -> None:
    """Inject the fault, and heal it when it has had its effect for so long. Raises FaultFailed."""
    with _fail_as(f"{fault.name}: inject failed"):
        await fault.inject(site)
    await asyncio.sleep(seconds)
    with _fail_as(f"{fault.name}: heal failed"):
        await fault.heal(site)


@contextlib.contextmanager
def _fail_as(what: str) -> Iterator[None]:
    """Raise each error of the block as FaultFailed, which becomes a problem of this run alone."""
    try:
        yield
    except Exception as error:  # of any server: the other runs of the sitting go on
        raise FaultFailed(f"{what}: {error!r}") from error


async def heal_nothing(_: FaultSite) -> None:
    """The fault is over as soon as it is injected."""
