"""Compares all claims with all Nodes, periodically and after a Node was deleted."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from math import inf
from typing import Final

from libs.common.bus.delivery import PermanentError, TemporaryError, backoff_seconds
from services.ipam.allocator import Allocator
from services.ipam.core.release_plan import SweepResult

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 0.5
REQUESTED_SWEEP_DELAY_SECONDS: Final = 2.0  # one sweep covers Nodes that are deleted together
MIN_INTERVAL_SECONDS: Final = 10.0  # between two requested sweeps: each one lists all Nodes


@dataclass(eq=False)
class GarbageCollector:
    """Runs in every replica; writes compare and swap, and the second replica finds nothing to do."""

    allocator: Allocator
    _: KW_ONLY
    resync_seconds: float
    get_pause_reason: Callable[[], str]  # why no sweep may run now, or ""
    report: Callable[[SweepResult], None]
    on_blocks_freed: Callable[[], None]  # called when claims have ended
    clock: Callable[[], float]  # monotonic, in seconds
    random: random.Random

    def __post_init__(self) -> None:
        self._next_sweep_at = -inf
        self._last_sweep_at = -inf
        self._failures = 0  # number of sweeps in a row that failed or postponed a page

    def request_sweep(self) -> None:
        """Request a sweep, because a Node was deleted."""
        at = max(self.clock() + REQUESTED_SWEEP_DELAY_SECONDS, self._last_sweep_at + MIN_INTERVAL_SECONDS)
        self._next_sweep_at = min(self._next_sweep_at, at)

    def restart(self) -> None:
        """Sweep at once, after the stream was replaced."""
        self._next_sweep_at = -inf

    async def run(self) -> None:
        """Run sweeps until cancelled."""
        while True:
            if self.clock() >= self._next_sweep_at and not self.get_pause_reason():
                await self._sweep()
            await asyncio.sleep(PASS_SECONDS)

    async def _sweep(self) -> None:
        self._next_sweep_at = inf  # a request during this sweep causes another one
        try:
            result = await self.allocator.sweep()
        except (TemporaryError, PermanentError) as error:
            self._handle_failure(error)
            return
        except Exception as error:
            # Nodes contain untrusted texts: a defect that one triggers must not stop all allocation.
            log.exception("sweep failed")
            self._handle_failure(error)
            return
        self._failures = self._failures + 1 if result.postponed else 0
        self._last_sweep_at = self.clock()
        self._next_sweep_at = min(self._next_sweep_at, self._last_sweep_at + self._seconds_until_next())
        self.report(result)
        if result.freed or result.dropped:
            self.on_blocks_freed()

    def _handle_failure(self, error: Exception) -> None:
        self._failures += 1
        self._next_sweep_at = self.clock() + self._backoff_seconds()
        if self._failures == 1:
            log.warning("sweep failed, will retry", extra={"error": str(error)})

    def _seconds_until_next(self) -> float:
        """Return the resync period, or less until the end of a quarantine or a retry of postponed pages."""
        resync = self.resync_seconds * (0.8 + 0.2 * self.random.random())
        rest = self.allocator.absences.seconds_left(self.clock()) + 1.5 * self.random.random()
        retry = self._backoff_seconds() if self._failures else inf
        return max(1.0, min(resync, rest, retry))

    def _backoff_seconds(self) -> float:
        return backoff_seconds(self._failures, self.random.random())
