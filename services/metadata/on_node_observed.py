"""One Node, from its first observation until it is gone: look at its machine, say so, wait for news."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import msgspec

from libs.common.bus import BusError, Message
from libs.common.delivery import TemporaryError
from libs.common.events import EnrichedNode, EnrichedNodeGone, EventError, NodeGone, NodeObserved
from libs.common.machine import MachineFacts, MachineFault
from libs.common.node import Node
from libs.common.publisher import OrderedPublisher, Outcome
from libs.common.telemetry import Span, SpanKind, log_fields, outgoing_headers, span
from services.metadata import known as knowledge
from services.metadata import looked, said
from services.metadata.known import NEVER, Known
from services.metadata.next_step import Done, Look, Say, Wait, next_step
from services.metadata.resolve import recognize
from services.metadata.schedule import Pace
from services.metadata.talos_api import MachineUnavailable

log = logging.getLogger(__name__)

_LONGEST: Final = 500  # characters of an error in a fault


class Talos(Protocol):
    """Whom we ask: `talos_api.TalosApi`, or a scripted one."""

    async def look(self, node_ip: str, *, deadline_seconds: float) -> MachineFacts:
        """All facts of the machine at that address. Raises MachineUnavailable."""

    def watch(self, node_ip: str, *, read_deadline_seconds: float) -> AsyncGenerator[object, None]:
        """Yields when the machine is being watched, and then on each change. Raises MachineUnavailable."""


class Slots:
    """How many looks may begin at once. One that takes long gives its place back: a hanging machine holds
    up nobody but itself.
    """

    def __init__(self, places: int, *, slow_seconds: float = 1.0) -> None:
        self._places = asyncio.Semaphore(places)
        self._slow_seconds = slow_seconds

    @property
    def all_taken(self) -> bool:
        """Whether someone would have to wait."""
        return self._places.locked()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """A place, for `slow_seconds` at most; what runs inside may take longer."""
        await self._places.acquire()
        returned = False

        def give_back() -> None:
            nonlocal returned
            if not returned:
                returned = True
                self._places.release()

        timer = asyncio.get_running_loop().call_later(self._slow_seconds, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all Nodes share."""

    talos: Talos
    publisher: OrderedPublisher
    slots: Slots
    pace: Pace
    prefer_ipv6: bool
    look_deadline_seconds: float
    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    random: random.Random
    others: Callable[[], Iterable[Node] | None]  # all Nodes; None while not all are known
    heard: Callable[[str], EnrichedNode | None]  # what the stream holds of a Node, if somebody else said it
    looked: Callable[[str, MachineFault | None, float], None]  # name, fault, when the look began
    watch: Callable[[str, str], None]  # name, address of the machine to be watched from now on ("" = none)
    finished: Callable[[str], None]  # nothing is left to do for that name


class NodeReconciler:
    """Holds what is known of one Node and takes one step after the other: never two looks at once."""

    def __init__(self, name: str, known: Known, surroundings: Surroundings) -> None:
        self.known = known
        self._name = name
        self._with = surroundings
        self._news = asyncio.Event()

    def observe(self, message: Message, observed: NodeObserved | NodeGone) -> None:
        """The watcher said something newer."""
        self._know(
            knowledge.observe(
                self.known,
                message,
                observed,
                others=self._with.others(),
                now=self._with.monotonic(),
                pace=self._with.pace,
                prefer_ipv6=self._with.prefer_ipv6,
            )
        )

    def stream_is_another(self) -> None:
        """What was said is lost; wait until the new stream names the Node."""
        self._know(knowledge.made_void(self.known))

    def bus_is_back(self) -> None:
        """What the bus refused may be said now."""
        now, jitter = self._with.monotonic(), self._with.random.random()
        self._know(said.bus_is_back(self.known, now=now, jitter=jitter))

    def hurry(self, within_seconds: float) -> None:
        """Look within that time."""
        self._know(looked.hurried(self.known, now=self._with.monotonic(), within=within_seconds))

    def machine_changed(self) -> None:
        """A live watch says so."""
        self._know(looked.changed(self.known, now=self._with.monotonic(), pace=self._with.pace))

    def watch_ended(self, within_seconds: float) -> None:
        """The watch is not live any more."""
        self._know(looked.watch_ended(self.known, now=self._with.monotonic(), within=within_seconds))

    async def run(self) -> None:
        """Until the Node is gone and everybody was told."""
        with log_fields(node=self._name):
            while True:
                self._news.clear()
                match next_step(self.known, now=self._with.monotonic(), at=self._with.now()):
                    case Say(event=event):
                        await self._say(event)
                    case Look(addresses=addresses):
                        await self._look(addresses)
                    case Wait(until=until):
                        await self._wait(until)
                    case Done():
                        self._with.finished(self._name)
                        return

    def _know(self, known: Known) -> None:
        if known is self.known:
            return
        if known.watchable != self.known.watchable:
            self._with.watch(self._name, known.watchable)
        self.known = known
        self._news.set()

    async def _wait(self, until: float) -> None:
        seconds = None if until == NEVER else max(0.0, until - self._with.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    async def _look(self, addresses: tuple[str, ...]) -> None:
        async with self._with.slots.one():
            began = self._with.monotonic()
            with self._span("look at machine", kind="client"):
                found = await self._ask(addresses)
        if self.known.addresses != addresses:
            return  # asked on behalf of an observation that no longer holds
        now, jitter = self._with.monotonic(), self._with.random.random()
        before = self.known
        if isinstance(found, MachineFacts):
            after = looked.looked_well(
                before,
                found,
                self._with.heard(self._name),
                others=self._with.others(),
                began=began,
                now=now,
                pace=self._with.pace,
                jitter=jitter,
            )
        else:
            after = looked.looked_badly(before, found, began=began, now=now, jitter=jitter)
        _tell(before, after)
        self._know(after)
        self._with.looked(self._name, after.fault, began)

    async def _ask(self, addresses: tuple[str, ...]) -> MachineFacts | MachineFault:
        """The first machine that answers and bears the Node; else the first answer, or why there was none."""
        faults: list[MachineFault] = []
        for address in addresses:
            try:
                facts = await self._with.talos.look(
                    address, deadline_seconds=self._with.look_deadline_seconds
                )
            except MachineUnavailable as unavailable:
                faults.append(unavailable.fault)
                continue
            except Exception as error:
                # Answers are hostile input: what breaks our reading of one must not end the Node's only task.
                log.exception("a look ended in a way nobody foresaw", extra={"address": address})
                faults.append(_unforeseen(error))
                continue
            node = self.known.node
            judged = recognize(node, facts, self._with.others()) if node else None
            if not isinstance(judged, MachineFault) or (len(addresses) == 1):
                return facts
            faults.append(judged)
        return _all_of(addresses, faults)

    async def _say(self, event: EnrichedNode) -> None:
        with self._span("say what the machine says", kind="producer"):
            outcome: Outcome | Exception
            try:
                outcome = await self._with.publisher.publish(event, headers=outgoing_headers())
            except (BusError, TemporaryError, EventError) as error:
                outcome = error
        known, now, jitter = self.known, self._with.monotonic(), self._with.random.random()
        if known.void or known.observed.incarnation != event.incarnation:
            return  # said to a stream that is no more
        match outcome:
            case EventError() if isinstance(event, EnrichedNodeGone):
                self._with.finished(self._name)
            case EventError():
                self._know(said.unsayable(known, str(outcome), now=now, jitter=jitter))
            case Exception():
                log.debug("not said, the bus refused", extra={"reason": str(outcome)})
                self._know(said.not_said(known, now=now, jitter=jitter))
            case Outcome.TIED if known.addresses:
                self._know(said.tied(known, event, now=now))
            case _:
                self._know(said.said(known, event, now=now, pace=self._with.pace, jitter=jitter))

    def _span(self, name: str, *, kind: SpanKind) -> AbstractContextManager[Span]:
        """Part of the journey that the newest observation began, or linked to it once that was answered."""
        headers = self.known.headers
        return span(
            name,
            kind=kind,
            parent_headers=None if self.known.answered else headers,
            links=(headers,) if self.known.answered and headers else (),
            attributes={"k8s.node.name": self._name},
        )


def _all_of(addresses: tuple[str, ...], faults: list[MachineFault]) -> MachineFault:
    """The first fault counts; what happened at the other address is told with it."""
    first, *rest = faults
    more = "".join(
        f"; and at {address}: {fault.message}"
        for address, fault in zip(addresses[1:], rest, strict=True)
        if fault.message != first.message
    )
    return msgspec.structs.replace(first, message=first.message + more)


def _unforeseen(error: Exception) -> MachineFault:
    return MachineFault(kind="internal", step="look", message=f"{type(error).__name__}: {error}"[:_LONGEST])


def _tell(before: Known, after: Known) -> None:
    """One line when the outcome changes; the same again is only worth a debug line."""
    if after.fault is not None:
        again = before.fault is not None and (before.fault.kind, before.fault.step) == (
            after.fault.kind,
            after.fault.step,
        )
        level = logging.DEBUG if again else logging.WARNING
        fields = {"fault": after.fault.kind, "step": after.fault.step, "reason": after.fault.message}
        log.log(level, "the machine gives no facts", extra=fields)
    elif after.recognized is not None:
        level = logging.INFO if before.recognized != after.recognized else logging.DEBUG
        log.log(level, "the machine says what it is", extra={"reason": after.recognized.reason})
