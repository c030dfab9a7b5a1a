"""Provisions the stream and publishes every object to it, at start and whenever something may be missing."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, NoReturn

import msgspec

from libs.common.bus.delivery import TemporaryError, backoff_seconds
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError, StreamFull, StreamStats
from libs.common.bus.stream_limits import HEADROOM_BYTES, is_half_full
from libs.common.contract.events import Leading, SnapshotComplete
from libs.common.contract.node import Node
from libs.common.contract.services import DURABLES
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import SNAPSHOT
from libs.common.observability import metrics
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.service import Dependencies
from services.watcher.kind_controller import KindController
from services.watcher.leader_epoch import LeaderEpoch
from services.watcher.publish_decision import FencingToken, estimate_stream_bytes
from services.watcher.published_state import PublishedState
from services.watcher.service_cidr_informer import ServiceCidrInformer

log = logging.getLogger(__name__)

_RETRY_CAP_SECONDS: Final = 2.0  # for operations on the whole stream: all other work depends on them
_FOLLOW_TIMEOUT_SECONDS: Final = 15.0  # for the follower to find the provisioned stream, or our Leading

_GROWTH_INTERVAL_SECONDS: Final = 5.0  # between two attempts: a server without room rejects each of them
_LIST_WAIT_SECONDS: Final = 1.0  # of a snapshot of Nodes for a list of CSRs
_ROUND_IS_VOID: Final = "the stream or the leader changed before all objects were published"


class ResyncRound(msgspec.Struct, frozen=True):
    """The token of a round and the follow generation of its stream."""

    token: FencingToken
    follow_generation: int


class ResyncInterrupted(TemporaryError):
    """The round must start again; the text gives the reason."""


@dataclass(eq=False)
class Resync:
    """Keeps the stream complete: it contains every Node with this leader's epoch, and the snapshot.

    CSRs take part once they are listed. Until then the snapshot omits their number, and Nodes do not wait.
    Another snapshot follows when the ranges of ServiceCIDRs change.
    Call `wake` when the state of a collaborator changes.
    """

    dependencies: Dependencies
    _: KW_ONLY
    elector: LeaderElector
    leader_epoch: LeaderEpoch
    published: PublishedState
    nodes: KindController[Node]
    requests: KindController[SigningRequest] | None
    service_cidrs: ServiceCidrInformer
    publisher: OrderedPublisher
    heartbeat_ttl_seconds: float  # how long a Leading is valid

    def __post_init__(self) -> None:
        self._controllers = (self.nodes,) if self.requests is None else (self.nodes, self.requests)
        self._ttl_seconds = max(1, int(self.heartbeat_ttl_seconds))
        self._completed_round: ResyncRound | None = None
        self._published_cidrs: tuple[str, ...] | None = None  # in the last snapshot of this leader
        self._max_bytes = 0
        self._is_verification_requested = False
        self._is_growth_requested = False
        self._next_growth_at = float("-inf")
        self._last_error = ""
        self._headroom_percent: int | None = None  # as last logged; None once the stream has room again
        self._wakeup = asyncio.Event()
        self.first_completed = asyncio.Event()  # set when the first round is complete

    @property
    def is_complete(self) -> bool:
        """Whether the stream contains every object, as far as known."""
        return self._completed_round is not None and self._is_current(self._completed_round)

    def problems(self) -> tuple[str, ...]:
        """Return why objects may be missing in the stream, in words for /readyz."""
        if self.is_complete:
            return ()
        because = f": {self._last_error}" if self._last_error else ""
        return (f"objects may be missing in the stream{because}",)

    def wake(self) -> None:
        """Reevaluate after a change that a round waits for or that requires another round."""
        self._wakeup.set()

    def restart(self) -> None:
        """Start another round, because the stream does not exist."""
        self._completed_round = None
        self.wake()

    def request_verification(self) -> None:
        """Provision the stream and its durable consumers again, then publish another snapshot."""
        self._is_verification_requested = True
        self.wake()

    def on_stats(self, stats: StreamStats) -> None:
        """Request growth before the stream is full, and verification if a durable consumer is missing."""
        missing = {durable.name for durable in DURABLES} - {queue.name for queue in stats.consumers}
        if missing and self.is_complete:  # a round provisions it anyway
            log.warning(
                "durable consumer missing, creating it again", extra={"durable": ",".join(sorted(missing))}
            )
            self.request_verification()
        if is_half_full(stats.max_bytes, stats.bytes):
            self.request_growth()
        else:
            self._headroom_percent = None

    def request_growth(self) -> None:
        """Request growth of the stream, at most once per growth interval."""
        now = self.dependencies.monotonic()
        if now >= self._next_growth_at:
            self._is_growth_requested, self._next_growth_at = True, now + _GROWTH_INTERVAL_SECONDS
            self.wake()

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
            await self._wait_for(
                lambda: self._needs_work() or self._is_verification_requested or not self.is_complete
            )

    async def publish_heartbeat(self) -> None:
        """Publish Leading, valid until the renew deadline. Raises BusError, TemporaryError."""
        leading = self.leader_epoch.build_heartbeat()
        if leading is None:
            return
        if await self._publish(leading, ttl_seconds=self._ttl_seconds) is not PublishOutcome.PUBLISHED:
            self.leader_epoch.mark_rejected()
            self.wake()

    async def _publish(
        self, event: Leading | SnapshotComplete, *, ttl_seconds: int | None = None
    ) -> PublishOutcome:
        """Publish even to a full stream: other publishers must not silence the leader."""
        try:
            return await self.publisher.publish(event, ttl_seconds=ttl_seconds)
        except StreamFull:
            self.request_growth()
            async with self.dependencies.bus.headroom(event) as used_bytes:
                self._report_headroom(used_bytes)
                return await self.publisher.publish(event, ttl_seconds=ttl_seconds)

    def _report_headroom(self, used_bytes: int) -> None:
        """Log each change of the whole percent: on a full cluster each renewal uses the headroom."""
        percent = 100 * used_bytes // HEADROOM_BYTES
        if percent != self._headroom_percent:
            self._headroom_percent = percent
            log.warning("stream full, publishing into its headroom", extra={"used_percent": percent})

    async def _run_round(self) -> None:
        for kind in self._controllers:
            kind.pause()
        self._completed_round = None
        await self._wait_for(lambda: self.nodes.has_synced)
        await self._wait_until_followed(await self._provision())
        if self.leader_epoch.is_deposed:
            await self.elector.confirm_leadership()
            now = self.dependencies.monotonic()
            if conflict := self.leader_epoch.find_conflict(now, silence_seconds=self.heartbeat_ttl_seconds):
                raise ResyncInterrupted(conflict)
        current = ResyncRound(self.leader_epoch.next_token(), self.published.follow_generation)
        await self.publish_heartbeat()
        await self._wait_for_own_leading(current)
        await self._publish_all(current)
        self._completed_round = current
        self.first_completed.set()

    async def _verify(self) -> None:
        completed = self._completed_round
        stream_id = await self._provision()
        if completed is None or stream_id != completed.token.stream_id:
            self._completed_round = None
        elif self._is_verification_requested or self._has_late_kind() or self._has_other_cidrs():
            self._is_verification_requested = True  # until the publish succeeds
            await self._publish_all(completed)
            self._is_verification_requested = False

    async def _publish_all(self, current: ResyncRound) -> None:
        """Publish each kind that was listed and is not in the round yet, then the snapshot."""
        await self._publish_listed(current)
        with contextlib.suppress(TimeoutError):  # lists that are requested together usually arrive together
            async with asyncio.timeout(_LIST_WAIT_SECONDS):
                listed = (*self._controllers, self.service_cidrs)
                await self._wait_for(lambda: not any(kind.is_sync_pending for kind in listed))
        await self._publish_listed(current)
        await self._publish_snapshot(current)

    async def _publish_listed(self, current: ResyncRound) -> None:
        for kind in self._controllers:
            if kind.is_missing_from_round:
                kind.publish_all(current.token)
        await self._wait_for(
            lambda: all(k.is_round_published for k in self._controllers) or not self._is_current(current)
        )

    async def _provision(self) -> str:
        self._is_growth_requested = False
        max_bytes = max(self._max_bytes, self._needed_bytes())
        stream_id = await self.dependencies.bus.provision(DURABLES, max_bytes=max_bytes)
        self._max_bytes = max_bytes
        token = self.leader_epoch.token
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
                await self._wait_for(condition)
        except TimeoutError as error:
            raise ResyncInterrupted(otherwise, *self.published.problems()) from error

    async def _publish_snapshot(self, current: ResyncRound) -> None:
        snapshot = self.leader_epoch.build_snapshot(
            len(self.nodes),
            self.requests.published_count if self.requests is not None else None,
            self.service_cidrs.cidrs,
        )
        if snapshot is None or not self._is_current(current):
            raise ResyncInterrupted(_ROUND_IS_VOID)
        if await self._publish(snapshot) is not PublishOutcome.PUBLISHED:
            self.leader_epoch.mark_rejected()
            raise ResyncInterrupted("the stream contains another leader's snapshot")
        self._published_cidrs = snapshot.service_cidrs
        self.published.record_published(snapshot, self.publisher.last_sequence_of(SNAPSHOT))
        metrics.RESYNC_LAST.set(self.dependencies.now().timestamp())
        fields = {
            "stream_id": snapshot.stream_id,
            "epoch": snapshot.epoch,
            "nodes": snapshot.nodes,
            "requests": snapshot.requests,
        }
        log.info("resync complete", extra=fields)

    def _is_current(self, current: ResyncRound) -> bool:
        is_same_token = current.token == self.leader_epoch.token
        return (
            is_same_token
            and self.leader_epoch.is_current
            and current.follow_generation == self.published.follow_generation
        )

    def _needs_work(self) -> bool:
        return (
            self._has_late_kind()
            or self._has_other_cidrs()
            or self._is_growth_requested
            or self._needed_bytes() > self._max_bytes
        )

    def _has_late_kind(self) -> bool:
        return any(kind.is_missing_from_round for kind in self._controllers)

    def _has_other_cidrs(self) -> bool:
        return self.service_cidrs.cidrs != self._published_cidrs

    def _needed_bytes(self) -> int:
        nodes, requests = len(self.nodes), 0 if self.requests is None else len(self.requests)
        return estimate_stream_bytes(
            nodes, requests, deleted=max(0, self.published.subject_count - nodes - requests)
        )

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._wakeup.clear()
            await self._wakeup.wait()

    def _log_failure(self, error: Exception) -> None:
        if not self._last_error:  # log an outage once
            log.warning("resync failed, will retry", extra={"error": str(error)})
        self._last_error = str(error)
