"""The type of one fault: how to inject and heal it, and how long the recovery may take."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from chaos.cluster import MODES, ChaosCluster, Mode
from chaos.fleet import Fleet
from chaos.workload import Workload

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


async def heal_nothing(_: FaultSite) -> None:
    """The fault is over as soon as it is injected."""
