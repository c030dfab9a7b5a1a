"""Consumes a durable: takes as many messages as handlers can take, acknowledges, returns the rest."""

import asyncio
import contextlib
import logging
from dataclasses import KW_ONLY, dataclass
from typing import Final

from msgspec.structs import replace

from libs.common.bus.delivery import Nak
from libs.common.bus.memory.stream import DurableState, StoredMessage
from libs.common.bus.protocol import MessageHandler
from libs.common.clocks import loop_time

log = logging.getLogger(__name__)
_FINISH_SECONDS: Final = 20.0
_CANCEL_SECONDS: Final = 2.0


@dataclass(eq=False)
class ConsumeLoop:
    """One `consume` call."""

    name: str
    durable: DurableState
    handle: MessageHandler
    _: KW_ONLY
    in_flight: int

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._handling: set[asyncio.Task[None]] = set()
        self.problem = ""

    async def run(self) -> None:
        """Consume until cancelled; then finish or return the messages."""
        self.durable.listeners.add(self._wake.set)
        try:
            await self._deliver_repeatedly()
        finally:
            self.durable.listeners.discard(self._wake.set)
            try:
                await self._wait_for_handlers(_FINISH_SECONDS)
            finally:
                for task in self._handling:
                    task.cancel()
                await self._wait_for_handlers(_CANCEL_SECONDS)

    async def _deliver_repeatedly(self) -> None:
        missing = f"consumer {self.name}: does not exist yet, the watcher provisions it"
        while True:
            self._wake.clear()
            self.problem = "" if self.durable.is_provisioned else missing
            look_again_at = self._deliver()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(look_again_at):
                    await self._wake.wait()

    def _deliver(self) -> float | None:
        """Start handlers up to the limit; return when to look again, None = when woken."""
        while len(self._handling) < self.in_flight:
            taken = self.durable.take(loop_time())
            if taken is None:
                return self.durable.next_due()
            task = asyncio.create_task(self._handle_one(*taken))
            self._handling.add(task)
            task.add_done_callback(self._done)
        return None

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._handling.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("acknowledgement failed", exc_info=task.exception())

    async def _handle_one(self, stored: StoredMessage, redelivered: bool) -> None:
        try:
            verdict = await self.handle(replace(stored.message, redelivered=redelivered))
        except asyncio.CancelledError:
            self.durable.requeue(stored, loop_time())
            raise
        if isinstance(verdict, Nak):
            self.durable.requeue(stored, loop_time() + max(0.0, verdict.delay_seconds))
        else:
            self.durable.acknowledge(stored)

    async def _wait_for_handlers(self, seconds: float) -> None:
        if self._handling:
            await asyncio.wait(self._handling, timeout=seconds)
