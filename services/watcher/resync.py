"""Provisions the stream and publishes every object to it, at start and whenever something may be missing."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from libs.common.bus.delivery import TemporaryError, backoff_seconds
from libs.common.bus.ordered_publisher import PublishOutcome
from libs.common.bus.protocol import BusError, StreamStats
from libs.common.bus.stream_limits import SNAPSHOT_TTL, is_half_full
from libs.common.contract.services import DURABLES
from libs.common.observability import metrics
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.service import Dependencies
from services.watcher.core.leader_epoch import LeaderEpoch
from services.watcher.core.publish_decision import FencingToken, estimate_stream_bytes
from services.watcher.core.published_state import PublishedState
from services.watcher.informer import Informer, ServiceCidrInformer
from services.watcher.leader_publisher import LeaderPublisher
from services.watcher.resync_requests import ResyncRequests

log = logging.getLogger(__name__)

_RETRY_CAP_SECONDS: Final = 2.0  # for operations on the whole stream: all other work depends on them
_FOLLOW_TIMEOUT_SECONDS: Final = 15.0  # for the follower to find the provisioned stream, or our Leading
_LIST_WAIT_SECONDS: Final = 1.0  # of a snapshot of Nodes for a list of CSRs
_REPUBLISH_STEPS: Final = 25  # per resync period; each reads the whole store
_ROUND_IS_VOID: Final = "the stream or the leader changed before all objects were published"


class ResyncRound(msgspec.Struct, frozen=True):
    """The token of a round and the follow generation of its stream."""

    token: FencingToken
    follow_generation: int


class ResyncInterrupted(TemporaryError):
    """The round must start again; the text gives the reason."""


@dataclass(eq=False, kw_only=True)
class Resync:
    """Keeps the stream complete: it contains every Node with this leader's epoch, and the snapshot.

    CSRs and Services take part once they are listed. Until then the snapshot omits their number, and Nodes do
    not wait.
    Another snapshot follows when the ranges of ServiceCIDRs change.
    """

    dependencies: Dependencies
    elector: LeaderElector
    epoch: LeaderEpoch
    published: PublishedState
    publisher: LeaderPublisher
    kinds: tuple[Informer[Any], ...]  # Nodes first
    service_cidrs: ServiceCidrInformer
    requests: ResyncRequests
    republish_seconds: float

    def __post_init__(self) -> None:
        self._completed_round: ResyncRound | None = None
        self._published_cidrs: tuple[str, ...] | None = None  # in the last snapshot of this leader
        self._max_bytes = 0
        self._last_error = ""
        self.first_completed = asyncio.Event()  # set when the first round is complete

    @property
    def is_complete(self) -> bool:
        """Whether the stream contains every object, as far as known."""
        completed = self._completed_round
        return completed is not None and not self.requests.needs_round and self._is_current(completed)

    def problems(self) -> tuple[str, ...]:
        """Return why objects may be missing in the stream, in words for /readyz."""
        if self.is_complete:
            return ()
        because = f": {self._last_error}" if self._last_error else ""
        return (f"objects may be missing in the stream{because}",)

    def on_stats(self, stats: StreamStats) -> None:
        """Request what the stream needs: all objects after a purge, a missing durable consumer, or room."""
        if self.published.has_lost_nodes(stats.first_sequence):
            log.warning("stream has lost Nodes (was it purged?), publishing every object again")
            self.requests.request_round()
        missing = {durable.name for durable in DURABLES} - {queue.name for queue in stats.consumers}
        if missing and self.is_complete:  # a round provisions it anyway
            log.warning(
                "durable consumer missing, creating it again", extra={"durable": ",".join(sorted(missing))}
            )
            self.requests.request_verification()
        if is_half_full(stats.max_bytes, stats.bytes):
            self.requests.request_growth()
        else:
            self.publisher.headroom_percent = None

    async def run(self) -> NoReturn:
        """Keep the stream complete until cancelled. Raises LeadershipLost if another watcher leads."""
        attempt = 0
        while True:
            try:
                await (self._verify() if self.is_complete else self._run_round())
            except (BusError, TemporaryError) as error:
                attempt += 1
                self._log_failure(error)
                wait = backoff_seconds(attempt, self.dependencies.random.random())
                await asyncio.sleep(min(_RETRY_CAP_SECONDS, wait))
                continue
            attempt = 0
            self._last_error = ""
            await self.requests.wait_for(lambda: self._needs_work() or not self.is_complete)

    async def republish_periodically(self) -> NoReturn:
        """Publish every object again in each period, spread over it, and then the snapshot.

        The next period begins after that snapshot, which takes long while the bus is slow.
        """
        await self.first_completed.wait()
        while True:
            began, reached = self.dependencies.monotonic(), 0.0
            while reached < 1.0:
                await asyncio.sleep(self.republish_seconds / _REPUBLISH_STEPS)
                step = min(1.0, (self.dependencies.monotonic() - began) / self.republish_seconds)
                for kind in self.kinds:
                    kind.publisher.republish(since=reached, until=step)
                reached = step
            self.requests.request_verification()
            await self.requests.wait_for(lambda: not self.requests.needs_verification)

    async def _run_round(self) -> None:
        for kind in self.kinds:
            kind.publisher.pause()
        self._completed_round = None
        await self.requests.wait_for(lambda: self.kinds[0].store.has_synced)
        await self._wait_until_followed(await self._provision())
        if self.epoch.is_deposed:
            await self.elector.confirm_leadership()
            now = self.dependencies.monotonic()
            silence_seconds = self.publisher.heartbeat_ttl_seconds
            if conflict := self.epoch.find_conflict(now, silence_seconds=silence_seconds):
                raise ResyncInterrupted(conflict)
        self.requests.needs_round = False  # from now on, a request needs another one
        current = ResyncRound(self.epoch.next_token(), self.published.follow_generation)
        await self.publisher.publish_heartbeat()
        await self._wait_for_own_leading(current)
        await self._publish_all(current)
        self._completed_round = current
        self.first_completed.set()

    async def _verify(self) -> None:
        completed = self._completed_round
        stream_id = await self._provision()
        self.on_stats(await self.dependencies.bus.stats())  # no snapshot without the objects that it counts
        if completed is None or stream_id != completed.token.stream_id or self.requests.needs_round:
            self._completed_round = None
        elif self.requests.needs_verification or self._has_late_kind() or self._has_other_cidrs():
            self.requests.needs_verification = True  # until the publish succeeds
            await self._publish_all(completed)
            self.requests.end_verification()

    async def _publish_all(self, current: ResyncRound) -> None:
        """Publish each kind that was listed and is not in the round yet, then the snapshot."""
        await self._publish_listed(current)
        with contextlib.suppress(TimeoutError):  # lists that are requested together usually arrive together
            async with asyncio.timeout(_LIST_WAIT_SECONDS):
                await self.requests.wait_for(lambda: not self._is_sync_pending())
        await self._publish_listed(current)
        await self._publish_snapshot(current)

    async def _publish_listed(self, current: ResyncRound) -> None:
        for kind in self.kinds:
            if kind.is_missing_from_round:
                kind.publisher.start_round(current.token)
        await self.requests.wait_for(
            lambda: (
                all(kind.publisher.is_round_complete for kind in self.kinds) or not self._is_current(current)
            )
        )

    async def _provision(self) -> str:
        self.requests.needs_growth = False
        max_bytes = max(self._max_bytes, self._needed_bytes())
        stream_id = await self.dependencies.bus.provision(DURABLES, max_bytes=max_bytes)
        self._max_bytes = max_bytes
        token = self.epoch.token
        if token is not None and token.stream_id != stream_id:
            metrics.STREAM_REPROVISIONED.inc()
        return stream_id

    async def _wait_until_followed(self, stream_id: str) -> None:
        await self._wait_for_follower(
            lambda: self.published.follow_generation > 0 and self.published.stream_id == stream_id,
            otherwise="the stream exists, but is not followed",
        )

    async def _wait_for_own_leading(self, current: ResyncRound) -> None:
        """Wait until the follower has received every message that came before the Leading of this epoch.

        One of them may be the last message of a former leader. Followers accept it, because it came before
        the Leading, so the round must publish that object, too.
        """
        await self._wait_for_follower(
            lambda: self.published.greatest_epoch >= current.token.epoch or not self._is_current(current),
            otherwise="the leader does not receive its own Leading",
        )
        if not self._is_current(current):
            raise ResyncInterrupted(_ROUND_IS_VOID)

    async def _wait_for_follower(self, condition: Callable[[], bool], *, otherwise: str) -> None:
        try:
            async with asyncio.timeout(_FOLLOW_TIMEOUT_SECONDS):
                await self.requests.wait_for(condition)
        except TimeoutError as error:
            raise ResyncInterrupted(otherwise, *self.published.problems()) from error

    async def _publish_snapshot(self, current: ResyncRound) -> None:
        in_round = [each for each in self.kinds if each.publisher.is_in_round]
        counts = {each.publisher.kind.count_field: len(each.store) for each in in_round}
        snapshot = self.epoch.build_snapshot(counts, self.service_cidrs.cidrs)
        if snapshot is None or not self._is_current(current):
            raise ResyncInterrupted(_ROUND_IS_VOID)
        ttl_seconds = int(SNAPSHOT_TTL.total_seconds())
        if await self.publisher.publish(snapshot, ttl_seconds=ttl_seconds) is not PublishOutcome.PUBLISHED:
            raise ResyncInterrupted("the stream contains another leader's snapshot")
        self._published_cidrs = snapshot.service_cidrs
        metrics.RESYNC_LAST.set(self.dependencies.now().timestamp())
        fields = {
            "stream_id": snapshot.stream_id,
            "epoch": snapshot.epoch,
            "nodes": snapshot.nodes,
            "requests": snapshot.requests,
            "services": snapshot.services,
        }
        log.info("resync complete", extra=fields)

    def _is_current(self, current: ResyncRound) -> bool:
        is_followed = current.follow_generation == self.published.follow_generation
        return is_followed and self.epoch.is_current and current.token == self.epoch.token

    def _needs_work(self) -> bool:
        return (
            self._has_late_kind()
            or self._has_other_cidrs()
            or self.requests.needs_verification
            or self.requests.needs_growth
            or self._needed_bytes() > self._max_bytes
        )

    def _is_sync_pending(self) -> bool:
        is_pending = any(kind.is_sync_pending for kind in self.kinds)
        return is_pending or self.service_cidrs.is_sync_pending

    def _has_late_kind(self) -> bool:
        return any(kind.is_missing_from_round for kind in self.kinds)

    def _has_other_cidrs(self) -> bool:
        return self.service_cidrs.cidrs != self._published_cidrs

    def _needed_bytes(self) -> int:
        counts = [(each.publisher.kind, len(each.store)) for each in self.kinds]
        return estimate_stream_bytes(counts, self.published.subject_count)

    def _log_failure(self, error: Exception) -> None:
        if not self._last_error:  # log an outage once
            log.warning("resync failed, will retry", extra={"error": str(error)})
        self._last_error = str(error)
