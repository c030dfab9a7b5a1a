"""Measures the age of an observation when work on it starts, and links its answer to its trace."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from libs.common.bus.protocol import Message, event_name
from libs.common.contract.services import METADATA
from libs.common.observability import metrics, telemetry
from services.metadata.object_state import Observation

_MAX_LINKS: Final = 8  # to observations that got no answer before the next one arrived

Headers = Mapping[str, str]


class LatencyRecorder:
    """Records the age of each live observation of one object once, when the first work on it starts."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._message: Message | None = None

    def record_received(self, message: Message) -> None:
        """Set the newest observation."""
        self._message = message

    def record_started(self) -> None:
        """Record the age of the observation, unless it is already recorded."""
        if self._message is None:
            return
        age = (self._now() - self._message.published_at).total_seconds()
        event = event_name(self._message.event)
        metrics.HOP_LATENCY.labels(METADATA.service, event).observe(max(0.0, age), telemetry.exemplar())
        self._message = None


class TraceContext:
    """Selects the trace of an answer: the trace of the observation, or a link to it once it is answered."""

    def __init__(self) -> None:
        self._unanswered: tuple[Headers, ...] = ()

    def observe(self, before: Observation[Any]) -> None:
        """Handle a new observation. If the previous one has no answer yet, the next answer links to it."""
        if before.is_answered or not before.trace_headers:
            self._unanswered = ()
        elif before.trace_headers not in self._unanswered:
            self._unanswered = (*self._unanswered, before.trace_headers)[-_MAX_LINKS:]

    def parent_and_links(self, current: Observation[Any]) -> tuple[Headers | None, tuple[Headers, ...]]:
        """Return the parent headers, and the headers to link to."""
        if current.is_answered:
            return None, (current.trace_headers,) if current.trace_headers else ()
        return current.trace_headers, tuple(
            each for each in self._unanswered if each != current.trace_headers
        )
