"""Reconciles every Node again after a configuration change, because no event follows from such a change.

The rollout handles the last message about each machine once more, as if it had just arrived. Every replica
does so, because any replica may have written by the old rules before it loaded the new ones. Each replica
starts after a random delay and plans on the newest view, so the later ones find nothing to change.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.dead_letters import settle
from libs.common.bus.delivery import Disposition, Nak
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import DeadLetter, EnrichedNodeGone
from libs.common.contract.services import LABELER
from libs.common.contract.subjects import ENRICHED_NODE
from libs.common.observability import metrics, telemetry
from services.labeler.on_node_enriched import OnNodeEnriched

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 16  # leaves most connections to joining Nodes, which come first
_PAUSE_POLL_SECONDS: Final = 0.2  # how often a paused rollout checks for a leader
_WRITTEN_OUTCOMES: Final = frozenset({"initialized", "updated"})


class _RolloutPass(msgspec.Struct, kw_only=True):
    """One pass over all Nodes."""

    nodes: int
    started_at: float
    attempted: int = 0
    failed: int = 0  # first attempts that failed
    changed: set[str] = msgspec.field(default_factory=set)


class ConfigRollout:
    """Reconciles all Nodes on request; a request during a pass starts the pass again."""

    def __init__(
        self,
        *,
        stream_cache: StreamCache,
        middleware: ConsumerMiddleware,
        handler: OnNodeEnriched,
        publish_dead_letter: Callable[[DeadLetter], Awaitable[object]],
        why_paused: Callable[[], str],
        in_flight: int,
        spread_seconds: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        random: random.Random,
    ) -> None:
        """`middleware` is that of live messages, so its lock serializes two messages about one Node.

        `clock` is monotonic, in seconds; a pass starts up to `spread_seconds` after its request.
        """
        self._stream_cache = stream_cache
        self._handler = handler
        handle = middleware.wrap(self._handle, is_repeat=True)
        self._settle = partial(
            settle, handle=handle, service=LABELER.service, publish=publish_dead_letter, now=now
        )
        self._why_paused = why_paused
        self._in_flight = min(in_flight, MAX_IN_FLIGHT)
        self._spread_seconds = spread_seconds
        self._clock = clock
        self._random = random
        self._requested = asyncio.Event()
        self._is_running = False
        self._requested_reason = ""
        self._pass = _RolloutPass(nodes=0, started_at=clock())

    @property
    def is_busy(self) -> bool:
        """Return whether Nodes are left to reconcile."""
        return self._requested.is_set() or self._is_running

    def request(self, reason: str) -> None:
        """Request a pass over all Nodes; `reason` is for the log."""
        self._requested_reason = reason
        self._requested.set()

    async def run(self) -> None:
        """Run a pass for each request until cancelled; the next process repeats an interrupted pass."""
        while True:
            await self._requested.wait()
            await self._wait_until_unpaused()
            await asyncio.sleep(self._random.uniform(0.0, self._spread_seconds))
            await self._wait_until_unpaused()
            self._requested.clear()
            self._is_running = True
            await self._run_pass(self._requested_reason)
            self._is_running = False

    async def _run_pass(self, why: str) -> None:
        messages = [each for each in self._stream_cache.list_under(ENRICHED_NODE) if self._is_due(each)]
        self._random.shuffle(
            messages
        )  # in the same order, two replicas would always write the same Node at the same time
        self._pass = _RolloutPass(nodes=len(messages), started_at=self._clock())
        log.info("rollout started", extra={"why": why, "nodes": len(messages)})
        metrics.RULES_PENDING.labels(LABELER.service).set(len(messages))
        slots = asyncio.Semaphore(self._in_flight)
        async with asyncio.TaskGroup() as tasks:
            for message in messages:
                tasks.create_task(self._reconcile_until_done(message, slots))
        if not self._requested.is_set():
            self._report_finished()

    async def _reconcile_until_done(self, message: Message, slots: asyncio.Semaphore) -> None:
        """Retry until the newest rules are applied, a newer message exists, or a new pass is requested."""
        disposition = await self._attempt(message, slots)
        self._count_attempt(failed=isinstance(disposition, Nak))
        while isinstance(disposition, Nak):
            await self._sleep_unless_requested(disposition.delay_seconds)
            disposition = await self._attempt(message, slots)
        metrics.RULES_PENDING.labels(LABELER.service).dec()

    async def _attempt(self, message: Message, slots: asyncio.Semaphore) -> Disposition | None:
        """Reconcile once, as soon as writes are allowed; None if nothing is left to do."""
        async with slots:
            while self._is_paused() and not self._requested.is_set():
                await self._sleep_unless_requested(_PAUSE_POLL_SECONDS)
            if self._requested.is_set() or not self._is_due(message):
                return None
            return await self._reconcile(message)

    async def _reconcile(self, message: Message) -> Disposition:
        """Reconcile like a delivered message, in a new trace with a link to the trace of the message."""
        with (
            telemetry.log_fields(why=self._requested_reason),
            telemetry.span("look at a node again", links=(message.headers,)),
        ):
            return await self._settle(msgspec.structs.replace(message, headers={}))

    async def _handle(self, message: Message) -> None:
        if await self._handler.reconcile(message) in _WRITTEN_OUTCOMES:
            self._pass.changed.add(message.subject)

    def _is_due(self, message: Message) -> bool:
        """Return whether this is the last message about its Node, not yet applied with the newest rules."""
        if isinstance(message.event, EnrichedNodeGone):
            return False
        newest = self._stream_cache.get(message.subject)
        is_last = newest is not None and newest.sequence == message.sequence
        return is_last and not self._handler.has_applied(message)

    def _is_paused(self) -> bool:
        """Return whether writes must wait or the stream cache is incomplete."""
        return bool(self._why_paused() or self._stream_cache.problems())

    async def _wait_until_unpaused(self) -> None:
        while self._is_paused():  # noqa: ASYNC110 - no event ends it: the age of the last heartbeat decides
            await asyncio.sleep(_PAUSE_POLL_SECONDS)

    def _count_attempt(self, *, failed: bool) -> None:
        done = self._pass
        done.attempted += 1
        done.failed += failed
        if done.failed and done.attempted == done.nodes and not self._requested.is_set():
            log.warning(
                "rollout incomplete, will retry",
                extra={"nodes": done.nodes, "failed": done.failed, "changed": len(done.changed)},
            )

    def _report_finished(self) -> None:
        done, seconds = self._pass, self._clock() - self._pass.started_at
        metrics.RULES_REPLAY_DURATION.labels(LABELER.service).observe(seconds)
        fields = {"nodes": done.nodes, "changed": len(done.changed), "seconds": round(seconds, 2)}
        log.info("rollout finished", extra=fields)

    async def _sleep_unless_requested(self, seconds: float) -> None:
        """Sleep, but return at once when a new pass is requested."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requested.wait()
