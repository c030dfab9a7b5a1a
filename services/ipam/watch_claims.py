"""Keeps claims and Nodes together: looks at all of both now and then, and when a Node is gone."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from libs.common import metrics
from libs.common.delivery import PermanentError, TemporaryError, backoff_seconds, doubled
from services.ipam.allocator import Allocator
from services.ipam.measured import Measured
from services.ipam.node_events import CONFLICT, OTHER_ALLOCATOR, NodeEvents
from services.ipam.pages import Claim, Page
from services.ipam.release import Odd
from services.ipam.swept import Swept

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 0.5
SOON_SECONDS: Final = 2.0  # Nodes that go together are seen by one look
_AT_LEAST_SECONDS: Final = 10.0  # between two looks for Nodes that go one by one: each lists all Nodes
_MEASURE_SECONDS: Final = 10.0  # counting ten thousand claims takes a tenth of a second
_POSTPONED_SECONDS: Final = 5.0  # another replica wrote the page meanwhile
_POSTPONED_MOST_SECONDS: Final = 60.0  # it takes no writes at all, and each look lists all Nodes
_TOLD_AT_ONCE: Final = 20  # of one sweep, by name; the others are counted
_MOST_ODD: Final = 50_000


class WatchClaims:
    """Every replica does it; writes compare and swap, and who is second finds nothing to do."""

    def __init__(
        self,
        allocator: Allocator,
        events: NodeEvents,
        *,
        quarantine: timedelta,
        resync_seconds: float,
        why_not: Callable[[], str],
        room_made: Callable[[], None],
        measured: Measured,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        random: random.Random,
    ) -> None:
        """`why_not` says why nothing may be looked at now, "" if it may; `clock` is monotonic, in seconds.

        `room_made` hears that claims have ended.
        """
        self._allocator = allocator
        self._events = events
        self._quarantine = quarantine
        self._resync_seconds = resync_seconds
        self._why_not = why_not
        self._room_made = room_made
        self._measured = measured
        self._clock = clock
        self._now = now
        self._random = random
        self._due = float("-inf")
        self._last = float("-inf")
        self._failures = 0
        self._postponed = 0  # in a row, looks that left a page as it was
        self._imported = False  # what Nodes carry from before is in the pages
        self._odd: set[tuple[str, str]] = set()  # told of: uid and podCIDR
        self._measured_at = float("-inf")

    def soon(self) -> None:
        """A Node is gone, or carries what nobody here gave."""
        at = max(self._clock() + SOON_SECONDS, self._last + _AT_LEAST_SECONDS)
        self._due = min(self._due, at)

    def again(self) -> None:
        """Another stream: look at once."""
        self._due = float("-inf")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._clock() >= self._due and not self._why_not():
                await self._look()
            if self._clock() - self._measured_at >= _MEASURE_SECONDS:
                self._measured_at = self._clock()
                self._measured.look(self._allocator.pages.by_range)
            await asyncio.sleep(PASS_SECONDS)

    async def _look(self) -> None:
        self._due = float("inf")  # who asks for a look while this one is under way is heard
        try:
            swept = await self._allocator.sweep()
        except (TemporaryError, PermanentError) as error:
            self._failed(error)
            return
        except Exception as error:
            # Nodes bear what anybody wrote: a defect of ours that it hits must not stop all allocation.
            log.exception("claims and nodes could not be compared")
            self._failed(error)
            return
        self._failures = 0
        self._postponed = self._postponed + 1 if swept.postponed else 0
        self._last = self._clock()
        self._due = min(self._due, self._last + self._until_next(swept))
        self._tell(swept)
        self._measured.freed((*swept.freed, *swept.dropped))
        if swept.freed or swept.dropped:
            self._room_made()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._due = self._clock() + backoff_seconds(self._failures, self._random.random())
        if self._failures == 1:
            log.warning("claims and nodes are compared later", extra={"error": str(error)})

    def _until_next(self, swept: Swept) -> float:
        """A resync, or less: until a block has rested, or what could not be written is tried again."""
        resync = self._resync_seconds * (0.8 + 0.2 * self._random.random())
        postponed = {page_range for page_range, _ in swept.postponed}
        jitter = 1.5 * self._random.random()
        soonest = self._rested_in(lambda page: page.range not in postponed, resync) + jitter
        if postponed:
            due = self._rested_in(lambda page: page.range in postponed, resync) + jitter
            at_least = doubled(self._postponed, first=1.0, cap=_POSTPONED_MOST_SECONDS)
            soonest = min(soonest, max(at_least, min(due, _POSTPONED_SECONDS)))
        return max(1.0, min(resync, soonest))

    def _rested_in(self, is_meant: Callable[[Page], bool], otherwise: float) -> float:
        """In how many seconds the first block of those pages has rested; `otherwise` where none rests."""
        rested = [
            (claim.gone_since - self._now() + self._quarantine).total_seconds()
            for page in self._allocator.pages.by_range.values()
            if is_meant(page)
            for claim in page.claims.values()
            if claim.gone_since is not None
        ]
        return min(rested, default=otherwise)

    # ---- what was found

    def _tell(self, swept: Swept) -> None:
        for told, claims in (("freed", swept.freed), ("dropped", swept.dropped)):
            if claims:
                log.info("blocks are free again", extra={"why": told, **_named(claims)})
        for page_range, why in swept.postponed:
            log.info("a page of claims is looked at again", extra={"page": page_range, "why": why})
        self._tell_odd(swept.odd, is_all=not swept.postponed)
        # The first look finds what Nodes carry from before there was an ipam: nobody is to blame for that.
        foreign = swept.adopted if self._imported else swept.late
        if foreign:
            self._tell_foreign(foreign)
        blamed = {claim.block for claim in foreign}
        if from_before := [claim for claim in swept.adopted if claim.block not in blamed]:
            log.info("pod CIDRs of nodes were taken over as they are", extra=_named(from_before))
        self._imported = self._imported or not swept.postponed

    def _tell_foreign(self, claims: Sequence[Claim]) -> None:
        """Nobody can prevent it: it is told."""
        metrics.IPAM_FOREIGN.inc(len({claim.uid for claim in claims}))
        text = (
            "carries {}, which was not claimed here: another allocator runs, or ran while ipam did not "
            "(kube-controller-manager? it needs --controllers=*,-node-ipam-controller), or a page of claims "
            "was deleted"
        )
        log.warning(
            "nodes got pod CIDRs from somebody else, or a page of claims was deleted", extra=_named(claims)
        )
        for claim in claims[:_TOLD_AT_ONCE]:
            self._events.tell(claim.node, claim.uid, OTHER_ALLOCATOR, f"it {text.format(claim.block)}")

    def _tell_odd(self, found: Sequence[Odd], *, is_all: bool) -> None:
        """Unless that is all, what was odd before is so still: its page was not looked through."""
        news = [odd for odd in found if (odd.uid, odd.cidr) not in self._odd]
        now = {(odd.uid, odd.cidr) for odd in found[:_MOST_ODD]}
        self._odd = now if is_all or len(self._odd) > _MOST_ODD else self._odd | now
        metrics.IPAM_CONFLICTS.set(max(len(found), len(self._odd)))
        if not news:
            return
        shown = "; ".join(f"{odd.node} {odd.cidr}: {odd.reason}" for odd in news[:_TOLD_AT_ONCE])
        log.warning("odd pod CIDRs are left to their nodes", extra={"count": len(news), "nodes": shown})
        for odd in news[:_TOLD_AT_ONCE]:
            self._events.tell(odd.node, odd.uid, CONFLICT, f"its pod CIDR {odd.cidr} is odd: {odd.reason}")


def _named(claims: Sequence[Claim]) -> dict[str, object]:
    shown = ", ".join(f"{claim.node} {claim.block}" for claim in claims[:_TOLD_AT_ONCE])
    return {"count": len(claims), "nodes": shown}
