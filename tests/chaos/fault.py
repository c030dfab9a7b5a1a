"""The type of one fault: how to inject and heal it, and how long the recovery may take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from tests.chaos.cluster import MODES, ChaosCluster, Mode
from tests.chaos.workload import Workload
from tests.chaos.workload_runner import Fleet

BOUND_SECONDS: Final = 60.0  # for recovery, where no quarantine, grace period or back-off is longer


class FaultSite(NamedTuple):
    """What a fault acts on."""

    cluster: ChaosCluster
    fleet: Fleet
    workload: Workload
    write_again: Callable[[], Awaitable[None]]  # what nodes and operators wrote, and etcd has lost
    healed: list[Fault]  # those that a restored etcd may bring back


Action = Callable[[FaultSite], Awaitable[object] | None]


class Fault(msgspec.Struct, frozen=True):
    """One row of the table of faults. Two faults with the same target never occur together."""

    name: str
    target: str
    inject: Action
    heal: Action = lambda _: None  # the fault is over as soon as it is injected
    hold_seconds: tuple[float, float] = (4.0, 12.0)  # the schedule chooses a time in between
    modes: tuple[Mode, ...] = MODES
    is_stored: bool = False  # in etcd, so a backup may contain it; its heal may be repeated


class FaultFailed(TimeoutError):
    """A fault could not be injected or healed, so its run proves nothing."""


async def hold_fault(site: FaultSite, fault: Fault, seconds: float) -> None:
    """Inject the fault, and heal it when it has had its effect for so long. Raises FaultFailed."""
    await _act(site, fault.inject, f"{fault.name}: inject failed")
    await asyncio.sleep(seconds)
    if fault.is_stored:
        site.healed.append(fault)  # first, because etcd may be restored during the heal
    await _act(site, fault.heal, f"{fault.name}: heal failed")


async def heal_again(site: FaultSite) -> None:
    """Repeat each heal that a restored etcd may have undone, as administrators do. Raises FaultFailed."""
    for fault in site.healed:
        await _act(site, fault.heal, f"{fault.name}: heal after a restore failed")


async def _act(site: FaultSite, action: Action, what: str) -> None:
    """Raise each error of the action as FaultFailed, which becomes a problem of this run alone."""
    try:
        if (acting := action(site)) is not None:
            await acting
    except Exception as error:  # of any server: the other runs of the sitting go on
        raise FaultFailed(f"{what}: {error!r}") from error
