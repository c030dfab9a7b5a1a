"""Runs one reconciler per CSR of the stream while the CSR is pending."""

import logging
from dataclasses import KW_ONLY, dataclass
from typing import Final, NoReturn

from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsr, EnrichedCsrGone
from libs.common.contract.subjects import ENRICHED_CSR, OBSERVED_CSR, object_name_in
from libs.common.service.service import Dependencies, run_every
from services.metadata.clock import Clock
from services.metadata.core.contested_addresses import AddressClaimIndex
from services.metadata.core.object_state import make_observation
from services.metadata.core.request_state import create_state, needs_attestation
from services.metadata.enrichment_publisher import EnrichedMessages
from services.metadata.machines.dial_back import DialBackCache
from services.metadata.node_registry import NodeRegistry
from services.metadata.on_csr_observed import RequestIndex, RequestReconciler
from services.metadata.reconciler_pool import ReconcilerPool

log = logging.getLogger(__name__)

# Until a new claim to an address takes effect. Checking each pending request so often took a third of the CPU
# time while thousands of requests waited.
CLAIM_CHECK_SECONDS: Final = 5.0


@dataclass(eq=False)
class RequestController:
    """Passes messages about CSRs, and changes of the requesting Nodes, to the request reconcilers."""

    stream_cache: StreamCache
    publisher: OrderedPublisher
    dependencies: Dependencies
    _: KW_ONLY
    clock: Clock
    dial_backs: DialBackCache
    nodes: NodeRegistry
    without_talos: bool

    def __post_init__(self) -> None:
        self._claims = AddressClaimIndex(self.nodes)
        self._requests = RequestIndex()
        self._reconcilers = ReconcilerPool[RequestReconciler]("csr", self.dependencies.random)
        types = (CsrEnriched, EnrichedCsrGone)
        self._messages = EnrichedMessages[EnrichedCsr](
            ENRICHED_CSR, types, self.stream_cache, self.publisher, self.dependencies.bus
        )

    async def run(self) -> NoReturn:
        """Check the requests of Nodes with newly contested addresses, until cancelled."""
        await run_every(CLAIM_CHECK_SECONDS, self._check_newly_contested)

    def _check_newly_contested(self) -> None:
        for name in self._claims.take_newly_contested(self._requests.list_nodes()):
            self._requests.check_addresses(name)

    async def close(self) -> None:
        """Cancel all tasks."""
        await self._reconcilers.close()

    def on_message(self, message: Message) -> None:
        """Handle a message about a CSR, kept or not."""
        is_live = not self.stream_cache.is_replaying
        match message.event:
            case CsrObserved() | CsrGone() as event if is_live:
                self._observe(message, event, live=True)
            case CsrEnriched() | EnrichedCsrGone() as event:
                is_new = self._messages.record_sequence(message)
                request = self._reconcilers.get(self._messages.name_of(message))
                if is_new and is_live and request is not None:
                    request.on_stored(event)

    def should_keep(self, message: Message) -> bool:
        """Return whether the cache keeps it: pending requests always, enriched ones only while it replays."""
        match message.event:
            case CsrObserved(request=request):
                return needs_attestation(request)
            case CsrEnriched() | EnrichedCsrGone():
                return self.stream_cache.is_replaying
        return True

    def on_caught_up(self) -> None:
        """Compare all requests with the stream cache, which now has all messages of the stream."""
        self._mark_lost_unpublished()
        for message in self.stream_cache.list_under(OBSERVED_CSR):
            if isinstance(message.event, CsrObserved | CsrGone):
                self._observe(message, message.event)
        published = {name: event for name, event in self._messages.take_all() if event is not None}
        for name, request in self._reconcilers.items():
            if name in published:
                request.on_stored(published[name])
            else:
                request.on_unpublished()
        self.forget_absent()
        for request in self._reconcilers.values():
            request.on_bus_reconnect()

    def _mark_lost_unpublished(self) -> None:
        """Mark requests stale whose observation the NATS server lost: it reuses the lost sequences."""
        for name, request in self._reconcilers.items():
            message = self.stream_cache.get(f"{OBSERVED_CSR}.{name}")
            if message is None or message.sequence < request.state.observation.sequence:
                request.on_stream_replaced()

    def on_stream_replaced(self) -> None:
        """Mark all requests stale: their published messages are lost with the old stream."""
        for request in self._reconcilers.values():
            request.on_stream_replaced()

    def on_node_changed(self, name: str) -> None:
        """Update the claims of that Node and check its requests again."""
        self._claims.update(name)
        self._requests.wake(name)

    def forget_absent(self) -> None:
        """Forget each request that the complete stream does not have: its end was not observed."""
        if self.stream_cache.is_complete:
            present = self.stream_cache.list_under(OBSERVED_CSR)
            self._reconcilers.keep_only({object_name_in(each.subject, OBSERVED_CSR) for each in present})

    def _observe(self, message: Message, event: CsrObserved | CsrGone, *, live: bool = False) -> None:
        try:
            name = object_name_in(message.subject, OBSERVED_CSR)
            if name not in self._reconcilers:
                self._start(name, message, event)
            else:
                request = self._reconcilers[name]
                self._requests.remove(request)
                request.on_observed(message, event)
                self._requests.add(request)
            if live and name in self._reconcilers:
                self._reconcilers[name].publisher.record_received(message)
        except Exception:
            # Other clients write CSRs: a CSR that raises here must not block the others.
            log.exception("unexpected error, observation ignored", extra={"subject": message.subject})

    def _start(self, name: str, message: Message, event: CsrObserved | CsrGone) -> None:
        if isinstance(event, CsrObserved) and not needs_attestation(event.request):
            return
        if isinstance(event, CsrGone) and not self._messages.has_published(name):
            return  # no message about it was published
        stored = self._messages.get_publication(name, self.clock)
        state = create_state(make_observation(message, event), stored, now=self.clock.monotonic())
        request = RequestReconciler(
            name,
            state,
            claims=self._claims,
            clock=self.clock,
            dial_backs=self.dial_backs,
            messages=self._messages,
            nodes=self.nodes,
            requests=self._requests,
            without_talos=self.without_talos,
        )
        self._reconcilers.start(name, request)
        self._requests.add(request)
