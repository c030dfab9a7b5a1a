"""The way of an observation through metadata: how old it is when work on it begins, and in which trace."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Protocol

from libs.common.bus.protocol import Message, event_name
from libs.common.observability import metrics, telemetry
from libs.common.service.service_spec import METADATA

_MAX_LINKS: Final = 8  # of observations that nobody answered before the next one came

Headers = Mapping[str, str]


class LatencyRecorder:
    """Of one object: measures each observation that was heard live once, whatever is done on its behalf."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._message: Message | None = None

    def record_received(self, message: Message) -> None:
        """The newest observation."""
        self._message = message

    def record_started(self) -> None:
        """Work on it begins; what is done later on is not on its behalf."""
        if self._message is None:
            return
        age = (self._now() - self._message.published_at).total_seconds()
        event = event_name(self._message.event)
        metrics.HOP_LATENCY.labels(METADATA.service, event).observe(max(0.0, age), telemetry.exemplar())
        self._message = None


class TracedObservation(Protocol):
    """The newest observation of an object."""

    @property
    def trace_headers(self) -> Headers: ...

    @property
    def is_answered(self) -> bool: ...


class TraceContext:
    """In which trace an answer stands: in that of the observation; linked to it once that was answered."""

    def __init__(self) -> None:
        self._unanswered: tuple[Headers, ...] = ()

    def observe(self, before: TracedObservation) -> None:
        """Another observation comes; the one before, if nobody answered it, is answered with this one."""
        if before.is_answered or not before.trace_headers:
            self._unanswered = ()
        elif before.trace_headers not in self._unanswered:
            self._unanswered = (*self._unanswered, before.trace_headers)[-_MAX_LINKS:]

    def parent_and_links(self, current: TracedObservation) -> tuple[Headers | None, tuple[Headers, ...]]:
        """The parent, and whom to link to."""
        if current.is_answered:
            return None, (current.trace_headers,) if current.trace_headers else ()
        return current.trace_headers, tuple(
            each for each in self._unanswered if each != current.trace_headers
        )
