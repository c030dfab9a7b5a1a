"""One request for a certificate, from its first observation until it is decided: say what is attested."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from libs.common.bus import BusError, Message, Unreadable
from libs.common.delivery import TemporaryError
from libs.common.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsr, EnrichedCsrGone, EventError
from libs.common.publisher import OrderedPublisher, Outcome
from libs.common.subjects import subject_of
from libs.common.telemetry import Span, SpanKind, log_fields, outgoing_headers, span
from services.metadata import requests as knowledge
from services.metadata.contested import Claims, contested_addresses
from services.metadata.dial_back import KEPT_SECONDS, DialBacks
from services.metadata.hop import Hop, Journey
from services.metadata.known import NEVER, Known
from services.metadata.next_step import Done, Wait
from services.metadata.request_step import AskNode, DialBack, SayOfRequest, next_step
from services.metadata.requests import KnownRequest, says_the_same
from services.metadata.schedule import Pace
from services.metadata.talos_api.news import News

log = logging.getLogger(__name__)

_JUDGED_AGAIN_SECONDS = 5.0  # whether somebody else claims an address that nobody did


@dataclass(frozen=True, kw_only=True)
class RequestSurroundings:
    """What all requests share."""

    publisher: OrderedPublisher
    last: Callable[[str], Awaitable[Message | None]]  # what the stream holds of a subject
    pace: Pace
    without_talos: bool
    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    random: random.Random
    node: Callable[[str], Known | None]
    superseded: Callable[[KnownRequest], bool]  # whether its requester has a newer one
    hurry: Callable[[str], None]  # have that Node's machine looked at now
    claims: Claims
    dial_backs: DialBacks
    finished: Callable[[str], None]  # nothing is left to do for that request


class RequestReconciler:
    """Holds what is known of one request and takes one step after the other."""

    def __init__(self, name: str, known: KnownRequest, surroundings: RequestSurroundings) -> None:
        self.known = known
        self._name = name
        self._with = surroundings
        self._news = News()
        self._saying: EnrichedCsr | None = None
        self._dialling: asyncio.Task[None] | None = None
        self.hop = Hop(surroundings.now)
        self._journey = Journey()

    def observe(self, message: Message, observed: CsrObserved | CsrGone) -> None:
        """The watcher said something newer."""
        self._journey.observe(self.known)
        now = self._with.monotonic()
        self._know(knowledge.observe(self.known, message, observed, now=now, pace=self._with.pace))

    def node_changed(self) -> None:
        """Something else is known of the Node whose identity asks, or of its other requests."""
        self._news.set()

    def overhear(self, event: EnrichedCsr) -> None:
        """The stream holds that by now, and nothing that we know to be ours is newer."""
        if event not in (self._saying, self.known.said):
            self._know(knowledge.overheard(self.known, event))

    def is_unheard(self) -> None:
        """The stream holds nothing of what was said."""
        self._know(knowledge.unheard(self.known))

    def stream_is_another(self) -> None:
        """What was said is lost; wait until the stream names the request."""
        self._know(knowledge.made_void(self.known))

    def bus_is_back(self) -> None:
        """What the bus refused may be said now."""
        now, jitter = self._with.monotonic(), self._with.random.random()
        self._know(knowledge.bus_is_back(self.known, now=now, jitter=jitter))

    async def run(self) -> None:
        """Until the request is decided or gone and everybody was told."""
        with log_fields(csr=self._name, node=self.known.node_name):
            try:
                while await self._step():
                    pass
            finally:
                if self._dialling is not None:
                    self._dialling.cancel()

    async def _step(self) -> bool:
        self._news.clear()
        now = self._with.monotonic()
        match next_step(
            self.known,
            self._with.node(self.known.node_name),
            without_talos=self._with.without_talos,
            superseded=self._with.superseded(self.known),
            now=now,
            at=self._with.now(),
        ):
            case SayOfRequest(event=event):
                await self._say(event)
            case AskNode():
                self._know(knowledge.asked_to_look(self.known, now=now))
                self._with.hurry(self.known.node_name)
            case DialBack() as dial_back:
                self._dial_back(dial_back, now)
            case Wait(until=until):
                self.hop.begun()  # what was heard changes nothing, or has been judged
                await self._wait(until)
            case Done():
                self._with.finished(self._name)
                return False
        return True

    def _know(self, known: KnownRequest) -> None:
        if known is not self.known:
            self.known = known
            self._news.set()

    async def _wait(self, until: float) -> None:
        seconds = None if until == NEVER else max(0.0, until - self._with.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return

    # ---- who answers where others lay claim

    def _dial_back(self, wanted: DialBack, now: float) -> None:
        request, facts = wanted.request, wanted.facts
        if self._dialling is not None:
            self._dialling.cancel()
        contested = contested_addresses(request, facts, self._with.claims)
        known = knowledge.dialling(self.known, facts, wanted.node_uid)
        if not contested:
            again_at = now + _JUDGED_AGAIN_SECONDS if len(facts.addresses) > 1 else NEVER
            self._know(knowledge.dialled(known, frozenset(), again_at=again_at))
            return
        self._know(known)
        dialling = self._dial(request.node_name, contested)
        self._dialling = asyncio.create_task(dialling, name=f"dial back for {request.name}")

    async def _dial(self, name: str, contested: tuple[str, ...]) -> None:
        with self._span("dial contested addresses", kind="client"):
            answered = await self._with.dial_backs.answering(name, contested)
        again_at = self._with.monotonic() + KEPT_SECONDS
        self._know(knowledge.dialled(self.known, answered, again_at=again_at))
        fields = {"contested": list(contested), "answered": sorted(answered)}
        log.info("others claim addresses that are asked for: they were dialled", extra=fields)

    # ---- what is said

    async def _say(self, event: EnrichedCsr) -> None:
        self._saying = event
        began = self._with.monotonic()
        try:
            with self._sending(event):
                self.hop.begun()
                outcome, theirs = await self._publish(event)
        finally:
            self._saying = None
        known, now, jitter = self.known, self._with.monotonic(), self._with.random.random()
        if known.void or known.observed.incarnation != event.incarnation:
            return  # said to a stream that is no more
        self._tell(event, outcome, now - began)
        match outcome:
            case EventError() if isinstance(event, EnrichedCsrGone):
                self._know(knowledge.said(known, event, now=now, pace=self._with.pace, jitter=jitter))
            case EventError():
                log.warning("what is attested makes the message too large", extra={"reason": str(outcome)})
                self._know(knowledge.too_large(known, event))
            case Exception():
                self._know(knowledge.not_said(known, now=now, jitter=jitter))
            case _:
                self._know(knowledge.said(known, event, now=now, pace=self._with.pace, jitter=jitter))
                if outcome is Outcome.TIED:
                    self._know(knowledge.contradicted(self.known, event, theirs, now=now))

    def _tell(self, event: EnrichedCsr, outcome: Outcome | Exception, seconds: float) -> None:
        """One line for each word; what was said like this before is only worth a debug line."""
        failed = isinstance(outcome, Exception)
        told = {
            "event": type(event).__name__,
            "attempt": 1 + self.known.unsaid,
            "outcome": "refused" if isinstance(outcome, Exception) else outcome.value,
            "reason": str(outcome) if failed else _reason(event),
            "seconds": round(seconds, 4),
        }
        again = failed or (self.known.said is not None and says_the_same(self.known.said, event))
        log.log(logging.DEBUG if again else logging.INFO, "handled", extra=told)

    async def _publish(self, event: EnrichedCsr) -> tuple[Outcome | Exception, EnrichedCsr | None]:
        """What became of it; on a tie also what the stream holds instead."""
        try:
            outcome = await self._with.publisher.publish(event, headers=outgoing_headers())
            theirs = await self._with.last(subject_of(event)) if outcome is Outcome.TIED else None
        except (BusError, TemporaryError, EventError) as error:
            return error, None
        return outcome, enriched_csr(theirs)

    def _span(self, name: str, *, kind: SpanKind) -> AbstractContextManager[Span]:
        """Part of the journey that the newest observation began, or linked to it once that was answered."""
        parent, links = self._journey.of(self.known)
        attributes = {"k8s.node.name": self.known.node_name, "k8s.csr.name": self._name}
        return span(name, kind=kind, parent_headers=parent, links=links, attributes=attributes)

    def _sending(self, event: EnrichedCsr) -> AbstractContextManager[Span]:
        parent, links = self._journey.of(self.known)
        return self._with.publisher.sending(event, parent_headers=parent, links=links)


def _reason(event: EnrichedCsr) -> str:
    match event:
        case CsrEnriched(fault=fault) if fault is not None:
            return fault.message
        case CsrEnriched(without_talos=True):
            return "no machine is asked, only the Node object attests"
        case CsrEnriched():
            return "its machine attests"
        case _:
            return "the request is gone"


def enriched_csr(message: Message | None) -> EnrichedCsr | None:
    """What a message says of a request, None if it says nothing that can be read."""
    event = message.event if message is not None and not isinstance(message.event, Unreadable) else None
    return event if isinstance(event, CsrEnriched | EnrichedCsrGone) else None
