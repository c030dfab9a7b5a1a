"""Publishes the messages about one object, in the trace of its observation, and measures the latency."""

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError, Message
from libs.common.contract.events import EventError
from libs.common.observability.telemetry import Attribute, Span, SpanKind, outgoing_headers, span
from services.metadata.clock import Clock
from services.metadata.latency import LatencyRecorder, TraceContext
from services.metadata.object_state import EnrichedT, Observation, Publication

log = logging.getLogger(__name__)


class ObjectPublisher(Generic[EnrichedT]):
    """Publishes the messages about one object and logs a line for each."""

    __slots__ = ("_latency", "_publisher", "_trace")  # there are thousands

    def __init__(self, publisher: OrderedPublisher, clock: Clock) -> None:
        self._publisher = publisher
        self._latency = LatencyRecorder(clock.now)
        self._trace = TraceContext()

    def record_received(self, message: Message) -> None:
        """Start the latency of a live observation."""
        self._latency.record_received(message)

    def record_started(self) -> None:
        """End the latency of the observation: work on it starts, or it needs none."""
        self._latency.record_started()

    def record_replaced(self, before: Observation[Any]) -> None:
        """Link the next message to this observation too, if it has no answer yet."""
        self._trace.observe(before)

    def span(
        self, name: str, observation: Observation[Any], attributes: Mapping[str, Attribute], *, kind: SpanKind
    ) -> AbstractContextManager[Span]:
        """Start a span in the trace of the observation, or linked to it once that is answered."""
        parent, links = self._trace.parent_and_links(observation)
        return span(name, kind=kind, parent_headers=parent, links=links, attributes=attributes)

    async def publish(self, event: EnrichedT, observation: Observation[Any]) -> PublishOutcome | Exception:
        """Publish the answer to the observation. Return the error if the bus or the contract refuses it."""
        parent, links = self._trace.parent_and_links(observation)
        with self._publisher.publish_span(event, parent_headers=parent, links=links):
            self.record_started()
            try:
                return await self._publisher.publish(event, headers=outgoing_headers())
            except (BusError, TemporaryError, EventError) as error:
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
        """Log the publish of this event, at DEBUG if it failed or repeats the message published before."""
        failed = isinstance(outcome, Exception)
        fields = {
            "event": type(event).__name__,
            "attempt": 1 + before.failures,
            "outcome": "refused" if isinstance(outcome, Exception) else outcome.value,
            "reason": str(outcome) if failed else reason,
            "seconds": round(seconds, 4),
        }
        is_repeated = failed or before.has_equivalent(event)
        log.log(logging.DEBUG if is_repeated else logging.INFO, "handled", extra=fields)
