"""Provisions the stream and says everything to it: at first, and again whenever something may be missing."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from libs.common import metrics
from libs.common.bus import BusError, Looked, StreamFull
from libs.common.delivery import TemporaryError, backoff_seconds
from libs.common.events import Leading, SnapshotComplete
from libs.common.node import Node
from libs.common.process.service import Parts
from libs.common.publisher import OrderedPublisher, Outcome
from libs.common.signing_request import SigningRequest
from libs.common.stream_size import HEADROOM_BYTES, is_half_full
from libs.common.subjects import SNAPSHOT
from libs.common.wiring import DURABLES
from services.watcher.held import HeldFlow
from services.watcher.leader import Candidacy
from services.watcher.observe import Stamp, stream_bytes
from services.watcher.reign import Reign
from services.watcher.watched import Watched

log = logging.getLogger(__name__)

_RETRY_CAP_SECONDS: Final = 2.0  # of what concerns the whole stream: nothing goes on without it
_FOLLOW_SECONDS: Final = 15.0  # until the follower must have found the stream that was provisioned

_GROWTH_SECONDS: Final = 5.0  # between two attempts: a server without room refuses each of them
_LIST_SECONDS: Final = 1.0  # that a snapshot of Nodes waits for a list of CSRs


class Round(msgspec.Struct, frozen=True):
    """What was said to whom: with which stamp, while the flow was followed for which time."""

    stamp: Stamp
    generation: int


class Interrupted(TemporaryError):
    """The round has to begin again; the text says why."""


class Rounds:
    """Complete = every Node is in the stream that is followed, with our epoch, and so is the snapshot.

    CSRs belong to it once they were listed; until then Nodes go without them, and the snapshot says so.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        candidacy: Candidacy,
        reign: Reign,
        held: HeldFlow,
        nodes: Watched[Node],
        requests: Watched[SigningRequest] | None,
        publisher: OrderedPublisher,
        leading_seconds: float,
    ) -> None:
        """`leading_seconds` is how long a Leading holds; `wake` must be called when any of these changes."""
        self._parts = parts
        self._candidacy = candidacy
        self._reign = reign
        self._held = held
        self._nodes = nodes
        self._requests = requests
        self._kinds = (nodes,) if requests is None else (nodes, requests)
        self._publisher = publisher
        self._leading_seconds = max(1, int(leading_seconds))
        self._done: Round | None = None
        self._max_bytes = 0
        self._verify_asked = False
        self._growth_asked = False
        self._growth_due = float("-inf")
        self._trouble = ""
        self._headroom_percent: int | None = None  # as logged; None once the stream has room again
        self._woken = asyncio.Event()
        self.first = asyncio.Event()  # set once a round was complete

    @property
    def complete(self) -> bool:
        """Whether the stream holds all, as far as we know."""
        return self._done is not None and self._is_current(self._done)

    def problems(self) -> tuple[str, ...]:
        """Why the stream may lack something, in words for /readyz."""
        if self.complete:
            return ()
        because = f": {self._trouble}" if self._trouble else ""
        return (f"not everything has been said to the stream yet{because}",)

    def wake(self) -> None:
        """Something has changed that a round waits for, or that calls for another one."""
        self._woken.set()

    def begin_again(self) -> None:
        """There was no stream to publish to."""
        self._done = None
        self.wake()

    def verify(self) -> None:
        """Restore what is wrong with the stream and its durables, then say again that all is there."""
        self._verify_asked = True
        self.wake()

    def looked(self, looked: Looked) -> None:
        """Let the stream grow before it is full."""
        if is_half_full(looked.max_bytes, looked.bytes):
            self.grow()
        else:
            self._headroom_percent = None

    def grow(self) -> None:
        """Let the stream grow if it is more than half full and was not tried a moment ago."""
        now = self._parts.monotonic()
        if now >= self._growth_due:
            self._growth_asked, self._growth_due = True, now + _GROWTH_SECONDS
            self.wake()

    async def run(self) -> NoReturn:
        """Keep it complete until cancelled. Raises LeadershipLost when another one turns out to lead."""
        attempt = 0
        while True:
            try:
                await (self._verify() if self.complete else self._round())
            except (BusError, TemporaryError) as error:
                attempt += 1
                self._tell(error)
                wait = backoff_seconds(attempt, self._parts.random.random())
                await asyncio.sleep(min(_RETRY_CAP_SECONDS, wait))
                continue
            attempt = 0
            self._trouble = ""
            await self._until(lambda: self._is_lacking() or self._verify_asked or not self.complete)

    async def say_leading(self) -> None:
        """Say that we lead; that holds until the renew deadline. Raises BusError, TemporaryError."""
        leading = self._reign.leading()
        if leading is None:
            return
        if await self._publish(leading, ttl_seconds=self._leading_seconds) is not Outcome.PUBLISHED:
            self._reign.refused()
            self.wake()

    async def _publish(self, event: Leading | SnapshotComplete, *, ttl_seconds: int | None = None) -> Outcome:
        """Publish it even to a full stream: whoever filled that must not silence the leader."""
        try:
            return await self._publisher.publish(event, ttl_seconds=ttl_seconds)
        except StreamFull:
            self.grow()
            async with self._parts.bus.headroom(event) as used_bytes:
                self._report_headroom(used_bytes)
                return await self._publisher.publish(event, ttl_seconds=ttl_seconds)

    def _report_headroom(self, used_bytes: int) -> None:
        """Log at each whole percent: a full cluster needs the headroom at every renewal."""
        percent = 100 * used_bytes // HEADROOM_BYTES
        if percent != self._headroom_percent:
            self._headroom_percent = percent
            log.warning("stream full, publishing into its headroom", extra={"used_percent": percent})

    async def _round(self) -> None:
        for kind in self._kinds:
            kind.pause()
        self._done = None
        await self._until(lambda: self._nodes.listed)
        await self._followed(await self._provision())
        if self._reign.outranked:
            await self._candidacy.confirm()
        begun = Round(self._reign.next_stamp(), self._held.generation)
        await self.say_leading()
        await self._say_all(begun)
        self._done = begun
        self.first.set()

    async def _verify(self) -> None:
        done = self._done
        incarnation = await self._provision()
        if done is None or incarnation != done.stamp.incarnation:
            self._done = None
        elif self._verify_asked or self._is_late():
            self._verify_asked = True  # until it is done
            await self._say_all(done)
            self._verify_asked = False

    async def _say_all(self, begun: Round) -> None:
        """Each kind that was listed and is not being said yet; then that this is all."""
        await self._say_listed(begun)
        with contextlib.suppress(TimeoutError):  # two lists that were asked for together come together
            async with asyncio.timeout(_LIST_SECONDS):
                await self._until(lambda: not any(kind.is_due for kind in self._kinds))
        await self._say_listed(begun)
        await self._say_complete(begun)

    async def _say_listed(self, begun: Round) -> None:
        for kind in self._kinds:
            if kind.is_late:
                kind.say_all(begun.stamp)
        await self._until(lambda: all(k.all_said for k in self._kinds) or not self._is_current(begun))

    async def _provision(self) -> str:
        self._growth_asked = False
        max_bytes = max(self._max_bytes, self._needed_bytes())
        incarnation = await self._parts.bus.provision(DURABLES, max_bytes=max_bytes)
        self._max_bytes = max_bytes
        stamp = self._reign.stamp
        if stamp is not None and stamp.incarnation != incarnation:
            metrics.STREAM_REPROVISIONED.inc()
        return incarnation

    async def _followed(self, incarnation: str) -> None:
        try:
            async with asyncio.timeout(_FOLLOW_SECONDS):
                await self._until(lambda: self._held.generation > 0 and self._held.incarnation == incarnation)
        except TimeoutError as error:
            raise Interrupted("the stream is there, but is not followed", *self._held.problems()) from error

    async def _say_complete(self, begun: Round) -> None:
        snapshot = self._reign.snapshot(
            len(self._nodes), self._requests.count if self._requests is not None else None
        )
        if snapshot is None or not self._is_current(begun):
            raise Interrupted("the stream was lost, or another leader spoke, before everything was said")
        if await self._publish(snapshot) is not Outcome.PUBLISHED:
            self._reign.refused()
            raise Interrupted("another leader's snapshot stands in the stream")
        self._held.said(snapshot, self._publisher.sequence_of(SNAPSHOT))
        metrics.RESYNC_LAST.set(self._parts.now().timestamp())
        log.info("everything has been said", extra=msgspec.structs.asdict(snapshot))

    def _is_current(self, begun: Round) -> bool:
        same_stamp = begun.stamp == self._reign.stamp
        return same_stamp and self._reign.stands and begun.generation == self._held.generation

    def _is_lacking(self) -> bool:
        return self._is_late() or self._growth_asked or self._needed_bytes() > self._max_bytes

    def _is_late(self) -> bool:
        return any(kind.is_late for kind in self._kinds)

    def _needed_bytes(self) -> int:
        nodes, requests = len(self._nodes), 0 if self._requests is None else len(self._requests)
        return stream_bytes(nodes, requests, gone=max(0, self._held.subjects - nodes - requests))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._woken.clear()
            await self._woken.wait()

    def _tell(self, error: Exception) -> None:
        if not self._trouble:  # told once; what follows is the same outage
            log.warning("not everything can be said to the stream", extra={"error": str(error)})
        self._trouble = str(error)
