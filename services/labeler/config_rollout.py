"""Reconciles every Node again after a configuration change, because no event follows from such a change.

The rollout handles the last message about each machine once more, as if it had just arrived. Every replica
does so, because any replica may have written by the old rules before it loaded the new ones. Each replica
starts after a random delay and plans on the newest view, so the later ones find nothing to change.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.delivery import Disposition, Nak
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Message
from libs.common.contract.events import EnrichedNodeGone
from libs.common.contract.services import LABELER
from libs.common.contract.subjects import ENRICHED_NODE
from libs.common.observability import metrics, telemetry
from libs.common.service.service import run_together
from libs.common.service.waiting_objects import NameQueue
from services.labeler.core.plan.plan import WRITTEN_OUTCOMES
from services.labeler.on_node_enriched import OnNodeEnriched

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 16  # leaves most connections to joining Nodes, which come first
_PAUSE_POLL_SECONDS: Final = 0.2  # how often a paused rollout checks for a leader


class _RolloutPass(msgspec.Struct, eq=False, kw_only=True):
    """One pass over all Nodes; a newer one takes its place."""

    nodes: int
    started_at: float
    left: dict[str, Message]  # subject -> the last message about each Node that is left
    failed: set[str] = msgspec.field(default_factory=set)  # subjects of those left, after an attempt
    changed: set[str] = msgspec.field(default_factory=set)  # subjects
    is_reported: bool = False  # that attempts failed


@dataclass(eq=False, kw_only=True)
class ConfigRollout:
    """Reconciles all Nodes on request; a request during a pass starts the pass again."""

    flow: Flow
    middleware: ConsumerMiddleware  # that of live messages: its lock serializes two messages about one Node
    handler: OnNodeEnriched
    in_flight: int
    spread_seconds: float  # a pass starts up to that long after its request
    clock: Callable[[], float]  # monotonic, in seconds
    random: random.Random

    def __post_init__(self) -> None:
        self._handle_message = self.middleware.wrap(self._handle, is_repeat=True)
        self._requested = asyncio.Event()
        self._requested_reason = ""
        self._queue = NameQueue()
        self._pass = _RolloutPass(nodes=0, started_at=self.clock(), left={})

    @property
    def is_busy(self) -> bool:
        """Return whether Nodes are left to reconcile."""
        return self._requested.is_set() or bool(self._pass.left)

    def request(self, reason: str) -> None:
        """Request a pass over all Nodes; `reason` is for the log."""
        self._requested_reason = reason
        self._requested.set()

    async def run(self) -> None:
        """Run a pass for each request until cancelled; the next process repeats an interrupted pass."""
        workers = (self._queue.work(self._reconcile) for _ in range(min(self.in_flight, MAX_IN_FLIGHT)))
        await run_together(self._start_passes(), *workers)

    async def _start_passes(self) -> None:
        while True:
            await self._requested.wait()
            await self._wait_until_unpaused()
            await asyncio.sleep(self.random.uniform(0.0, self.spread_seconds))
            await self._wait_until_unpaused()
            self._requested.clear()
            self._start_pass()

    def _start_pass(self) -> None:
        due = [each for each in self.flow.cache.list_under(ENRICHED_NODE) if self._is_due(each)]
        # In the same order, two replicas would always write the same Node at the same time.
        self.random.shuffle(due)
        left = {each.subject: each for each in due}
        self._pass = _RolloutPass(nodes=len(due), started_at=self.clock(), left=left)
        log.info("rollout started", extra={"why": self._requested_reason, "nodes": len(due)})
        self._report_progress(self._pass)
        self._queue.add(left)

    async def _reconcile(self, subject: str) -> None:
        """Reconcile a Node once, as soon as writes are allowed.

        A failed attempt is repeated until the newest rules are applied or a newer message follows.
        """
        await self._wait_until_unpaused()
        current, message = self._pass, self._pass.left.get(subject)
        if self._requested.is_set() or message is None:
            return  # a new pass follows, or the name is from a former one
        disposition = await self._handle_again(message) if self._is_due(message) else None
        if isinstance(disposition, Nak):
            current.failed.add(subject)
            asyncio.get_running_loop().call_later(disposition.delay_seconds, self._retry, current, subject)
        else:
            current.left.pop(subject)
            current.failed.discard(subject)
        self._report_progress(current)

    def _retry(self, current: _RolloutPass, subject: str) -> None:
        if current is self._pass:
            self._queue.add([subject])

    async def _handle_again(self, message: Message) -> Disposition:
        """Handle it like a delivered message, in a new trace with a link to the trace of the message."""
        with (
            telemetry.log_fields(why=self._requested_reason),
            telemetry.span("look at a node again", links=(message.headers,)),
        ):
            return await self._handle_message(msgspec.structs.replace(message, headers={}))

    async def _handle(self, message: Message) -> None:
        if await self.handler.reconcile(message) in WRITTEN_OUTCOMES:
            self._pass.changed.add(message.subject)

    def _is_due(self, message: Message) -> bool:
        """Return whether this is the last message about its Node, not yet applied with the newest rules."""
        if isinstance(message.event, EnrichedNodeGone):
            return False
        newest = self.flow.cache.get(message.subject)
        is_last = newest is not None and newest.sequence == message.sequence
        return is_last and not self.handler.has_applied(message)

    async def _wait_until_unpaused(self) -> None:
        while self.flow.list_pause_reasons():  # noqa: ASYNC110 - no event ends it: the age of the last heartbeat decides
            await asyncio.sleep(_PAUSE_POLL_SECONDS)

    def _report_progress(self, current: _RolloutPass) -> None:
        if current is not self._pass or self._requested.is_set():
            return
        metrics.RULES_PENDING.labels(LABELER.service).set(len(current.left))
        fields = {"nodes": current.nodes, "changed": len(current.changed)}
        if not current.left:
            seconds = self.clock() - current.started_at
            metrics.RULES_REPLAY_DURATION.labels(LABELER.service).observe(seconds)
            log.info("rollout finished", extra={**fields, "seconds": round(seconds, 2)})
        elif len(current.failed) == len(current.left) and not current.is_reported:
            current.is_reported = True
            log.warning("rollout incomplete, will retry", extra={**fields, "failed": len(current.failed)})
