"""Consumes a durable: takes as many messages as handlers can take, acknowledges, returns the rest."""

import asyncio
import contextlib
import logging
from dataclasses import KW_ONLY, dataclass
from typing import Final

from msgspec.structs import replace

from libs.common.bus.delivery import Nak
from libs.common.bus.memory.stream import DurableState, StoredMessage
from libs.common.bus.protocol import Message, MessageHandler
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
        self._in_hand: dict[int, StoredMessage] = {}  # sequence -> message taken and not acknowledged yet
        self.problem = ""

    async def run(self) -> None:
        """Consume until cancelled; then finish or return the messages."""
        try:
            self.durable.listeners.add(self._wake.set)
            await self._deliver_repeatedly()
        finally:
            self.durable.listeners.discard(self._wake.set)
            try:
                if self._handling:
                    await asyncio.wait(self._handling, timeout=_FINISH_SECONDS)
            finally:
                await self._hand_back()

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
            stored, redelivered = taken
            if stored.sequence in self._in_hand:
                continue  # a recreated durable replays messages that are still being handled
            self._in_hand[stored.sequence] = stored
            message = replace(stored.message, redelivered=redelivered)
            task = asyncio.create_task(self._handle_one(stored, message))
            self._handling.add(task)
            task.add_done_callback(self._done)
        return None

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._handling.discard(task)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("acknowledgement failed", exc_info=task.exception())

    async def _handle_one(self, stored: StoredMessage, message: Message) -> None:
        verdict = await self.handle(message)
        known = self._in_hand.pop(stored.sequence, None)  # None if it was returned at shutdown
        if known is None:
            return
        if isinstance(verdict, Nak):
            self._again(stored, verdict.delay_seconds)
        else:
            self.durable.acknowledge(stored)

    async def _hand_back(self) -> None:
        for task in self._handling:
            task.cancel()
        try:
            if self._handling:
                await asyncio.wait(self._handling, timeout=_CANCEL_SECONDS)
        finally:
            for stored in self._in_hand.values():
                self._again(stored, 0.0)
            self._in_hand.clear()

    def _again(self, stored: StoredMessage, delay_seconds: float) -> None:
        self.durable.requeue(stored, loop_time() + max(0.0, delay_seconds))
