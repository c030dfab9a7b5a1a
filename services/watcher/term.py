"""One term of leadership: provisions, says who leads, says everything, and all of it again when it may be missing."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final, NoReturn

import msgspec

from libs.common import metrics
from libs.common.bus import BusError, NoStream
from libs.common.delivery import TemporaryError, backoff_seconds
from libs.common.events import Leading, SnapshotComplete
from libs.common.publisher import OrderedPublisher, Outcome
from libs.common.service import Parts
from libs.common.subjects import SNAPSHOT
from libs.common.wiring import DURABLES
from services.watcher.cluster import Cluster
from services.watcher.held import HeldFlow
from services.watcher.leader import Candidacy
from services.watcher.observe import Stamp, next_epoch, stream_bytes
from services.watcher.publish_nodes import NodePublisher
from services.watcher.resync import due
from services.watcher.settings import WatcherSettings
from services.watcher.watch_nodes import NodeSourceMaker, NodeWatch

_log = logging.getLogger(__name__)

_RETRY_CAP_SECONDS: Final = 2.0  # of what concerns the whole stream: nothing goes on without it
_FOLLOW_SECONDS: Final = 15.0  # until the follower must have found the stream that was provisioned
_RESYNC_STEPS: Final = 100  # of a round, at least
_RESYNC_STEP_SECONDS: Final = 1.0


class Round(msgspec.Struct, frozen=True):
    """What has been said completely: with which stamp, and to which generation of the follower."""

    stamp: Stamp
    generation: int


class Interrupted(TemporaryError):
    """The stream was lost, or somebody spoke with a greater epoch, before everything was said."""


class Term:
    """From winning to losing the lead. Nothing but what the stream holds outlives it."""

    def __init__(
        self,
        parts: Parts,
        settings: WatcherSettings,
        *,
        candidacy: Candidacy,
        transitions: int,
        held: HeldFlow,
        publisher: OrderedPublisher,
        source: NodeSourceMaker,
    ) -> None:
        """`transitions` is the Lease's count of holders; `held` must be followed, and call `wake`."""
        self._parts = parts
        self._settings = settings
        self._candidacy = candidacy
        self._transitions = transitions
        self._held = held
        self._publisher = publisher
        self._cluster = Cluster()
        self._nodes = NodePublisher(
            cluster=self._cluster,
            held=held,
            publisher=publisher,
            in_flight=settings.in_flight,
            now=parts.now,
            jitter=parts.random.random,
            on_settled=self.wake,
            on_no_stream=self._on_no_stream,
        )
        self._watch = NodeWatch(
            source,
            self._cluster,
            now=parts.now,
            on_list=self.wake,
            on_rewound=self._on_rewound,
            on_news=self._on_news,
        )
        self._stamp: Stamp | None = None  # of what is being said now
        self._done: Round | None = None  # None as soon as the stream may lack something
        self._max_bytes = 0
        self._another_epoch = True
        self._refused = False
        self._resynced = False
        self._trouble = ""
        self._woken = asyncio.Event()
        self._renewed = asyncio.Event()
        self._first_round = asyncio.Event()

    def problems(self) -> tuple[str, ...]:
        """Why the flow is not all that Kubernetes holds, in words for /readyz."""
        because = f": {self._trouble}" if self._trouble else ""
        round_open = () if self._stands() else (f"not everything has been said to the stream yet{because}",)
        return (*self._watch.problems(), *self._held.problems(), *round_open, *self._nodes.problems())

    async def run(self) -> NoReturn:
        """Lead until cancelled. Raises LeadershipLost, in a group with whatever else went wrong."""
        async with asyncio.TaskGroup() as tasks:
            for work in (
                self._nodes.run(),
                self._watch.run(),
                self._rounds(),
                self._resyncs(),
                self._herald(),
            ):
                tasks.create_task(work)
            await self._candidacy.keep(self._renewed.set)
        raise AssertionError("a leader leads until it is cancelled or loses the lead")

    def wake(self) -> None:
        """Something has changed that a round may wait for, or that calls for another one."""
        self._woken.set()

    # ---- rounds: provision, lead, say everything

    async def _rounds(self) -> NoReturn:
        attempt = 0
        while True:
            try:
                await (self._verify() if self._stands() else self._round())
            except (BusError, TemporaryError) as error:
                self._tell(error)
                attempt += 1
                await asyncio.sleep(
                    min(_RETRY_CAP_SECONDS, backoff_seconds(attempt, self._parts.random.random()))
                )
                continue
            attempt = 0
            self._trouble = ""
            await self._until(lambda: self._resynced or self._is_small() or not self._stands())

    async def _round(self) -> None:
        self._nodes.pause()
        self._done = None
        await self._until(lambda: self._cluster.listed)
        incarnation = await self._provision()
        await self._follow(incarnation)
        begun = Round(stamp=await self._next_stamp(), generation=self._held.generation)
        self._stamp = begun.stamp
        await self._say_leading()
        self._nodes.say_all(begun.stamp, self._cluster.names() | self._held.existing())
        await self._until(lambda: self._nodes.round_complete or not self._is_current(begun))
        if not self._is_current(begun):
            raise Interrupted("the stream was lost, or another leader spoke, before everything was said")
        await self._say_complete()
        self._done = begun
        self._first_round.set()
        _log.info(
            "everything has been said",
            extra={"nodes": len(self._cluster), "epoch": begun.stamp.epoch, "incarnation": incarnation},
        )

    async def _verify(self) -> None:
        """Restore what somebody took from the stream's configuration, and say again that all is there."""
        incarnation = await self._provision()
        if self._done is None or incarnation != self._done.stamp.incarnation:
            self._done = None
            return
        if self._resynced:
            await self._say_complete()
            self._resynced = False

    async def _provision(self) -> str:
        max_bytes = max(self._max_bytes, stream_bytes(len(self._cluster)))
        incarnation = await self._parts.bus.provision(DURABLES, max_bytes=max_bytes)
        self._max_bytes = max_bytes
        return incarnation

    async def _follow(self, incarnation: str) -> None:
        if self._stamp is not None and self._stamp.incarnation != incarnation:
            metrics.STREAM_REPROVISIONED.inc()
        try:
            async with asyncio.timeout(_FOLLOW_SECONDS):
                await self._until(lambda: self._held.generation > 0 and self._held.incarnation == incarnation)
        except TimeoutError as error:
            raise Interrupted(
                f"the stream is there, but cannot be followed: {self._held.problems()}"
            ) from error

    async def _next_stamp(self) -> Stamp:
        """The epoch stays ours for the whole term, unless somebody or a restored etcd has gone past it."""
        epoch = self._stamp.epoch if self._stamp is not None else 0
        outranked = self._stamp is not None and self._is_outranked(self._stamp)
        if outranked:
            await self._candidacy.confirm()
        if outranked or self._another_epoch:
            heard = max(epoch, self._held.greatest_epoch)
            epoch = next_epoch(heard=heard, lease_transitions=self._transitions)
        self._another_epoch = self._refused = False
        return Stamp(incarnation=self._held.incarnation, epoch=epoch)

    async def _say_complete(self) -> None:
        assert self._stamp is not None
        event = SnapshotComplete(
            incarnation=self._stamp.incarnation, epoch=self._stamp.epoch, nodes=len(self._cluster)
        )
        if self._is_outranked(self._stamp) or await self._publisher.publish(event) is not Outcome.PUBLISHED:
            self._refused = True
            raise Interrupted("another leader's snapshot stands in the stream")
        self._held.said(event, self._publisher.sequence_of(SNAPSHOT))
        metrics.RESYNC_LAST.set(self._parts.now().timestamp())

    def _stands(self) -> bool:
        return self._done is not None and self._is_current(self._done)

    def _is_current(self, begun: Round) -> bool:
        """Whether what was said since then is in the stream, and ours is the last word."""
        same_flow = self._held.generation == begun.generation
        return same_flow and not self._another_epoch and not self._is_outranked(begun.stamp)

    def _is_outranked(self, stamp: Stamp) -> bool:
        return self._refused or self._held.is_outranked(stamp.epoch, self._parts.identity)

    def _is_small(self) -> bool:
        return stream_bytes(len(self._cluster)) > self._max_bytes

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._woken.clear()
            await self._woken.wait()

    def _tell(self, error: Exception) -> None:
        if not self._trouble:  # told once; what follows is the same outage
            _log.warning("not everything can be said to the stream", extra={"error": str(error)})
        self._trouble = str(error)

    # ---- what calls for a round

    def _on_news(self, names: Collection[str]) -> None:
        self._nodes.say(names)
        if self._is_small():
            self.wake()

    def _on_no_stream(self) -> None:
        self._done = None
        self.wake()

    def _on_rewound(self) -> None:
        _log.warning("the API server's resourceVersions went back (a restored etcd?): a new epoch begins")
        self._another_epoch = True
        self.wake()

    # ---- the herald: who leads, at each renewal

    async def _herald(self) -> NoReturn:
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            if self._stamp is None or self._held.generation == 0:
                continue  # the round says it
            try:
                await self._say_leading()
            except NoStream:
                self._on_no_stream()
            except (BusError, TemporaryError) as error:
                _log.info("who leads cannot be said this time", extra={"error": str(error)})

    async def _say_leading(self) -> None:
        assert self._stamp is not None
        event = Leading(
            incarnation=self._stamp.incarnation, epoch=self._stamp.epoch, holder=self._parts.identity
        )
        ttl = max(1, int(self._settings.renew_deadline_seconds))
        # Having followed, we know the sequence of a later leader's word: it alone would let us overwrite it.
        outranked = self._is_outranked(self._stamp)
        if outranked or await self._publisher.publish(event, ttl_seconds=ttl) is not Outcome.PUBLISHED:
            self._refused = True
            self.wake()

    # ---- the resync

    async def _resyncs(self) -> NoReturn:
        period = self._settings.resync_seconds
        await self._first_round.wait()
        while True:
            began, reached = self._parts.monotonic(), 0.0
            while reached < 1.0:
                await asyncio.sleep(min(_RESYNC_STEP_SECONDS, period / _RESYNC_STEPS))
                step = min(1.0, (self._parts.monotonic() - began) / period)
                names = self._cluster.names_by_uid()
                self._nodes.say_again([names[uid] for uid in due(names, since=reached, until=step)])
                reached = step
            self._resynced = True
            self.wake()
