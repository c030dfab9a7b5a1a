"""Reads load balancers, and what else proves what became of them, with the time of each answer."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from libs.clouds.balancers import Balancers
from libs.clouds.instances import Anchor, Instances, Unanswered
from libs.common.contract.instances import InstanceAnchor
from libs.common.observability import metrics
from services.cloud.core.balancers.balancer_view import AnchorLookup, Listing, Lookup

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT")
_MAX_ANCHORS: Final = 100
VOID_GENERATION: Final = -1  # of a request during which the credential has changed


class TermClock:
    """The time of day at the begin of a term, and what has passed since.

    After the time of day is set back, answers from before a write would have later times than the write.
    """

    def __init__(self, now: Callable[[], datetime], monotonic: Callable[[], float]) -> None:
        self._now, self._monotonic = now, monotonic
        self.restart()

    def restart(self) -> None:
        """Begin a term: all earlier times are void."""
        self._began_at, self._began = self._now(), self._monotonic()

    def __call__(self) -> datetime:
        return self._began_at + timedelta(seconds=self._monotonic() - self._began)


@dataclass(eq=False, kw_only=True)
class BalancerReader:
    """The reads of one account. Services share a listing, and what is found of an anchor."""

    account: str
    balancers: Balancers[Any, Any]
    cloud: Instances
    now: TermClock

    def __post_init__(self) -> None:
        self._listing_lock, self._anchor_lock = asyncio.Lock(), asyncio.Lock()
        self.clear()
        self._reported: set[str] = set()  # ids of balancers without a Service

    def clear(self) -> None:
        """Forget all answers: of a former term."""
        self.listing: Listing | None = None  # the last one
        self.anchor_lookups: dict[InstanceAnchor, AnchorLookup] = {}  # the last one of each

    async def list_balancers(self, cluster_uid: str, *, reads_parts: bool = True) -> None:
        """List all balancers of the cluster, unless a listing has ended since this call began.

        The first listing of a term reads parts, too: another process may have changed them.
        """
        known = self.listing
        async with self._listing_lock:
            if self.listing is not known:
                return
            reads_parts = reads_parts or known is None or not self.balancers.has_outliving_parts
            answer, times = await self._ask(
                self.balancers.list_balancers(cluster_uid, reads_parts=reads_parts)
            )
            parts_began_at = times["began_at"] if reads_parts or known is None else known.parts_began_at
            self.listing = Listing(answer=answer, parts_began_at=parts_began_at, **times)

    async def read_balancer(self, balancer_id: str) -> Lookup:
        """Return the balancer with this id."""
        answer, times = await self._ask(self.balancers.get_balancer(balancer_id))
        return Lookup(balancer_id=balancer_id, answer=answer, **times)

    async def read_anchor(self, anchor: InstanceAnchor) -> None:
        """Look for the anchor with this id, unless such a request has ended since this call began."""
        known = self.anchor_lookups.get(anchor)
        async with self._anchor_lock:
            if self.anchor_lookups.get(anchor) is not known:
                return
            answer, times = await self._ask(self.cloud.get_anchor(Anchor(anchor.kind, anchor.id)))
            if len(self.anchor_lookups) >= _MAX_ANCHORS:  # a user may write any anchor into a record
                self.anchor_lookups.clear()
            self.anchor_lookups[anchor] = AnchorLookup(anchor=anchor, answer=answer, **times)

    def count_owned(self) -> Counter[str]:
        """Return how many listed balancers of this account each Service has, by its uid."""
        return Counter(uid for _, uid in self._list_owned())

    def report_orphans(self, service_uids: frozenset[str]) -> None:
        """Log and count the listed balancers of Services that do not exist. Nothing deletes them."""
        if self.listing is None or isinstance(self.listing.answer, Unanswered):
            return
        orphans = {balancer_id for balancer_id, uid in self._list_owned() if uid not in service_uids}
        metrics.BALANCER_ORPHANS.labels(self.account).set(len(orphans))
        for balancer_id in orphans - self._reported:
            log.warning(
                "load balancer without a Service: it costs money",
                extra={"account": self.account, "balancer": balancer_id},
            )
        self._reported = orphans

    def _list_owned(self) -> list[tuple[str, str]]:
        """Return the ids of the listed balancers of this account with those of their Services."""
        if self.listing is None or isinstance(self.listing.answer, Unanswered):
            return []
        owned = ((each.id, each.owner) for each in self.listing.answer if each.owner is not None)
        return [(number, owner.service_uid) for number, owner in owned if owner.account == self.account]

    async def _ask(self, request: Awaitable[AnswerT]) -> tuple[AnswerT, dict[str, Any]]:
        before, began_at = self.balancers.credential.generation, self.now()
        answer = await request
        after = self.balancers.credential.generation
        # The first reading of the credential is part of the first request.
        generation = after if before in (0, after) else VOID_GENERATION
        return answer, {"began_at": began_at, "ended_at": self.now(), "generation": generation}
