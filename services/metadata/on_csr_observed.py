"""Reconciles one CSR until it is decided: publishes what the machine of its Node attests."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError, Message, UnreadablePayload
from libs.common.contract.events import (
    CsrEnriched,
    CsrGone,
    CsrObserved,
    EnrichedCsr,
    EnrichedCsrGone,
    EventError,
)
from libs.common.contract.subjects import subject_of
from libs.common.observability.telemetry import Span, SpanKind, log_fields, outgoing_headers, span
from libs.talos.waiter_event import WaiterEvent
from services.metadata import request_state
from services.metadata.contested_addresses import AddressClaimIndex, find_contested_addresses
from services.metadata.dial_back import ANSWER_TTL_SECONDS, DialBackCache
from services.metadata.latency import LatencyRecorder, TraceContext
from services.metadata.node_state import NEVER, NodeState
from services.metadata.node_step import ForgetObject, Wait
from services.metadata.poll_schedule import PollIntervals
from services.metadata.request_state import RequestState, is_equivalent
from services.metadata.request_step import DialBack, PollNode, PublishCsr, decide_request_step

log = logging.getLogger(__name__)

_RECHECK_SECONDS = 5.0  # until addresses without another claimant are checked again


@dataclass(frozen=True, kw_only=True)
class RequestCollaborators:
    """The objects that the reconcilers of all requests share."""

    publisher: OrderedPublisher
    get_last: Callable[[str], Awaitable[Message | None]]  # the last message of a subject
    intervals: PollIntervals
    without_talos: bool
    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    random: random.Random
    get_node_state: Callable[[str], NodeState | None]
    is_superseded: Callable[[RequestState], bool]  # whether the requester has a newer pending request
    expedite_poll: Callable[[str], None]  # poll the machine of that Node now
    claims: AddressClaimIndex
    dial_backs: DialBackCache
    on_finished: Callable[[str], None]  # the request is decided, or gone and published


class RequestReconciler:
    """Owns the state of one request and takes its steps one by one."""

    def __init__(self, name: str, state: RequestState, collaborators: RequestCollaborators) -> None:
        self.state = state
        self._name = name
        self._shared = collaborators
        self._wakeup = WaiterEvent()
        self._in_flight: EnrichedCsr | None = None
        self._dial_task: asyncio.Task[None] | None = None
        self.latency = LatencyRecorder(collaborators.now)
        self._trace = TraceContext()

    def on_observed(self, message: Message, observed: CsrObserved | CsrGone) -> None:
        """Apply a newer observation of the watcher."""
        self._trace.observe(self.state)
        now = self._shared.monotonic()
        self._set_state(
            request_state.apply_observation(
                self.state, message, observed, now=now, intervals=self._shared.intervals
            )
        )

    def on_node_changed(self) -> None:
        """Check again: the state of the requesting Node, or of its other requests, changed."""
        self._wakeup.set()

    def on_stored(self, event: EnrichedCsr) -> None:
        """Apply the newest message in the stream, unless it is our own."""
        if event not in (self._in_flight, self.state.published):
            self._set_state(request_state.apply_stored(self.state, event))

    def on_unpublished(self) -> None:
        """Handle that the stream has no message about this request."""
        self._set_state(request_state.mark_unpublished(self.state))

    def on_stream_replaced(self) -> None:
        """Forget the published message, which is lost, and wait until the stream has the request."""
        self._set_state(request_state.mark_stale(self.state))

    def on_bus_reconnect(self) -> None:
        """Publish within a second what the bus rejected before."""
        now, jitter = self._shared.monotonic(), self._shared.random.random()
        self._set_state(request_state.apply_bus_reconnect(self.state, now=now, jitter=jitter))

    async def run(self) -> None:
        """Run until the request is decided, or is gone and EnrichedCsrGone is published."""
        with log_fields(csr=self._name, node=self.state.node_name):
            try:
                while await self._step():
                    pass
            finally:
                if self._dial_task is not None:
                    self._dial_task.cancel()

    async def _step(self) -> bool:
        self._wakeup.clear()
        now = self._shared.monotonic()
        match decide_request_step(
            self.state,
            self._shared.get_node_state(self.state.node_name),
            without_talos=self._shared.without_talos,
            is_superseded=self._shared.is_superseded(self.state),
            now=now,
            wall_time=self._shared.now(),
        ):
            case PublishCsr(event=event):
                await self._publish(event)
            case PollNode():
                self._set_state(request_state.apply_poll_requested(self.state, now=now))
                self._shared.expedite_poll(self.state.node_name)
            case DialBack() as dial_back:
                self._dial_back(dial_back, now)
            case Wait(until=until):
                self.latency.record_started()  # the observation needs no other step
                await self._wait(until)
            case ForgetObject():
                self._shared.on_finished(self._name)
                return False
        return True

    def _set_state(self, state: RequestState) -> None:
        if state is not self.state:
            self.state = state
            self._wakeup.set()

    async def _wait(self, until: float) -> None:
        seconds = None if until == NEVER else max(0.0, until - self._shared.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            return

    # ---- contested addresses

    def _dial_back(self, step: DialBack, now: float) -> None:
        request, facts = step.request, step.facts
        if self._dial_task is not None:
            self._dial_task.cancel()
        contested = find_contested_addresses(request, facts, self._shared.claims)
        state = request_state.apply_dial_started(self.state, facts, step.node_uid)
        if not contested:
            again_at = now + _RECHECK_SECONDS if len(facts.addresses) > 1 else NEVER
            self._set_state(request_state.apply_dial_result(state, frozenset(), again_at=again_at))
            return
        self._set_state(state)
        dial = self._dial(request.node_name, contested)
        self._dial_task = asyncio.create_task(dial, name=f"dial back for {request.name}")

    async def _dial(self, name: str, contested: tuple[str, ...]) -> None:
        with self._span("dial contested addresses", kind="client"):
            answered = await self._shared.dial_backs.filter_answering(name, contested)
        again_at = self._shared.monotonic() + ANSWER_TTL_SECONDS
        self._set_state(request_state.apply_dial_result(self.state, answered, again_at=again_at))
        fields = {"contested": list(contested), "answered": sorted(answered)}
        log.info("others claim addresses that are asked for: they were dialled", extra=fields)

    # ---- publishing

    async def _publish(self, event: EnrichedCsr) -> None:
        self._in_flight = event
        began = self._shared.monotonic()
        try:
            with self._publish_span(event):
                self.latency.record_started()
                outcome, theirs = await self._publish_ordered(event)
        finally:
            self._in_flight = None
        state, now, jitter = self.state, self._shared.monotonic(), self._shared.random.random()
        if state.is_stale or state.observation.stream_id != event.stream_id:
            return  # it was published to a stream that no longer exists
        self._log_published(event, outcome, now - began)
        match outcome:
            case EventError() if isinstance(event, EnrichedCsrGone):
                self._set_state(
                    request_state.apply_published(
                        state, event, now=now, intervals=self._shared.intervals, jitter=jitter
                    )
                )
            case EventError():
                log.warning("what is attested makes the message too large", extra={"reason": str(outcome)})
                self._set_state(request_state.apply_oversized_message(state, event))
            case Exception():
                self._set_state(request_state.apply_publish_failure(state, now=now, jitter=jitter))
            case _:
                self._set_state(
                    request_state.apply_published(
                        state, event, now=now, intervals=self._shared.intervals, jitter=jitter
                    )
                )
                if outcome is PublishOutcome.TIED:
                    self._set_state(request_state.apply_publish_conflict(self.state, event, theirs, now=now))

    def _log_published(self, event: EnrichedCsr, outcome: PublishOutcome | Exception, seconds: float) -> None:
        """Log one line per published message, at DEBUG if it failed or repeats the last one."""
        failed = isinstance(outcome, Exception)
        fields = {
            "event": type(event).__name__,
            "attempt": 1 + self.state.publish_failures,
            "outcome": "refused" if isinstance(outcome, Exception) else outcome.value,
            "reason": str(outcome) if failed else _publish_reason(event),
            "seconds": round(seconds, 4),
        }
        is_repeated = failed or (
            self.state.published is not None and is_equivalent(self.state.published, event)
        )
        log.log(logging.DEBUG if is_repeated else logging.INFO, "handled", extra=fields)

    async def _publish_ordered(
        self, event: EnrichedCsr
    ) -> tuple[PublishOutcome | Exception, EnrichedCsr | None]:
        """Publish and return the outcome; on a tie also the message that the stream has instead."""
        try:
            outcome = await self._shared.publisher.publish(event, headers=outgoing_headers())
            theirs = (
                await self._shared.get_last(subject_of(event)) if outcome is PublishOutcome.TIED else None
            )
        except (BusError, TemporaryError, EventError) as error:
            return error, None
        return outcome, read_enriched_csr(theirs)

    def _span(self, name: str, *, kind: SpanKind) -> AbstractContextManager[Span]:
        """Start a span in the trace of the newest observation, or linked to it once that is answered."""
        parent, links = self._trace.parent_and_links(self.state)
        attributes = {"k8s.node.name": self.state.node_name, "k8s.csr.name": self._name}
        return span(name, kind=kind, parent_headers=parent, links=links, attributes=attributes)

    def _publish_span(self, event: EnrichedCsr) -> AbstractContextManager[Span]:
        parent, links = self._trace.parent_and_links(self.state)
        return self._shared.publisher.publish_span(event, parent_headers=parent, links=links)


def _publish_reason(event: EnrichedCsr) -> str:
    match event:
        case CsrEnriched(fault=fault) if fault is not None:
            return fault.message
        case CsrEnriched(without_talos=True):
            return "no machine is asked, only the Node object attests"
        case CsrEnriched():
            return "its machine attests"
        case _:
            return "the request is gone"


def read_enriched_csr(message: Message | None) -> EnrichedCsr | None:
    """Return the event of a message about a request, None if there is none or it cannot be decoded."""
    event = (
        message.event if message is not None and not isinstance(message.event, UnreadablePayload) else None
    )
    return event if isinstance(event, CsrEnriched | EnrichedCsrGone) else None
