"""Serves again who waits, as soon as that for which it waits may be there; tells of what waits for long."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Final

from libs.common import metrics
from libs.common.bus import Message
from libs.common.delivery import Verdict
from libs.common.flow_table import FlowTable
from libs.common.subjects import ENRICHED_NODE
from services.ipam.node_events import NOT_AVAILABLE, NodeEvents
from services.ipam.pools import Pool
from services.ipam.waiting import WaitingNodes

PASS_SECONDS: Final = 1.0
ROOM_SECONDS: Final = 3.0  # so often one Node per full pool tries: others, too, make room
_AT_ONCE: Final = 256  # they share writes
_TOLD_PER_PASS: Final = 20  # an outage must not become a storm of Events on the API server


class WatchWaiting:
    """Every replica does it for those that it has seen wait; a claim is for a uid, so a race harms nobody."""

    def __init__(
        self,
        *,
        table: FlowTable,
        waiting: WaitingNodes,
        events: NodeEvents,
        handle: Callable[[Message], Awaitable[Verdict]],
        clock: Callable[[], float],
    ) -> None:
        """`handle` serves one Node, as for a delivery; `clock` is monotonic, in seconds."""
        self._table = table
        self._waiting = waiting
        self._events = events
        self._handle = handle
        self._clock = clock
        self._wanted: dict[str, None] = {}
        self._news = asyncio.Event()
        self._tried_room: float | None = None

    def want(self, names: Iterable[str]) -> None:
        """Look at these soon."""
        self._wanted.update(dict.fromkeys(names))
        if self._wanted:
            self._news.set()

    def want_all(self) -> None:
        """Look at all that wait: something has changed for everybody."""
        self.want(self._waiting.by_name)

    def room_in(self, pools: tuple[Pool, ...]) -> None:
        """These pools had a block for one of those that waited."""
        self.want(self._waiting.for_room().get(pools, ()))

    def forget_all(self) -> None:
        """Everything known is void."""
        self._wanted.clear()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._look_for_ever())
            tasks.create_task(self._pass_for_ever())

    async def _look_for_ever(self) -> None:
        while True:
            await self._news.wait()
            while self._wanted:
                name = next(iter(self._wanted))
                del self._wanted[name]
                await self._look(name)
            self._news.clear()

    async def _look(self, name: str) -> None:
        message = self._table.last(f"{ENRICHED_NODE}.{name}")
        if message is not None and name in self._waiting.by_name:
            await self._handle(message)  # what it raises comes again: the delivery of that message waits, too

    async def _pass_for_ever(self) -> None:
        while True:
            await asyncio.sleep(PASS_SECONDS)
            self.look_around()

    def look_around(self) -> None:
        """One pass: one Node per full pool tries again, what waits for long is told, and all is counted."""
        at = self._clock()
        counts = Counter(node.outcome for node in self._waiting.by_name.values())
        for outcome in ("waiting", "unserved"):
            metrics.IPAM_NODES_WAITING.labels(outcome).set(counts[outcome])
        groups = self._waiting.for_room()
        metrics.IPAM_EXHAUSTED.set(sum(map(len, groups.values())))
        if self._table.problems():
            return  # what is known may be half of it: conclude nothing
        if groups and (self._tried_room is None or at - self._tried_room >= ROOM_SECONDS):
            self._tried_room = at
            self.want([names[0] for names in groups.values()])
        for node in islice(self._waiting.untold(at), _TOLD_PER_PASS):
            self._events.tell(node.name, node.uid, NOT_AVAILABLE, node.reason)
