"""What a service needs to follow the flow: it applies events, waits for the cache, writes under a leader."""

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable
from typing import Final, Protocol

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import Bus, Follower, Message
from libs.common.bus.stream_cache import FORMER_STREAM, StreamCache
from libs.common.contract.events import Leading
from libs.common.contract.subjects import FLOW
from libs.common.observability import metrics

log = logging.getLogger(__name__)


SYNC_TIMEOUT_SECONDS: Final = 5.0  # a connected follower is behind its consumer by milliseconds


class FlowFollower(Follower, Protocol):
    """A follower that knows the age of the last leader heartbeat."""

    def leader_silence_seconds(self) -> float: ...


async def follow_flow(
    bus: Bus,
    service: str,
    follower: FlowFollower,
    *,
    exclude: Callable[[str], bool] = lambda subject: False,
) -> None:
    """Follow all subjects of the flow except those for which `exclude` returns true, until cancelled."""
    metrics.LEADER_SILENCE.labels(service).set_function(follower.leader_silence_seconds)
    await bus.follow(service, f"{FLOW}.>", follower, exclude=exclude)


class EventApplier:
    """Remembers subjects whose last message could not be applied; the service then decides nothing."""

    def __init__(self, apply: Callable[[object], None], *, consequence: str) -> None:
        """`apply` receives each event; `consequence` completes "so ..." in the text of `explain_failure`."""
        self._apply = apply
        self._consequence = consequence
        self._failed_subjects: set[str] = set()

    def apply(self, message: Message) -> None:
        """Apply the event of a message. An exception is a defect: it is logged and remembered."""
        try:
            self._apply(message.event)
            self._failed_subjects.discard(message.subject)
        except Exception:
            # Any message may trigger a defect. It must neither end the process nor hide an object.
            self._failed_subjects.add(message.subject)
            log.exception("cannot apply message", extra={"subject": message.subject})

    def handle_expired(self, subject: str) -> None:
        """Forget the failure of a subject that the stream no longer contains."""
        self._failed_subjects.discard(subject)

    def clear(self) -> None:
        """Forget all failures, after the stream was replaced."""
        self._failed_subjects.clear()

    def explain_failure(self) -> str:
        """Return why the state may be incomplete; "" if every last message was applied."""
        if not self._failed_subjects:
            return ""
        return f"defect: cannot apply {min(self._failed_subjects)}, so {self._consequence}"


class CacheSync:
    """Lets handlers wait until the cache has applied a message and is complete."""

    def __init__(
        self, cache: StreamCache, *, problems: Callable[[StreamCache], tuple[str, ...]] = StreamCache.problems
    ) -> None:
        """`problems` returns why the cache cannot be used now, in words; empty if it can."""
        self._cache = cache
        self._problems = problems
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._number = itertools.count()

    def problems(self) -> tuple[str, ...]:
        """Return why the cache cannot be used, in words for /readyz."""
        return self._problems(self._cache)

    async def wait_for(self, message: Message) -> None:
        """Return when the cache contains everything that was published before the message.

        Raises TemporaryError if that takes longer than SYNC_TIMEOUT_SECONDS, or if the message belongs to
        another stream than the one that the cache follows.
        """
        if self.problems():
            await self._wait_for(0)  # afterwards, the cache may follow another stream
        if not self._cache.is_foreign(message) and not self._cache.has_received(message):
            await self._wait_for(message.sequence)
        if why := self.problems():  # the connection was lost after that
            raise TemporaryError("nothing can be decided", "; ".join(why))
        if not self._cache.has_received(message):
            raise TemporaryError(FORMER_STREAM)

    async def _wait_for(self, sequence: int) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (sequence, next(self._number), woken))
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_SECONDS):
                await woken
        except TimeoutError:
            raise TemporaryError("the flow is behind", "; ".join(self.problems())) from None
        finally:
            if woken.cancelled():
                self._waiting = [waiting for waiting in self._waiting if waiting[2] is not woken]
                heapq.heapify(self._waiting)

    def wake_waiters(self) -> None:
        """Wake the handlers whose sequence is applied, if the cache is complete."""
        if not self._waiting or self.problems():
            return
        while self._waiting and self._waiting[0][0] <= self._cache.sequence:
            _, _, woken = heapq.heappop(self._waiting)
            if not woken.done():
                woken.set_result(None)


class LeaderGate:
    """Opens at the first live leader heartbeat; in observe-only mode, at the first message."""

    def __init__(self, cache: StreamCache, max_silence_seconds: float, *, observe_only: bool) -> None:
        """After `max_silence_seconds` without a heartbeat, another leader may be active elsewhere."""
        self._cache = cache
        self._observe_only = observe_only
        self._max_silence_seconds = max_silence_seconds
        self._has_leader = asyncio.Event()

    def on_message(self, message: Message) -> None:
        """Open the gate if the message proves that a watcher leads."""
        if self._observe_only or (isinstance(message.event, Leading) and not self._cache.is_replaying):
            self._has_leader.set()

    async def wait(self) -> None:
        """Return once a leader was seen: before, each message would fail and be requeued."""
        await self._has_leader.wait()

    def why_paused(self) -> str:
        """Return why the service must not write now; "" if it may, or if it never writes."""
        if self._observe_only:
            return ""
        return self._cache.why_no_leader(max_silence_seconds=self._max_silence_seconds)
