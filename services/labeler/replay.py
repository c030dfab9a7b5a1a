"""Every Node is looked at again when what holds for all of them has changed: nobody says a word of it.

The flow's last word of each machine is handled once more, as if it had just come. Every replica does it,
since any may have written by the old rules until it heard of the new ones; each starts after a random while
and plans on the newest view, so that the second one finds nothing to do.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

import msgspec

from libs.common import metrics, telemetry
from libs.common.bus import Message
from libs.common.delivery import Nak, Verdict
from libs.common.events import DeadLetter, EnrichedNodeGone
from libs.common.flow_table import FlowTable
from libs.common.handling import Handling
from libs.common.subjects import ENRICHED_NODE
from libs.common.verdicts import Judge
from libs.common.wiring import LABELER
from services.labeler.on_node_enriched import OnNodeEnriched

log = logging.getLogger(__name__)

MOST_IN_FLIGHT: Final = 16  # joining Nodes come first: this leaves them most of the connections
_LOOK_SECONDS: Final = 0.2  # how often is asked whether there is a leader again
_WRITTEN: Final = frozenset({"initialized", "updated"})


class _Round(msgspec.Struct, kw_only=True):
    """One pass over all Nodes."""

    nodes: int
    began: float
    tried: int = 0
    failed: int = 0  # at the first try
    changed: set[str] = msgspec.field(default_factory=set)


class Replay:
    """Looks at all Nodes when it is wanted, and starts over when it is wanted again meanwhile."""

    def __init__(
        self,
        *,
        table: FlowTable,
        handling: Handling,
        handler: OnNodeEnriched,
        put_aside: Callable[[DeadLetter], Awaitable[object]],
        paused: Callable[[], str],
        in_flight: int,
        spread_seconds: float,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        random: random.Random,
    ) -> None:
        """`handling` is that of live messages: two versions of one Node take turns. `clock` is monotonic."""
        self._table = table
        self._handler = handler
        judged = handling.around(self._handle, again=True)
        self._judge = Judge(judged, service=LABELER.service, put_aside=put_aside, clock=now)
        self._paused = paused
        self._in_flight = min(in_flight, MOST_IN_FLIGHT)
        self._spread_seconds = spread_seconds
        self._clock = clock
        self._random = random
        self._wanted = asyncio.Event()
        self._is_at_work = False
        self._why = ""
        self._round = _Round(nodes=0, began=clock())

    @property
    def busy(self) -> bool:
        """Whether Nodes are left that were not looked at again."""
        return self._wanted.is_set() or self._is_at_work

    def want(self, why: str) -> None:
        """Look at all Nodes, soon."""
        self._why = why
        self._wanted.set()

    async def run(self) -> None:
        """Replay whenever it is wanted, until cancelled; what is in flight then is the next process's."""
        while True:
            await self._wanted.wait()
            await self._until_nothing_hinders()
            await asyncio.sleep(self._random.uniform(0.0, self._spread_seconds))
            await self._until_nothing_hinders()
            self._wanted.clear()
            self._is_at_work = True
            await self._replay(self._why)
            self._is_at_work = False

    async def _replay(self, why: str) -> None:
        messages = [each for each in self._table.under(ENRICHED_NODE) if self._is_due(each)]
        self._random.shuffle(
            messages
        )  # two replicas in the same order would write the same Node at each step
        self._round = _Round(nodes=len(messages), began=self._clock())
        log.info("all nodes are looked at again", extra={"why": why, "nodes": len(messages)})
        metrics.RULES_PENDING.labels(LABELER.service).set(len(messages))
        slots = asyncio.Semaphore(self._in_flight)
        async with asyncio.TaskGroup() as tasks:
            for message in messages:
                tasks.create_task(self._until_done(message, slots))
        if not self._wanted.is_set():
            self._tell()

    async def _until_done(self, message: Message, slots: asyncio.Semaphore) -> None:
        """Until it was handled by the newest rules, there is newer word, or all starts over."""
        verdict = await self._turn(message, slots)
        self._tried(failed=isinstance(verdict, Nak))
        while isinstance(verdict, Nak):
            await self._a_while(verdict.delay_seconds)
            verdict = await self._turn(message, slots)
        metrics.RULES_PENDING.labels(LABELER.service).dec()

    async def _turn(self, message: Message, slots: asyncio.Semaphore) -> Verdict | None:
        """One try, as soon as it may be made; None if there is nothing to do any more."""
        async with slots:
            while self._is_hindered() and not self._wanted.is_set():
                await self._a_while(_LOOK_SECONDS)
            if self._wanted.is_set() or not self._is_due(message):
                return None
            return await self._look(message)

    async def _look(self, message: Message) -> Verdict:
        """As the bus has it judged, in a trace of its own that names the one which told of the machine."""
        with (
            telemetry.log_fields(why=self._why),
            telemetry.span("look at a node again", links=(message.headers,)),
        ):
            return await self._judge.verdict(msgspec.structs.replace(message, headers={}))

    async def _handle(self, message: Message) -> None:
        if await self._handler.look(message) in _WRITTEN:
            self._round.changed.add(message.subject)

    def _is_due(self, message: Message) -> bool:
        """Whether that is the last word of its Node, and not obeyed by the newest rules yet."""
        if isinstance(message.event, EnrichedNodeGone):
            return False
        newest = self._table.last(message.subject)
        is_last = newest is not None and newest.sequence == message.sequence
        return is_last and not self._handler.has_obeyed(message)

    def _is_hindered(self) -> bool:
        """Whether nothing may be written for now, or half of what there is to know is missing."""
        return bool(self._paused() or self._table.problems())

    async def _until_nothing_hinders(self) -> None:
        while self._is_hindered():  # noqa: ASYNC110 - time itself ends it: a leader is heard or is not
            await asyncio.sleep(_LOOK_SECONDS)

    def _tried(self, *, failed: bool) -> None:
        done = self._round
        done.tried += 1
        done.failed += failed
        if done.failed and done.tried == done.nodes and not self._wanted.is_set():
            log.warning(
                "some nodes could not be looked at again yet",
                extra={"nodes": done.nodes, "failed": done.failed, "changed": len(done.changed)},
            )

    def _tell(self) -> None:
        done, seconds = self._round, self._clock() - self._round.began
        metrics.RULES_REPLAY_DURATION.labels(LABELER.service).observe(seconds)
        fields = {"nodes": done.nodes, "changed": len(done.changed), "seconds": round(seconds, 2)}
        log.info("all nodes were looked at again", extra=fields)

    async def _a_while(self, seconds: float) -> None:
        """So long, or until all starts over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
