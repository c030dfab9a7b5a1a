"""Publishes the enriched messages of one object, in the trace of its observation."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import Bus, BusError, Message, event_name
from libs.common.contract import events
from libs.common.contract.services import METADATA
from libs.common.contract.subjects import ENRICHED_CSR, ENRICHED_NODE, OBSERVED_CSR, OBSERVED_NODE
from libs.common.observability import metrics, telemetry
from libs.common.observability.telemetry import Attribute, Span, SpanKind, outgoing_headers, span
from services.metadata.clock import Clock
from services.metadata.core.event_equivalence import is_news
from services.metadata.core.object_state import EnrichedT, Observation, ObservedT, Publication

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ObjectKind(Generic[ObservedT, EnrichedT]):
    """The messages about one kind of object. A subject ends with the name of the object."""

    log_field: str  # name of the field with the object's name in log lines
    observed_prefix: str  # of the subjects to which the watcher publishes
    observed_types: tuple[type[ObservedT], ...]
    enriched_prefix: str  # of the subjects to which metadata publishes
    enriched_types: tuple[type[EnrichedT], ...]

    def read_enriched(self, message: Message | None) -> EnrichedT | None:
        """Return the event of the message; None without a message, or if it is no event of this kind."""
        event = message.event if message is not None else None
        return event if isinstance(event, self.enriched_types) else None


NODES: Final = ObjectKind[events.ObservedNode, events.EnrichedNode](
    log_field="node",
    observed_prefix=OBSERVED_NODE,
    observed_types=(events.NodeObserved, events.NodeGone),
    enriched_prefix=ENRICHED_NODE,
    enriched_types=(events.NodeEnriched, events.NodeUnreachable, events.EnrichedNodeGone),
)
CSRS: Final = ObjectKind[events.ObservedCsr, events.EnrichedCsr](
    log_field="csr",
    observed_prefix=OBSERVED_CSR,
    observed_types=(events.CsrObserved, events.CsrGone),
    enriched_prefix=ENRICHED_CSR,
    enriched_types=(events.CsrEnriched, events.EnrichedCsrGone),
)


@dataclass(eq=False, slots=True)  # there are thousands
class EnrichmentPublisher(Generic[EnrichedT]):
    """Publishes the enrichments of one object in the trace of its observation, and logs a line for each."""

    kind: ObjectKind[Any, EnrichedT]
    name: str
    publisher: OrderedPublisher
    bus: Bus
    clock: Clock
    _received: Message | None = None  # the newest live observation, until work on it starts

    @property
    def last_sequence(self) -> int:
        """The sequence of the last known message about the object, 0 without one."""
        return self.publisher.last_sequence_of(self._subject)

    async def fetch_last(self) -> EnrichedT | None:
        """Fetch the last event about the object from the stream. Raises BusError."""
        return self.kind.read_enriched(await self.bus.get_last(self._subject))

    def record_received(self, message: Message) -> None:
        """Start the latency of a live observation."""
        self._received = message

    def record_started(self) -> None:
        """End the latency of the observation: work on it starts, or it needs none."""
        if self._received is None:
            return
        age = (self.clock.now() - self._received.published_at).total_seconds()
        event = event_name(self._received.event)
        metrics.HOP_LATENCY.labels(METADATA.service, event).observe(max(0.0, age), telemetry.exemplar())
        self._received = None

    def span(
        self, name: str, observation: Observation[Any], attributes: Mapping[str, Attribute], *, kind: SpanKind
    ) -> AbstractContextManager[Span]:
        """Start a span in the trace of the observation, or linked to it once that is answered."""
        parent, links = observation.find_trace()
        return span(name, kind=kind, parent_headers=parent, links=links, attributes=attributes)

    async def publish(self, event: EnrichedT, observation: Observation[Any]) -> PublishOutcome | Exception:
        """Publish the answer to the observation. Return the error if the bus or the contract refuses it."""
        parent, links = observation.find_trace()
        with self.publisher.publish_span(event, parent_headers=parent, links=links):
            self.record_started()
            try:
                return await self.publisher.publish(event, headers=outgoing_headers())
            except (BusError, TemporaryError, events.EventError) as error:
                return error

    def log_outcome(
        self,
        event: EnrichedT,
        outcome: PublishOutcome | Exception,
        before: Publication[EnrichedT],
        *,
        reason: str,
        seconds: float,
    ) -> None:
        """Log the publish of this event, at DEBUG if it failed or reports nothing new about the machine."""
        failed = isinstance(outcome, Exception)
        fields = {
            "event": type(event).__name__,
            "attempt": 1 + before.failures,
            "outcome": "refused" if isinstance(outcome, Exception) else outcome.value,
            "reason": str(outcome) if failed else reason,
            "seconds": round(seconds, 4),
        }
        level = logging.INFO if not failed and is_news(event, before.event) else logging.DEBUG
        log.log(level, "handled", extra=fields)

    @property
    def _subject(self) -> str:
        return f"{self.kind.enriched_prefix}.{self.name}"
