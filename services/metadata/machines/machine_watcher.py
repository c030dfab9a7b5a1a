"""Watches a limited number of machines to detect changes at once. It opens watches at a limited rate."""

import asyncio
import logging
import math
import random
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass
from typing import Final

from libs.common.bus.delivery import backoff_seconds
from libs.common.clocks import loop_time
from libs.common.observability import metrics
from libs.talos.api import MachineUnavailable, WatchSnapshot
from services.metadata.core.node_state import NodeState
from services.metadata.machines.query_machine import QuerySlots
from services.metadata.machines.talos_client import TalosClient
from services.metadata.node_registry import NodeRegistry

log = logging.getLogger(__name__)

_POLL_AFTER_END_SECONDS: Final = 5.0  # spread: a restarted endpoint ends hundreds of watches at once
_MAX_QUEUE_SECONDS: Final = 30.0  # how long a watch waits for a quiet period at most


@dataclass(eq=False)
class MachineWatcher:
    """Watches at most `limit` machines, in the order of `set_target`. Joining Nodes come first: watches open
    in a quiet period without new targets, and only while queries have a free slot.
    """

    talos: TalosClient
    nodes: NodeRegistry
    _: KW_ONLY
    limit: int
    quiet_period_seconds: float  # without new targets, before a watch opens
    opened_per_second: float
    read_deadline_seconds: float
    slots: QuerySlots
    random: random.Random

    def __post_init__(self) -> None:
        self._targets: dict[str, str] = {}  # node name -> address
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # of the watch that opens next: first come, first served
        self._last_target_at = -math.inf  # time of the last new target, on the event loop's clock
        self._next_open_at = -math.inf

    def set_target(self, name: str, node_ip: str) -> None:
        """Watch the machine at that address for that Node from now on; "" stops the watch."""
        if self._targets.pop(name, None) is not None:
            self._stop(name)
        if not node_ip:
            return
        self._targets[name] = node_ip
        self._last_target_at = loop_time()
        if len(self._tasks) < self.limit:
            self._start(name, node_ip)

    async def close(self) -> None:
        """End all watches."""
        tasks = [*self._tasks.values(), *self._ending]
        self._tasks.clear()
        self._targets.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        metrics.TALOS_MACHINE_WATCHES.set(0)

    def _start(self, name: str, node_ip: str) -> None:
        self._tasks[name] = asyncio.create_task(self._watch(name, node_ip), name=f"watch {name}")
        metrics.TALOS_MACHINE_WATCHES.set(len(self._tasks))

    def _stop(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is None:
            return
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()
        if len(self._targets) > len(self._tasks):
            waiting = next(other for other in self._targets if other not in self._tasks)
            self._start(waiting, self._targets[waiting])
        metrics.TALOS_MACHINE_WATCHES.set(len(self._tasks))

    async def _watch(self, name: str, node_ip: str) -> None:
        failures = 0
        while True:
            await self._wait_turn()
            opened = False
            try:
                watch = self.talos.watch_machine(node_ip, read_deadline_seconds=self.read_deadline_seconds)
                async with aclosing(watch):
                    async for contents in watch:
                        opened = True
                        self._pass_on(name, contents)
                        del contents  # not kept until the next change: there are thousands
                reason = "the stream ended"
            except MachineUnavailable as unavailable:
                reason = unavailable.fault.message
            except Exception as error:
                # An event is hostile input: one that breaks our parser must not end the watch permanently.
                log.exception("unexpected error, watch failed", extra={"node": name})
                reason = f"{type(error).__name__}: {error}"
            log.debug("watch ended, will reopen", extra={"node": name, "reason": reason})
            # A watch that fails to open counts as an ended one, but only the first failure causes a poll: a
            # machine that can never be watched is polled as often as any other unwatched machine.
            if opened or not failures:
                self._end(name)
            failures = 1 if opened else failures + 1
            await asyncio.sleep(backoff_seconds(failures, self.random.random()))

    def _pass_on(self, name: str, contents: WatchSnapshot | None) -> None:
        if contents is None:
            self.nodes.apply(name, NodeState.machine_changed)
        else:
            self.nodes.apply(name, lambda state, timing: state.watch_opened(contents, timing))

    def _end(self, name: str) -> None:
        within = _POLL_AFTER_END_SECONDS * self.random.random()
        self.nodes.apply(name, lambda state, timing: state.watch_ended(within, timing))

    async def _wait_turn(self) -> None:
        """Return when this watch may open: in a quiet period, at the limited rate, while slots are free."""
        latest, interval = loop_time() + _MAX_QUEUE_SECONDS, 1.0 / self.opened_per_second
        async with self._turn:
            while True:
                quiet_at = min(self._last_target_at + self.quiet_period_seconds, latest)
                wait = max(quiet_at, self._next_open_at) - loop_time()
                if wait <= 0 and not self.slots.is_full:
                    self._next_open_at = loop_time() + interval
                    return
                await asyncio.sleep(wait if wait > 0 else interval)
