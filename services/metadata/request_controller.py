"""Runs one reconciler per CSR of the stream, each as a task of its own while the CSR is pending."""

import asyncio
import logging
from collections.abc import Callable

from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import CsrEnriched, CsrGone, CsrObserved, EnrichedCsrGone
from libs.common.contract.subjects import ENRICHED_CSR, OBSERVED_CSR, object_name_in
from libs.common.service.service import Dependencies
from services.metadata.contested_addresses import AddressClaimIndex
from services.metadata.dial_back import DialBackCache
from services.metadata.node_state import NodeState
from services.metadata.on_csr_observed import RequestCollaborators, RequestReconciler, read_enriched_csr
from services.metadata.poll_schedule import PollIntervals
from services.metadata.request_state import RequestState, create_state, is_superseded_by, needs_attestation
from services.metadata.supervise import supervise

log = logging.getLogger(__name__)


class RequestController:
    """Passes messages about CSRs, and changes of the requesting Nodes, to the request reconcilers."""

    def __init__(
        self,
        stream_cache: StreamCache,
        publisher: OrderedPublisher,
        dependencies: Dependencies,
        *,
        intervals: PollIntervals,
        without_talos: bool,
        get_node_state: Callable[[str], NodeState | None],
        expedite_poll: Callable[[str], None],
        dial_backs: DialBackCache,
    ) -> None:
        self._stream_cache = stream_cache
        self._publisher = publisher
        self._dependencies = dependencies
        self._intervals = intervals
        self._claims = AddressClaimIndex(get_node_state)
        self._reconcilers: dict[str, RequestReconciler] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._names_by_node: dict[str, dict[str, RequestReconciler]] = {}
        self._collaborators = RequestCollaborators(
            publisher=publisher,
            get_last=dependencies.bus.get_last,
            intervals=intervals,
            without_talos=without_talos,
            monotonic=dependencies.monotonic,
            now=dependencies.now,
            random=dependencies.random,
            get_node_state=get_node_state,
            is_superseded=self._is_superseded,
            expedite_poll=expedite_poll,
            claims=self._claims,
            dial_backs=dial_backs,
            on_finished=self._forget,
        )

    def on_message(self, message: Message) -> None:
        """Handle a message about a CSR, kept or not."""
        match message.event:
            case CsrObserved() | CsrGone() if not self._stream_cache.is_replaying:
                self._observe(message, live=True)
            case CsrEnriched() | EnrichedCsrGone() as event:
                is_new = message.sequence > self._publisher.last_sequence_of(message.subject)
                self._publisher.record_sequence(message.subject, message.sequence)
                request = self._reconcilers.get(object_name_in(message.subject, ENRICHED_CSR))
                if is_new and request is not None and not self._stream_cache.is_replaying:
                    request.on_stored(event)

    def should_keep(self, message: Message) -> bool:
        """Return whether the cache keeps it: pending requests always, enriched ones only while it replays."""
        match message.event:
            case CsrObserved(request=request):
                return needs_attestation(request)
            case CsrEnriched() | EnrichedCsrGone():
                return self._stream_cache.is_replaying
        return True

    def on_caught_up(self) -> None:
        """Compare all requests with the stream cache, which now has all messages of the stream."""
        self._mark_lost_unpublished()
        for message in self._stream_cache.list_under(OBSERVED_CSR):
            self._observe(message)
        unpublished = set(self._reconcilers)
        for message in self._stream_cache.list_under(ENRICHED_CSR):
            name, event = object_name_in(message.subject, ENRICHED_CSR), read_enriched_csr(message)
            if name in self._reconcilers and event is not None:
                unpublished.discard(name)
                self._reconcilers[name].on_stored(event)
            self._stream_cache.forget(message.subject)
        for name in unpublished:
            self._reconcilers[name].on_unpublished()
        self.forget_absent()
        for request in self._reconcilers.values():
            request.on_bus_reconnect()

    def _mark_lost_unpublished(self) -> None:
        """Mark requests stale whose observation the NATS server lost: it reuses the lost sequences."""
        for name, request in self._reconcilers.items():
            message = self._stream_cache.get(f"{OBSERVED_CSR}.{name}")
            if message is None or message.sequence < request.state.observed_sequence:
                request.on_stream_replaced()

    def on_stream_replaced(self) -> None:
        """Mark all requests stale: their published messages are lost with the old stream."""
        for request in self._reconcilers.values():
            request.on_stream_replaced()

    def on_node_changed(self, name: str) -> None:
        """Update the claims of that Node and check its requests again."""
        self._claims.update(name)
        self._wake(name)

    def forget_absent(self) -> None:
        """Forget each request that the complete stream does not have: its end was not observed."""
        if not self._stream_cache.is_complete:
            return
        for name in [n for n in self._reconcilers if self._stream_cache.get(f"{OBSERVED_CSR}.{n}") is None]:
            self._tasks[name].cancel()
            self._forget(name)

    async def close(self) -> None:
        """Cancel all tasks. The next start publishes what this interrupts."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _observe(self, message: Message, *, live: bool = False) -> None:
        event = message.event
        assert isinstance(event, CsrObserved | CsrGone)
        try:
            name = object_name_in(message.subject, OBSERVED_CSR)
            request = self._reconcilers.get(name)
            if request is None:
                self._start(name, message, event)
            else:
                self._unindex(name, request)
                self._wake(request.state.node_name)
                request.on_observed(message, event)
                self._index(name, request)
            if (listed := self._reconcilers.get(name)) is not None:
                self._wake(listed.state.node_name)
            if live and name in self._reconcilers:
                self._reconcilers[name].latency.record_received(message)
        except Exception:
            # Other clients write CSRs: a CSR that raises here must not block the others.
            log.exception("an observation was not understood", extra={"subject": message.subject})

    def _start(self, name: str, message: Message, event: CsrObserved | CsrGone) -> None:
        subject = f"{ENRICHED_CSR}.{name}"
        if isinstance(event, CsrObserved) and not needs_attestation(event.request):
            return
        if isinstance(event, CsrGone) and not self._publisher.last_sequence_of(subject):
            return  # no message about it was published
        stored = self._stream_cache.get(subject)
        age = (self._dependencies.now() - stored.published_at).total_seconds() if stored else 0.0
        state = create_state(
            message,
            event,
            read_enriched_csr(stored),
            republish_in=max(0.0, self._intervals.republish - max(0.0, age)),
            now=self._dependencies.monotonic(),
        )
        request = self._reconcilers[name] = RequestReconciler(name, state, self._collaborators)
        self._index(name, request)
        running = supervise(request.run, self._dependencies.random, csr=name)
        self._tasks[name] = asyncio.create_task(running, name=f"request {name}")

    def _is_superseded(self, state: RequestState) -> bool:
        others = self._names_by_node.get(state.node_name, {}).values()
        return any(is_superseded_by(state, other.state) for other in others)

    def _wake(self, node: str) -> None:
        """Check the requests of the Node again: its state or its newest request may have changed."""
        for request in self._names_by_node.get(node, {}).values():
            request.on_node_changed()

    def _index(self, name: str, request: RequestReconciler) -> None:
        self._names_by_node.setdefault(request.state.node_name, {})[name] = request

    def _unindex(self, name: str, request: RequestReconciler) -> None:
        of_node = self._names_by_node.get(request.state.node_name, {})
        of_node.pop(name, None)
        if not of_node:
            self._names_by_node.pop(request.state.node_name, None)

    def _forget(self, name: str) -> None:
        request = self._reconcilers.pop(name, None)
        self._tasks.pop(name, None)
        if request is not None:
            self._unindex(name, request)
            self._wake(request.state.node_name)
