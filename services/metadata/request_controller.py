"""Runs one reconciler per CSR of the stream while the CSR is pending."""

from dataclasses import KW_ONLY, dataclass
from typing import Final, NoReturn

from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import (
    CsrEnriched,
    CsrGone,
    CsrObserved,
    EnrichedCsr,
    EnrichedCsrGone,
    ObservedCsr,
    SnapshotComplete,
)
from libs.common.contract.subjects import ENRICHED_CSR, OBSERVED_CSR
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
        self._reconcilers = ReconcilerPool[ObservedCsr, RequestReconciler](
            "csr",
            OBSERVED_CSR,
            (CsrObserved, CsrGone),
            create=self._create,
            stream_cache=self.stream_cache,
            jitter=self.dependencies.random,
        )
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
        """Handle a message about a CSR, kept or not, or a SnapshotComplete."""
        is_live = not self.stream_cache.is_replaying
        match message.event:
            case CsrObserved() | CsrGone() as event if is_live:
                self._reconcilers.observe(message, event)
            case CsrEnriched() | EnrichedCsrGone() as event:
                is_new = self._messages.record_sequence(message)
                request = self._reconcilers.get(self._messages.name_of(message))
                if is_new and is_live and request is not None:
                    request.on_stored(event)
            case SnapshotComplete() if is_live:
                self._reconcilers.forget_absent()

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
        self._reconcilers.on_caught_up()
        published = dict(self._messages.take_all())
        for name, request in self._reconcilers.items():
            request.on_stored(published.get(name))

    def on_stream_replaced(self) -> None:
        """Mark all requests stale: their published messages are lost with the old stream."""
        self._reconcilers.on_stream_replaced()

    def on_node_changed(self, name: str) -> None:
        """Update the claims of that Node and check its requests again."""
        self._claims.update(name)
        self._requests.wake(name)

    def _create(
        self, name: str, message: Message, event: ObservedCsr, is_live: bool
    ) -> RequestReconciler | None:
        if isinstance(event, CsrObserved) and not needs_attestation(event.request):
            return None
        if isinstance(event, CsrGone) and not self._messages.get_last_sequence(name):
            return None  # no message about it was published
        stored = self._messages.get_publication(name, self.clock)
        return RequestReconciler(
            name,
            create_state(make_observation(message, event), stored, now=self.clock.monotonic()),
            claims=self._claims,
            clock=self.clock,
            dial_backs=self.dial_backs,
            messages=self._messages,
            nodes=self.nodes,
            requests=self._requests,
            without_talos=self.without_talos,
        )
