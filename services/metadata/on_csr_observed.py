"""Reconciles one CSR until it is decided: publishes what the machine of its Node attests."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, NoReturn

from msgspec.structs import replace

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import PublishOutcome
from libs.common.bus.protocol import BusError, Message
from libs.common.contract.events import (
    CsrEnriched,
    EnrichedCsr,
    EnrichedCsrGone,
    EventError,
    ObservedCsr,
)
from libs.common.observability.telemetry import log_fields
from libs.common.service.service import run_every
from services.metadata.clock import Clock, Wakeup
from services.metadata.core.contested_addresses import AddressClaimIndex, find_contested_addresses
from services.metadata.core.object_state import NEVER, ForgetObject, Publish, Wait
from services.metadata.core.request_state import RequestState
from services.metadata.core.request_step import DialBack, PollNode, decide_request_step
from services.metadata.enrichment_publisher import EnrichmentPublisher
from services.metadata.machines.dial_back import ANSWER_TTL_SECONDS, DialBackCache
from services.metadata.node_registry import NodeRegistry

log = logging.getLogger(__name__)

# Until a new claim to an address takes effect. Checking each pending request so often took a third of the CPU
# time while thousands of requests waited.
CLAIM_CHECK_SECONDS: Final = 5.0


class RequestIndex:
    """The reconcilers of all requests by the name of the requesting Node, and the claims of all Nodes."""

    def __init__(self, nodes: NodeRegistry) -> None:
        self.claims = AddressClaimIndex(nodes)
        self._by_node: dict[str, dict[str, RequestReconciler]] = {}

    def add(self, request: "RequestReconciler") -> None:
        """Add the request, and check the requests of its Node again."""
        self._by_node.setdefault(request.state.node_name, {})[request.name] = request
        self._wake(request.state.node_name)

    def remove(self, request: "RequestReconciler") -> None:
        """Remove the request, and check the other requests of its Node again."""
        node_name = request.state.node_name
        requests = self._by_node.get(node_name, {})
        requests.pop(request.name, None)
        if not requests:
            self._by_node.pop(node_name, None)
        self._wake(node_name)

    def on_node_changed(self, name: str) -> None:
        """Update the claims of that Node and check its requests again."""
        self.claims.update(name)
        self._wake(name)

    def is_superseded(self, state: RequestState) -> bool:
        """Return whether the requester has a newer pending request."""
        requests = self._by_node.get(state.node_name, {})
        return len(requests) > 1 and any(state.is_superseded_by(each.state) for each in requests.values())

    async def run(self) -> NoReturn:
        """Check the requests of Nodes with newly contested addresses, until cancelled."""
        await run_every(CLAIM_CHECK_SECONDS, self._check_newly_contested)

    def _check_newly_contested(self) -> None:
        for name in self.claims.take_newly_contested(tuple(self._by_node)):
            for request in self._by_node.get(name, {}).values():
                request.on_newly_contested()

    def _wake(self, node_name: str) -> None:
        """Check the requests of the Node again: its state or its newest request may have changed."""
        for request in self._by_node.get(node_name, {}).values():
            request.on_node_changed()


@dataclass(eq=False, kw_only=True)
class RequestReconciler:
    """Owns the state of one request and takes its steps one by one."""

    name: str
    state: RequestState
    clock: Clock
    dial_backs: DialBackCache
    publisher: EnrichmentPublisher[EnrichedCsr]
    nodes: NodeRegistry
    requests: RequestIndex
    without_talos: bool

    def __post_init__(self) -> None:
        self._wakeup = Wakeup(self.clock)
        self._in_flight: EnrichedCsr | None = None
        self._dial_task: asyncio.Task[None] | None = None

    def on_started(self, *, is_live: bool) -> None:
        """Check the other requests of the Node again: this one may be the newest now."""
        self.requests.add(self)

    def on_observed(self, message: Message, event: ObservedCsr, *, is_live: bool) -> None:
        """Apply a newer observation of the watcher, live or not."""
        self.requests.remove(self)  # an observation may have another requester, or none
        self._set_state(self.state.observed(message, event, self.clock.timing()))
        self.requests.add(self)

    async def run(self) -> None:
        """Run until the request is decided, or is gone and EnrichedCsrGone is published."""
        with log_fields(csr=self.name, node=self.state.node_name):
            try:
                while await self._step():
                    pass
            finally:
                if self._dial_task is not None:
                    self._dial_task.cancel()

    async def _step(self) -> bool:
        self._wakeup.clear()
        now, node_name = self.clock.monotonic(), self.state.node_name
        match decide_request_step(
            self.state,
            self.nodes.get(node_name),
            without_talos=self.without_talos,
            is_superseded=self.requests.is_superseded(self.state),
            now=now,
            wall_time=self.clock.now(),
        ):
            case PollNode():
                self._set_state(self.state.poll_requested(now=now))
                self.nodes.expedite_poll(node_name)
            case DialBack() as dial_back:
                self._dial_back(dial_back, now)
            case Publish(event=event):
                await self._publish(event)
            case Wait(until=until):
                self.publisher.record_started()  # the observation needs no other step
                await self._wakeup.wait(until)
            case ForgetObject():
                return False
        return True

    # ---- contested addresses

    def _dial_back(self, step: DialBack, now: float) -> None:
        request, facts = step.request, step.facts
        if self._dial_task is not None:
            self._dial_task.cancel()
        contested = find_contested_addresses(request, facts, self.requests.claims)
        state = self.state.dial_started(facts, step.node_uid)
        if not contested:
            self._set_state(state.dialled(frozenset(), again_at=NEVER))
            return
        self._set_state(state)
        dial = self._dial(request.node_name, contested)
        self._dial_task = asyncio.create_task(dial, name=f"dial back for {request.name}")

    async def _dial(self, node_name: str, contested: tuple[str, ...]) -> None:
        attributes = {"k8s.node.name": node_name, "k8s.csr.name": self.name}
        observation = self.state.observation
        with self.publisher.span("dial contested addresses", observation, attributes, kind="client"):
            answered = await self.dial_backs.filter_answering(node_name, contested)
        self._set_state(self.state.dialled(answered, again_at=self.clock.monotonic() + ANSWER_TTL_SECONDS))
        fields = {"contested": list(contested), "answered": sorted(answered)}
        log.info("contested addresses dialled", extra=fields)

    # ---- publishing

    async def _publish(self, event: EnrichedCsr) -> None:
        self._in_flight, began = event, self.clock.monotonic()
        try:
            outcome, theirs = await self._publish_ordered(event)
        finally:
            self._in_flight = None
        state, timing = self.state, self.clock.timing()
        if not state.observation.is_current(event):
            return  # it was published to a stream that no longer exists
        reason, seconds = _publish_reason(event), timing.now - began
        self.publisher.log_outcome(event, outcome, state.publication, reason=reason, seconds=seconds)
        match outcome:
            case EventError() if not isinstance(event, EnrichedCsrGone):
                log.warning("message too large, will publish without facts", extra={"reason": str(outcome)})
                self._set_state(state.message_oversized(event))
            case Exception() if not isinstance(outcome, EventError):
                self._set_state(replace(state, publication=state.publication.failed(timing)))
            case _:
                state = state.published(event, timing)
                is_tied = outcome is PublishOutcome.TIED
                self._set_state(state.publish_conflicted(theirs, now=timing.now) if is_tied else state)

    async def _publish_ordered(
        self, event: EnrichedCsr
    ) -> tuple[PublishOutcome | Exception, EnrichedCsr | None]:
        """Publish and return the outcome; on a tie also the message that the stream has instead."""
        outcome = await self.publisher.publish(event, self.state.observation)
        if outcome is not PublishOutcome.TIED:
            return outcome, None
        try:
            return outcome, await self.publisher.fetch_last()
        except (BusError, TemporaryError) as error:
            return error, None

    def _set_state(self, state: RequestState) -> None:
        if state is not self.state:
            self.state = state
            self._wakeup.set()

    # ---- other events

    def on_node_changed(self) -> None:
        """Check again: the state of the requesting Node, or of its other requests, changed."""
        self._wakeup.set()

    def on_newly_contested(self) -> None:
        """Check the addresses again: another Node claims one of them since the last check."""
        is_dialling = self._dial_task is not None and not self._dial_task.done()
        if self.state.next_dial_at == NEVER and not is_dialling:
            self._set_state(self.state.dial_due(now=self.clock.monotonic()))

    def on_stored(self, event: EnrichedCsr | None, _sequence: int, /) -> None:
        """Apply the newest message in the stream, None without one, unless it is our own."""
        if event is None or event not in (self._in_flight, self.state.publication.event):
            self._set_state(self.state.stored(event))

    def on_stream_replaced(self) -> None:
        """Forget the published message, which is lost, and wait until the stream has the request."""
        self._set_state(self.state.stream_replaced())

    def on_bus_reconnect(self) -> None:
        """Publish within a second what the bus rejected before."""
        if (publication := self.state.publication).failures:
            self._set_state(replace(self.state, publication=publication.reconnected(self.clock.timing())))

    def on_forgotten(self) -> None:
        """Check the other requests of the Node again: one of them may be the newest now."""
        self.requests.remove(self)


def _publish_reason(event: EnrichedCsr) -> str:
    match event:
        case CsrEnriched(fault=fault) if fault is not None:
            return fault.message
        case CsrEnriched(without_talos=True):
            return "without Talos, only the Node object attests"
        case CsrEnriched():
            return "attested by its machine"
        case _:
            return "the request is gone"
