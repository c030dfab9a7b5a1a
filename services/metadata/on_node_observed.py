"""One Node, from its first observation until it is gone: look at its machine, say so, wait for news."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from libs.common.bus import BusError, Message
from libs.common.delivery import TemporaryError
from libs.common.events import EnrichedNode, EnrichedNodeGone, EventError, NodeGone, NodeObserved
from libs.common.machine import AnotherMachine, MachineFacts, MachineFault
from libs.common.node import Node
from libs.common.publisher import OrderedPublisher, Outcome
from libs.common.telemetry import Span, SpanKind, log_fields, outgoing_headers, span
from services.metadata import known as knowledge
from services.metadata import looked, said
from services.metadata.ask_machine import Seen, Slots, Talos, Unseen, look_in_turn
from services.metadata.hop import Hop, Journey
from services.metadata.inventory import Asked, parts_to_ask
from services.metadata.known import NEVER, Known
from services.metadata.next_step import Done, Look, Say, Wait, next_step, says_the_same
from services.metadata.resolve import recognize
from services.metadata.schedule import Pace
from services.metadata.talos_api.api import Contents, Part
from services.metadata.talos_api.news import News

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all Nodes share."""

    talos: Talos
    publisher: OrderedPublisher
    slots: Slots
    pace: Pace
    prefer_ipv6: Callable[[], bool]
    needed: Callable[[], frozenset[Part]]  # what rules name of the inventory
    look_deadline_seconds: float
    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    random: random.Random
    others: Callable[[], Iterable[Node] | None]  # all Nodes; None while not all are known
    heard: Callable[[str], EnrichedNode | None]  # what the stream holds of a Node, if somebody else said it
    said: Callable[[str, EnrichedNode], None]  # the stream holds this word of ours on that Node
    # who answers in its machine's place, given what other machines said where it was looked for
    others_answer: Callable[[Node, tuple[MachineFacts, ...]], Awaitable[tuple[AnotherMachine, ...]]]
    met: Callable[[MachineFacts], None]  # a machine that answered and was not believed to be the one
    looked: Callable[[str, MachineFault | None, float], None]  # name, fault, when the look began
    changed: Callable[[str], None]  # something else is known of that Node
    watch: Callable[[str, str], None]  # name, address of the machine to be watched from now on ("" = none)
    finished: Callable[[str], None]  # nothing is left to do for that name


class NodeReconciler:
    """Holds what is known of one Node and takes one step after the other: never two looks at once."""

    def __init__(self, name: str, known: Known, surroundings: Surroundings) -> None:
        self.known = known
        self._name = name
        self._with = surroundings
        self._news = News()
        self.hop = Hop(surroundings.now)
        self._journey = Journey()
        self._discarded = 0  # looks in a row whose addresses changed meanwhile
        self._began: float | None = None  # the look whose outcome is to be said

    def observe(self, message: Message, observed: NodeObserved | NodeGone) -> None:
        """The watcher said something newer."""
        self._journey.observe(self.known)
        self._know(
            knowledge.observe(
                self.known,
                message,
                observed,
                others=self._with.others(),
                now=self._with.monotonic(),
                pace=self._with.pace,
                prefer_ipv6=self._with.prefer_ipv6(),
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

    def rules_changed(self, within_seconds: float) -> None:
        """The file says something else: look within that time for what is missing, by the right family."""
        now = self._with.monotonic()
        known = knowledge.dialled_by(
            self.known, prefer_ipv6=self._with.prefer_ipv6(), now=now, within=within_seconds
        )
        needed, pace = self._with.needed(), self._with.pace
        self._know(looked.needed_anew(known, needed, now=now, within=within_seconds, pace=pace))

    def told_unreachable(self) -> None:
        """The stream says by now that the machine gives no facts."""
        self._know(looked.contradicted(self.known, now=self._with.monotonic(), pace=self._with.pace))

    def watch_opened(self, contents: Contents) -> None:
        """A watch is live, and began with that."""
        self._know(
            looked.watch_opened(self.known, contents, now=self._with.monotonic(), pace=self._with.pace)
        )

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
                        self.hop.begun()  # what was heard changes nothing
                        await self._wait(until)
                    case Done():
                        self._with.finished(self._name)
                        return

    def _know(self, known: Known) -> None:
        if known is self.known:
            return
        if known.watchable != self.known.watchable:
            self._with.watch(self._name, known.watchable)
            known = looked.unwatched(known)
        self.known = known
        self._news.set()
        self._with.changed(self._name)

    async def _wait(self, until: float) -> None:
        seconds = None if until == NEVER else max(0.0, until - self._with.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    async def _look(self, addresses: tuple[str, ...]) -> None:
        uid = self.known.uid
        async with self._with.slots.one():
            began = self._began = self._with.monotonic()
            parts = parts_to_ask(self.known, self._with.needed(), now=began, pace=self._with.pace)
            with self._span("look at machine", kind="client"):
                self.hop.begun()
                found = await look_in_turn(
                    self._with.talos,
                    addresses,
                    parts=parts,
                    deadline_seconds=self._with.look_deadline_seconds,
                    why_not=self._why_not,
                )
                answered_by = await self._answered_by(found)
        if self.known.addresses != addresses or self.known.uid != uid:
            self._discarded += 1  # asked on behalf of an observation that no longer holds
            self._know(looked.discarded(self.known, self._discarded))
            return
        self._discarded = 0
        before, after = self.known, self._looked(found, parts, answered_by, began)
        _tell(before, after)
        self._know(after)
        self._with.looked(self._name, after.fault, began)

    def _looked(
        self,
        found: Seen | Unseen,
        parts: frozenset[Part],
        answered_by: tuple[AnotherMachine, ...],
        began: float,
    ) -> Known:
        now, jitter = self._with.monotonic(), self._with.random.random()
        if isinstance(found, Unseen):
            return looked.looked_badly(
                self.known, found.fault, began=began, now=now, jitter=jitter, answered_by=answered_by
            )
        return looked.looked_well(
            self.known,
            found.facts,
            self._with.heard(self._name),
            others=self._with.others(),
            began=began,
            now=now,
            pace=self._with.pace,
            jitter=jitter,
            asked=Asked(needed=self._with.needed(), parts=parts, answer=found.inventory),
        )

    async def _answered_by(self, found: Seen | Unseen) -> tuple[AnotherMachine, ...]:
        node = self.known.node
        if isinstance(found, Seen) or not found.others or node is None:
            return ()
        answered_by = await self._with.others_answer(node, found.others)
        # Asked on behalf of the Node as it was: with other addresses, others would have been asked.
        is_the_same = self.known.node is not None and self.known.node.status == node.status
        return answered_by if is_the_same else ()

    def _why_not(self, facts: MachineFacts) -> MachineFault | None:
        node = self.known.node
        judged = recognize(node, facts, self._with.others()) if node else None
        if not isinstance(judged, MachineFault):
            return None
        self._with.met(facts)
        return judged

    async def _say(self, event: EnrichedNode) -> None:
        with self._sending(event):
            self.hop.begun()
            outcome: Outcome | Exception
            try:
                outcome = await self._with.publisher.publish(event, headers=outgoing_headers())
            except (BusError, TemporaryError, EventError) as error:
                outcome = error
        known, now, jitter = self.known, self._with.monotonic(), self._with.random.random()
        if known.void or known.observed.incarnation != event.incarnation:
            return  # said to a stream that is no more
        self._tell(event, outcome, now)
        match outcome:
            case EventError() if isinstance(event, EnrichedNodeGone):
                self._with.finished(self._name)
            case EventError():
                self._know(said.unsayable(known, str(outcome), now=now, jitter=jitter))
            case Exception():
                self._know(said.not_said(known, now=now, jitter=jitter))
            case Outcome.TIED if known.addresses:
                self._know(said.tied(known, event, now=now))
            case _:
                self._know(said.said(known, event, now=now, pace=self._with.pace, jitter=jitter))
                self._with.said(self._name, event)

    def _tell(self, event: EnrichedNode, outcome: Outcome | Exception, now: float) -> None:
        """One line for each word; what was said like this before is only worth a debug line."""
        known, began = self.known, now if self._began is None else self._began
        self._began = None
        failed = isinstance(outcome, Exception)
        told = {
            "event": type(event).__name__,
            "attempt": 1 + known.unsaid,
            "outcome": "refused" if isinstance(outcome, Exception) else outcome.value,
            "reason": str(outcome) if failed else _reason(known),
            "seconds": round(now - began, 4),
        }
        again = failed or (known.said is not None and says_the_same(known.said, event))
        log.log(logging.DEBUG if again else logging.INFO, "handled", extra=told)

    def _span(self, name: str, *, kind: SpanKind) -> AbstractContextManager[Span]:
        """Part of the journey that the newest observation began, or linked to it once that was answered."""
        parent, links = self._journey.of(self.known)
        attributes = {"k8s.node.name": self._name, "k8s.node.uid": self.known.uid}
        return span(name, kind=kind, parent_headers=parent, links=links, attributes=attributes)

    def _sending(self, event: EnrichedNode) -> AbstractContextManager[Span]:
        parent, links = self._journey.of(self.known)
        return self._with.publisher.sending(event, parent_headers=parent, links=links)


def _reason(known: Known) -> str:
    if known.fault is not None:
        return known.fault.message
    return known.recognized.reason if known.recognized is not None else "the Node is gone"


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
        if after.answered_by and not before.answered_by:
            there = {one.address: one.node_name for one in after.answered_by}
            log.warning("other machines answer where the Node's should", extra={"answered_by": there})
    elif after.recognized is not None:
        level = logging.INFO if before.recognized != after.recognized else logging.DEBUG
        log.log(level, "the machine says what it is", extra={"reason": after.recognized.reason})
        for part in after.untold.keys() - before.untold.keys():
            fault = after.untold[part]
            fields = {"fault": fault.kind, "step": fault.step, "reason": fault.message}
            log.warning(
                "the machine does not tell what rules or ipam need; what needs it is not judged",
                extra=fields,
            )
