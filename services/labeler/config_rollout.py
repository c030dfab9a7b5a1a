"""Reconciles every Node again after a configuration change, because no event follows from such a change.

The rollout handles the last message about each machine once more, as if it had just arrived. Every replica
does so, because any replica may have written by the old rules before it loaded the new ones. Each replica
starts after a random delay and plans on the newest view, so the later ones find nothing to change.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.delivery import Disposition, Nak, RequeueAfter
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
    left: set[str]  # subjects of the Nodes that are left
    changed: int = 0  # Nodes


@dataclass(eq=False, kw_only=True)
class ConfigRollout:
    """Reconciles all Nodes, or those that a request names; a request during a pass starts the pass again."""

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
        self._requested_names: set[str] | None = set()  # None: all
        self._queue = NameQueue()
        self._pass = _RolloutPass(nodes=0, started_at=self.clock(), left=set())

    @property
    def is_busy(self) -> bool:
        """Return whether Nodes are left to reconcile."""
        return self._requested.is_set() or bool(self._pass.left)

    def request(self, reason: str, names: Collection[str] | None = None) -> None:
        """Request a pass over these Nodes, or over all; `reason` is for the log."""
        self._requested_reason = reason
        requested = self._requested_names
        self._requested_names = None if names is None or requested is None else requested | set(names)
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
        messages = self.flow.cache.list_under(ENRICHED_NODE)
        names, self._requested_names = self._requested_names, set()
        wanted = None if names is None else self._pass.left | {f"{ENRICHED_NODE}.{name}" for name in names}
        due = [
            each.subject
            for each in messages
            if not isinstance(each.event, EnrichedNodeGone) and (wanted is None or each.subject in wanted)
        ]
        # In the same order, two replicas would always write the same Node at the same time.
        self.random.shuffle(due)
        self._pass = _RolloutPass(nodes=len(due), started_at=self.clock(), left=set(due))
        log.info("rollout started", extra={"why": self._requested_reason, "nodes": len(due)})
        self._report_progress(self._pass)
        self._queue.add(due)

    async def _reconcile(self, subject: str) -> None:
        """Reconcile a Node by its last message, as soon as writes are allowed; repeat a failed attempt."""
        await self._wait_until_unpaused()
        current, message = self._pass, self.flow.cache.get(subject)
        if self._requested.is_set() or subject not in current.left:
            return  # a new pass follows, or the name is from a former one
        disposition = await self._handle_again(message) if message is not None else None
        if isinstance(disposition, Nak):
            asyncio.get_running_loop().call_later(disposition.delay_seconds, self._retry, current, subject)
            return
        current.left.discard(subject)
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
        try:
            if await self.handler.reconcile(message) in WRITTEN_OUTCOMES:
                self._pass.changed += 1
        except RequeueAfter:
            return  # planned with the newest rules: what it waits for may never come

    async def _wait_until_unpaused(self) -> None:
        while self.flow.list_pause_reasons():  # noqa: ASYNC110 - no event ends it: the age of the last heartbeat decides
            await asyncio.sleep(_PAUSE_POLL_SECONDS)

    def _report_progress(self, current: _RolloutPass) -> None:
        if current is not self._pass or self._requested.is_set():
            return
        metrics.RULES_PENDING.labels(LABELER.service).set(len(current.left))
        if not current.left:
            seconds = self.clock() - current.started_at
            metrics.RULES_REPLAY_DURATION.labels(LABELER.service).observe(seconds)
            fields = {"nodes": current.nodes, "changed": current.changed, "seconds": round(seconds, 2)}
            log.info("rollout finished", extra=fields)
