"""Shows how the queues, the stream and the Nodes stand, for as long as we lead; nobody waits for it."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, NoReturn

from libs.common import metrics
from libs.common.bus import Bus, BusError, Looked
from libs.common.node import Node
from services.watcher.queues import Stalls, of_interest
from services.watcher.usable import usability

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
_NODES_SECONDS: Final = 1.0
_OF_QUEUES: Final = (
    metrics.QUEUE_PENDING,
    metrics.QUEUE_UNACKNOWLEDGED,
    metrics.QUEUE_REDELIVERED,
    metrics.QUEUE_STALLED,
    metrics.STREAM_MESSAGES,
    metrics.STREAM_BYTES,
    metrics.STREAM_MAX_BYTES,
    metrics.DEAD_LETTERS_LYING,
)


class WatchQueues:
    """A look at once, then every so often; what is not known any more is not shown."""

    def __init__(
        self,
        bus: Bus,
        *,
        expected: frozenset[str],
        clock: Callable[[], float],
        on_look: Callable[[Looked], None] = lambda looked: None,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """`expected` are the durables that somebody must consume; `clock` is monotonic, in seconds.

        `on_look` receives each successful look.
        """
        self._bus = bus
        self._expected = expected
        self._clock = clock
        self._on_look = on_look
        self._look_seconds = look_seconds
        self._stalls = Stalls()
        self._trouble = ""

    async def run(self) -> NoReturn:
        """Look until cancelled; whatever fails is only told."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._look_seconds)
        finally:
            _forget(_OF_QUEUES)

    async def _look(self) -> None:
        try:
            looked = await self._bus.look()
        except BusError as error:
            _forget(_OF_QUEUES)
            if not self._trouble:  # told once; what follows is the same outage
                log.warning("the queues cannot be looked at", extra={"error": str(error)})
            self._trouble = str(error)
            return
        self._trouble = ""
        self._show(looked)
        self._on_look(looked)

    def _show(self, looked: Looked) -> None:
        queues = of_interest(looked.durables, self._expected)
        stalled = self._stalls.saw(queues, self._clock())
        metrics.QUEUE_PENDING.know({(each.name,): each.pending for each in queues})
        metrics.QUEUE_UNACKNOWLEDGED.know({(each.name,): each.unacknowledged for each in queues})
        metrics.QUEUE_REDELIVERED.know({(each.name,): each.redelivered for each in queues})
        metrics.QUEUE_STALLED.know({(name,): seconds for name, seconds in stalled.items()})
        metrics.STREAM_MESSAGES.know({(): looked.messages})
        metrics.STREAM_BYTES.know({(): looked.bytes})
        metrics.STREAM_MAX_BYTES.know({(): looked.max_bytes})
        metrics.DEAD_LETTERS_LYING.know({(): looked.dead})


class WatchUsable:
    """Counts the Nodes again when they have changed, at most once a second."""

    def __init__(self, nodes: Callable[[], Iterable[Node] | None], now: Callable[[], datetime]) -> None:
        """`nodes` gives None while nobody knows them."""
        self._nodes = nodes
        self._now = now
        self._changed = True

    def changed(self) -> None:
        """There is news of Nodes."""
        self._changed = True

    async def run(self) -> NoReturn:
        """Count until cancelled."""
        found = None
        try:
            while True:
                nodes = self._nodes()
                if nodes is not None:
                    if self._changed or found is None:
                        self._changed, found = False, usability(nodes)
                    metrics.NODES.know({("usable",): found.usable, ("uninitialized",): found.uninitialized})
                    metrics.OLDEST_UNINITIALIZED.know({(): found.age_seconds(self._now())})
                await asyncio.sleep(_NODES_SECONDS)
        finally:
            _forget((metrics.NODES, metrics.OLDEST_UNINITIALIZED))


def _forget(gauges: Iterable[metrics.KnownGauge]) -> None:
    for gauge in gauges:
        gauge.know({})
