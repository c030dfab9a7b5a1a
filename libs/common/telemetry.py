"""Spans of a node's journey, and the fields of log lines. Off, all of it costs next to nothing.

The only importer of opentelemetry, and only once tracing is on: it costs 12 MB and 200 ms.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self

from libs.common.logs import context_field, log_fields, note, notes, setup_logging

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Tracer

__all__ = [
    "Attribute",
    "Span",
    "SpanKind",
    "annotate",
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

_QUEUE_SPANS: Final = 4096  # what does not fit is dropped: spans never wait, and never pile up
_BATCH_SPANS: Final = 512
_EXPORT_EVERY_MILLISECONDS: Final = 2000
_EXPORT_TIMEOUT_SECONDS: Final = 5.0
_EXPORT_ERROR_EVERY_SECONDS: Final = 60.0


class Span(Protocol):
    """The part of a span that callers use."""

    def set(self, attributes: Mapping[str, Attribute], /) -> None:
        """Add attributes."""


class _NoSpan:
    """What `span` gives while tracing is off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def set(self, attributes: Mapping[str, Attribute], /) -> None:
        """Nothing listens."""


_NO_SPAN: Final = _NoSpan()
_tracing: "_Tracing | None" = None


def setup_tracing(service: str, endpoint: str | None) -> None:
    """Export spans to that OTLP/HTTP endpoint (`http://host:4318`) from now on; None or "" = off."""
    global _tracing  # noqa: PLW0603 - one exporter per process, set once at its start
    _tracing = _Tracing(service, endpoint) if endpoint else None


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
    """Time what happens inside; an exception marks the span and passes through.

    `parent_headers` are those of the message that caused it (W3C traceparent), `links` those of others
    that it also answers; without parent headers the span around it is the parent.
    """
    if _tracing is None:
        return _NO_SPAN
    return _tracing.span(name, kind, parent_headers, links, attributes or {})


def outgoing_headers() -> dict[str, str]:
    """W3C trace context of the present span, for the headers of a message; empty while tracing is off."""
    return {} if _tracing is None else _tracing.outgoing_headers()


def annotate(**fields: Attribute) -> None:
    """Say more about the event being handled: in its one log line, and on the present span."""
    note(**fields)
    if _tracing is not None:
        _tracing.annotate(fields)


def record(name: str, *, seconds: float, attributes: Mapping[str, Attribute]) -> None:
    """A call to somebody else that has just ended, as a span within the present one; without one, nothing."""
    if _tracing is not None:
        _tracing.record(name, seconds, attributes)


async def flush(deadline_seconds: float) -> None:
    """Export what is still queued, for at most so long; never blocks the loop or raises for a collector."""
    if _tracing is not None:
        await _tracing.flush(deadline_seconds)


class _RecordingSpan:
    def __init__(self, set_attribute: Callable[[str, Attribute], None]) -> None:
        self._set = set_attribute

    def set(self, attributes: Mapping[str, Attribute], /) -> None:
        for key, value in attributes.items():
            self._set(key, value)


class _Tracing:
    """One batch processor with its own thread; a provider, hence a service.name, per service."""

    def __init__(self, service: str, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        exporter = OTLPSpanExporter(
            endpoint=endpoint if endpoint.endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces",
            timeout=_EXPORT_TIMEOUT_SECONDS,
        )
        self._processor = BatchSpanProcessor(
            exporter,
            max_queue_size=_QUEUE_SPANS,
            max_export_batch_size=_BATCH_SPANS,
            schedule_delay_millis=_EXPORT_EVERY_MILLISECONDS,
        )
        self._service = service
        self._tracers: dict[str, Tracer] = {}
        _quieten_exporter()

    @contextmanager
    def span(
        self,
        name: str,
        kind: SpanKind,
        parent_headers: Mapping[str, str] | None,
        links: Sequence[Mapping[str, str]],
        attributes: Mapping[str, Attribute],
    ) -> Iterator[Span]:
        from opentelemetry.trace import Link, SpanKind, get_current_span  # noqa: PLC0415

        linked = [get_current_span(_extracted(headers)).get_span_context() for headers in links]
        with self._tracer().start_as_current_span(
            name,
            context=_extracted(parent_headers) if parent_headers else None,
            kind=SpanKind[kind.upper()],
            links=[Link(context) for context in linked if context.is_valid],
            attributes=attributes,
        ) as recorded:
            yield _RecordingSpan(recorded.set_attribute)

    def outgoing_headers(self) -> dict[str, str]:
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        return headers

    def annotate(self, attributes: Mapping[str, Attribute]) -> None:
        from opentelemetry.trace import get_current_span  # noqa: PLC0415

        present = get_current_span()
        for key, value in attributes.items():
            present.set_attribute(f"talosccm.{key}", value)

    def record(self, name: str, seconds: float, attributes: Mapping[str, Attribute]) -> None:
        from opentelemetry.trace import SpanKind, get_current_span  # noqa: PLC0415

        if not get_current_span().is_recording():
            return  # a list or a Lease's renewal belongs to no node's journey
        now = time.time_ns()
        began = now - int(seconds * 1e9)
        self._tracer().start_span(name, kind=SpanKind.CLIENT, attributes=attributes, start_time=began).end(
            now
        )

    async def flush(self, deadline_seconds: float) -> None:
        # Not asyncio.to_thread: leaving the loop would wait for a thread that waits for a dead collector.
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def export() -> None:
            self._processor.force_flush(int(deadline_seconds * 1000))
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=export, name="span-flush", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), deadline_seconds)
        except TimeoutError:
            logging.getLogger(__name__).warning(
                "the last spans could not be exported in time", extra={"seconds": deadline_seconds}
            )

    def _tracer(self) -> "Tracer":
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        service = str(context_field("service") or self._service)
        if service not in self._tracers:
            provider = TracerProvider(
                resource=Resource.create({"service.namespace": "talos-ccm", "service.name": service}),
                shutdown_on_exit=False,  # its atexit hook waits for the collector; flush() is bounded
            )
            provider.add_span_processor(self._processor)
            self._tracers[service] = provider.get_tracer("talos-ccm")
        return self._tracers[service]


def _extracted(headers: Mapping[str, str] | None) -> "Context":
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator().extract(dict(headers or {}))


def _quieten_exporter() -> None:
    """Let the exporter complain once a minute: a dead collector is no news every two seconds."""
    last: dict[str, float] = {}

    def seldom(record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - last.get(record.name, float("-inf")) < _EXPORT_ERROR_EVERY_SECONDS:
            return False
        last[record.name] = now
        return True

    for name in ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace.export"):
        logging.getLogger(name).addFilter(seldom)
