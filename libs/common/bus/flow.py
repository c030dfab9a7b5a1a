"""The flow as a service follows it: when a handler may decide by the cache, and when the service pauses."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import Bus, Follower, Message, UnreadablePayload
from libs.common.bus.stream_cache import FORMER_STREAM, StreamCache
from libs.common.contract.events import Leading, SnapshotComplete, build_deletion
from libs.common.contract.subjects import FLOW
from libs.common.observability import metrics
from libs.common.service.service import Dependencies
from libs.common.service.startup_gate import StartupGate

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


@dataclass(eq=False, kw_only=True)
class Flow:
    """Follows the flow into a cache, and decides whether its service may act on it.

    A handler waits until the cache is complete and has applied the handler's message. The service pauses
    without a leader, and while the last message of a subject could not be applied. The callbacks without a
    comment are those of `StreamCache` and `Bus.follow`.
    """

    parts: Dependencies
    service: str
    max_silence_seconds: float  # after it without a heartbeat, another leader may be active elsewhere
    observe_only: bool
    # Receives each event before `on_message`, and the deletion of an object whose message has expired: it is
    # long gone.
    apply: Callable[[object], None] = lambda event: None
    consequence: str = "its state may be incomplete"  # completes "so ..." when `apply` has failed
    # why the cache cannot be used now, in words; empty if it can
    find_problems: Callable[[StreamCache], tuple[str, ...]] = StreamCache.problems
    gate: StartupGate | None = None  # awaits the Nodes that exist each time the cache becomes complete
    on_gate_open: Callable[[], None] = lambda: None
    exclude: Callable[[str], bool] = lambda subject: False
    should_keep: Callable[[Message], bool] = lambda message: True
    compact: Callable[[Message], Message] = lambda message: message
    on_message: Callable[[Message], None] = lambda message: None
    on_expired: Callable[[Message], None] = lambda message: None
    on_stream_replaced: Callable[[], None] = lambda: None
    on_caught_up: Callable[[], None] = lambda: None
    on_unreadable: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.cache = StreamCache(
            clock=self.parts.monotonic,
            should_keep=self.should_keep,
            compact=self.compact,
            on_message=self._on_message,
            on_expired=self._on_expired,
            on_stream_replaced=self._on_stream_replaced,
            on_caught_up=self._on_caught_up,
            on_unreadable=self.on_unreadable,
        )
        self._has_leader = asyncio.Event()
        self._failed_subjects: set[str] = set()
        self._waiting: dict[asyncio.Future[None], int] = {}  # -> the sequence that it waits for

    async def run(self) -> None:
        """Follow until cancelled."""
        await follow_flow(self.parts.bus, self.service, self.cache, exclude=self.exclude)

    # ---- what a service may do now

    def problems(self) -> tuple[str, ...]:
        """Return why the cache cannot be used, in words for /readyz."""
        return self.find_problems(self.cache)

    def why_paused(self) -> str:
        """Return why the service must not write now, whatever the cache lacks; "" if it may.

        In observe-only mode the service writes nothing, and so needs no leader.
        """
        if self._failed_subjects:
            return f"defect: cannot apply {min(self._failed_subjects)}, so {self.consequence}"
        if self.observe_only:
            return ""
        return self.cache.why_no_leader(max_silence_seconds=self.max_silence_seconds)

    def list_pause_reasons(self) -> tuple[str, ...]:
        """Return why the service can decide nothing now; empty if it can."""
        paused = self.why_paused()
        return (*self.problems(), *((paused,) if paused else ()))

    async def wait_for_leader(self) -> None:
        """Return at the first live leader heartbeat; in observe-only mode, at the first message.

        Before, each message would fail and be requeued.
        """
        await self._has_leader.wait()

    async def wait_for(self, message: Message) -> None:
        """Return when the cache contains everything that was published before the message.

        Raises TemporaryError if that takes longer than SYNC_TIMEOUT_SECONDS, or if the message belongs to
        another stream than the one that the cache follows.
        """
        if self.problems():
            await self._wait_for(0)  # afterwards, the cache may follow another stream
        if not self.cache.is_of_another_stream(message) and not self.cache.has_received(message):
            await self._wait_for(message.sequence)
        if why := self.problems():  # the connection was lost after that
            raise TemporaryError("nothing can be decided", "; ".join(why))
        if not self.cache.has_received(message):
            raise TemporaryError(FORMER_STREAM)

    async def _wait_for(self, sequence: int) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = sequence
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_SECONDS):
                await woken
        except TimeoutError:
            raise TemporaryError("the flow is behind", "; ".join(self.problems())) from None
        finally:
            del self._waiting[woken]

    def _wake_waiters(self) -> None:
        """Wake the handlers whose sequence is applied, if the cache is complete."""
        if not self._waiting or self.problems():
            return
        for woken, sequence in self._waiting.items():
            if sequence <= self.cache.sequence and not woken.done():
                woken.set_result(None)

    # ---- callbacks of the cache

    def _apply(self, subject: str, event: object) -> None:
        try:
            self.apply(event)
            if self.gate is not None and self.gate.apply(event):
                self.on_gate_open()
            self._failed_subjects.discard(subject)
        except Exception:
            # Any message may trigger a defect. It must neither end the process nor hide an object.
            self._failed_subjects.add(subject)
            log.exception("cannot apply message", extra={"subject": subject})

    def _on_message(self, message: Message) -> None:
        self._apply(message.subject, message.event)
        if isinstance(message.event, SnapshotComplete) and self.gate is not None and not self.gate.is_set:
            self._update_gate()
        if self.observe_only or (isinstance(message.event, Leading) and not self.cache.is_replaying):
            self._has_leader.set()
        self.on_message(message)
        self._wake_waiters()

    def _on_expired(self, message: Message) -> None:
        if not isinstance(message.event, UnreadablePayload):
            self._apply(message.subject, build_deletion(message.event))
        self.on_expired(message)

    def _on_stream_replaced(self) -> None:
        self._failed_subjects.clear()
        if self.gate is not None:
            self.gate.clear()
        self.on_stream_replaced()

    def _on_caught_up(self) -> None:
        self._update_gate()
        self.on_caught_up()
        self._wake_waiters()

    def _update_gate(self) -> None:
        if self.gate is not None:
            (self.gate.set if self.cache.is_complete else self.gate.unset)()
