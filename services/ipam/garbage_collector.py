"""Compares all claims with all Nodes, periodically and after a Node was deleted."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from libs.common.bus.delivery import PermanentError, TemporaryError, backoff_seconds, exponential_step
from libs.common.observability import metrics
from services.ipam.allocator import Allocator
from services.ipam.garbage_collection import SweepResult
from services.ipam.node_events import CONFLICT, OTHER_ALLOCATOR, NodeEvents
from services.ipam.pages import Claim, Page
from services.ipam.pool_metrics import PoolMetrics
from services.ipam.release_plan import InvalidPodCidr

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 0.5
REQUESTED_SWEEP_DELAY_SECONDS: Final = 2.0  # one sweep covers Nodes that are deleted together
_MIN_INTERVAL_SECONDS: Final = 10.0  # between two requested sweeps: each one lists all Nodes
_METRICS_INTERVAL_SECONDS: Final = 10.0  # counting ten thousand claims takes 0.1 s
_POSTPONED_SECONDS: Final = 5.0  # after another replica wrote the page meanwhile
_POSTPONED_CAP_SECONDS: Final = 60.0  # if the page accepts no writes: each sweep lists all Nodes
_MAX_REPORTED: Final = 20  # by name, per sweep; the others are only counted
_MAX_REMEMBERED_INVALID: Final = 50_000


@dataclass(eq=False)
class GarbageCollector:
    """Runs in every replica; writes compare and swap, and the second replica finds nothing to do."""

    allocator: Allocator
    node_events: NodeEvents
    _: KW_ONLY
    resync_seconds: float
    get_pause_reason: Callable[[], str]  # why no sweep may run now, or ""
    on_blocks_freed: Callable[[], None]  # called when claims have ended
    pool_metrics: PoolMetrics
    clock: Callable[[], float]  # monotonic, in seconds
    random: random.Random

    def __post_init__(self) -> None:
        self._next_sweep_at = float("-inf")
        self._last_sweep_at = float("-inf")
        self._failures = 0
        self._postponed = 0  # number of sweeps in a row that postponed a page
        self._has_imported = False  # the podCIDRs of existing Nodes have been adopted
        self._reported_invalid: set[tuple[str, str]] = set()  # uid and podCIDR
        self._metrics_refreshed_at = float("-inf")

    def request_sweep(self) -> None:
        """Request a sweep: a Node was deleted, or has podCIDRs that ipam did not assign."""
        at = max(self.clock() + REQUESTED_SWEEP_DELAY_SECONDS, self._last_sweep_at + _MIN_INTERVAL_SECONDS)
        self._next_sweep_at = min(self._next_sweep_at, at)

    def restart(self) -> None:
        """Sweep at once, after the stream was replaced."""
        self._next_sweep_at = float("-inf")

    async def run(self) -> None:
        """Run sweeps and refresh the metrics until cancelled."""
        while True:
            if self.clock() >= self._next_sweep_at and not self.get_pause_reason():
                await self._sweep()
            if self.clock() - self._metrics_refreshed_at >= _METRICS_INTERVAL_SECONDS:
                self._metrics_refreshed_at = self.clock()
                self.pool_metrics.refresh(self.allocator.pages.by_range)
            await asyncio.sleep(PASS_SECONDS)

    async def _sweep(self) -> None:
        self._next_sweep_at = float("inf")  # a request during this sweep causes another one
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
        self._failures = 0
        self._postponed = self._postponed + 1 if result.postponed else 0
        self._last_sweep_at = self.clock()
        self._next_sweep_at = min(self._next_sweep_at, self._last_sweep_at + self._seconds_until_next(result))
        self._report(result)
        self.pool_metrics.record_freed((*result.freed, *result.dropped))
        if result.freed or result.dropped:
            self.on_blocks_freed()

    def _handle_failure(self, error: Exception) -> None:
        self._failures += 1
        self._next_sweep_at = self.clock() + backoff_seconds(self._failures, self.random.random())
        if self._failures == 1:
            log.warning("sweep failed, will retry", extra={"error": str(error)})

    def _seconds_until_next(self, collected: SweepResult) -> float:
        """Return the resync period, or less until the end of a quarantine or a retry of postponed pages."""
        resync = self.resync_seconds * (0.8 + 0.2 * self.random.random())
        postponed = {page_range for page_range, _ in collected.postponed}
        jitter = 1.5 * self.random.random()
        soonest = self._seconds_until_released(lambda page: page.range not in postponed, resync) + jitter
        if postponed:
            due = self._seconds_until_released(lambda page: page.range in postponed, resync) + jitter
            at_least = exponential_step(self._postponed, first=1.0, cap=_POSTPONED_CAP_SECONDS)
            soonest = min(soonest, max(at_least, min(due, _POSTPONED_SECONDS)))
        return max(1.0, min(resync, soonest))

    def _seconds_until_released(self, is_meant: Callable[[Page], bool], otherwise: float) -> float:
        """Return the seconds until the first quarantine in those pages ends; `otherwise` if there is none."""
        left = [
            self.allocator.absences.seconds_left((block, claim.uid), self.clock())
            for page in self.allocator.pages.by_range.values()
            if is_meant(page)
            for block, claim in page.claims.items()
        ]
        return min((otherwise, *left))

    # ---- reports

    def _report(self, collected: SweepResult) -> None:
        for outcome, claims in (("freed", collected.freed), ("dropped", collected.dropped)):
            if claims:
                log.info("blocks released", extra={"why": outcome, **_log_fields(claims)})
        for page_range, why in collected.postponed:
            log.info("page of claims postponed to the next sweep", extra={"page": page_range, "why": why})
        self._report_invalid(collected.invalid, is_complete=not collected.postponed)
        # The first sweep finds podCIDRs from before ipam was installed, which are expected.
        foreign = collected.adopted if self._has_imported else collected.unexpected
        if foreign:
            self._report_foreign(foreign)
        foreign_blocks = {claim.block for claim in foreign}
        if imported := [claim for claim in collected.adopted if claim.block not in foreign_blocks]:
            log.info("existing pod CIDRs adopted", extra=_log_fields(imported))
        self._has_imported = self._has_imported or not collected.postponed

    def _report_foreign(self, claims: Sequence[Claim]) -> None:
        """Report podCIDRs that ipam did not claim; it cannot prevent them."""
        metrics.IPAM_FOREIGN.inc(len({claim.uid for claim in claims}))
        text = (
            "has {}, which ipam did not claim: another allocator runs, or ran while ipam did not "
            "(kube-controller-manager? it needs --controllers=*,-node-ipam-controller), or a page of claims "
            "was deleted"
        )
        log.warning(
            "pod CIDRs found that ipam did not claim: another allocator, or a deleted page of claims",
            extra=_log_fields(claims),
        )
        for claim in claims[:_MAX_REPORTED]:
            self.node_events.record(claim.node, claim.uid, OTHER_ALLOCATOR, f"it {text.format(claim.block)}")

    def _report_invalid(self, found: Sequence[InvalidPodCidr], *, is_complete: bool) -> None:
        """Report new invalid podCIDRs; keep the earlier ones of pages that an incomplete sweep skipped."""
        new = [invalid for invalid in found if (invalid.uid, invalid.cidr) not in self._reported_invalid]
        now = {(invalid.uid, invalid.cidr) for invalid in found[:_MAX_REMEMBERED_INVALID]}
        self._reported_invalid = (
            now
            if is_complete or len(self._reported_invalid) > _MAX_REMEMBERED_INVALID
            else self._reported_invalid | now
        )
        metrics.IPAM_CONFLICTS.set(max(len(found), len(self._reported_invalid)))
        if not new:
            return
        shown = "; ".join(
            f"{invalid.node} {invalid.cidr}: {invalid.reason}" for invalid in new[:_MAX_REPORTED]
        )
        log.warning("invalid pod CIDRs found", extra={"count": len(new), "nodes": shown})
        for invalid in new[:_MAX_REPORTED]:
            self.node_events.record(
                invalid.node,
                invalid.uid,
                CONFLICT,
                f"its pod CIDR {invalid.cidr} is invalid: {invalid.reason}",
            )


def _log_fields(claims: Sequence[Claim]) -> dict[str, object]:
    shown = ", ".join(f"{claim.node} {claim.block}" for claim in claims[:_MAX_REPORTED])
    return {"count": len(claims), "nodes": shown}
