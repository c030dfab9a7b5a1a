"""Spans of traces, and the fields of log lines. While tracing is off, it costs almost nothing."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

from libs.common.observability.logs import log_fields, note, notes, setup_logging

if TYPE_CHECKING:
    from libs.common.observability.tracing import Tracing

__all__ = [
    "Attribute",
    "Span",
    "SpanKind",
    "annotate",
    "exemplar",
    "flush",
    "log_fields",
    "notes",
    "outgoing_headers",
    "record",
    "setup_logging",
    "setup_tracing",
    "span",
    "tracing_is_on",
]

SpanKind = Literal["internal", "producer", "consumer", "client"]
Attribute = str | int | float | bool


class Span(Protocol):
    """The part of a span that callers use."""

    def set(self, attributes: Mapping[str, Attribute], /) -> None:
        """Add attributes."""


class _NoSpan:
    """The result of `span` while tracing is off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def set(self, attributes: Mapping[str, Attribute], /) -> None:
        """Ignore the attributes."""


_NO_SPAN: Final = _NoSpan()
_tracing: "Tracing | None" = None


def setup_tracing(service: str, endpoint: str | None) -> None:
    """Export spans to that OTLP/HTTP endpoint (`http://host:4318`) from now on; None or "" = off."""
    global _tracing  # noqa: PLW0603 - one exporter per process, set once at its start
    if _tracing is not None:
        _tracing.close()
        _tracing = None
    if endpoint:
        from libs.common.observability.tracing import Tracing  # noqa: PLC0415 - 12 MB and 200 ms, which most need not pay

        _tracing = Tracing(service, endpoint)


def tracing_is_on() -> bool:
    """Whether spans are recorded."""
    return _tracing is not None


def span(
    name: str,
    *,
    kind: SpanKind = "internal",
    parent_headers: Mapping[str, str] | None = None,
    links: Sequence[Mapping[str, str]] = (),
    attributes: Mapping[str, Attribute] | None = None,
) -> AbstractContextManager[Span]:
    """Return a context that records a span; an exception marks the span and propagates.

    `parent_headers` are the headers of the causing message (W3C traceparent), `links` those of other causing
    messages. Without parent headers the current span is the parent.
    """
    if _tracing is None:
        return _NO_SPAN
    return _tracing.span(name, kind, parent_headers, links, attributes or {})


def outgoing_headers() -> dict[str, str]:
    """Return the W3C trace context of the current span for message headers; empty while tracing is off."""
    return {} if _tracing is None else _tracing.outgoing_headers()


def exemplar() -> dict[str, str] | None:
    """Return the current trace ID for a metric; None while tracing is off or outside of a trace."""
    return None if _tracing is None else _tracing.exemplar()


def annotate(**fields: Attribute) -> None:
    """Add fields to the log line of the current event, and to the current span."""
    note(**fields)
    if _tracing is not None:
        _tracing.annotate(fields)


def record(name: str, *, seconds: float, attributes: Mapping[str, Attribute]) -> None:
    """Record a call that has just ended as a child of the current span; ignore it without one."""
    if _tracing is not None:
        _tracing.record(name, seconds, attributes)


async def flush(deadline_seconds: float) -> None:
    """Export queued spans within the deadline; it never blocks the event loop and never raises."""
    if _tracing is not None:
        await _tracing.flush(deadline_seconds)
