"""Records and exports spans. Only this module imports opentelemetry; it is loaded only for tracing."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Tracer, format_trace_id, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from requests import Session

from libs.common.observability.telemetry import Attribute, context_field
from libs.common.requests_session import TlsAdapter

log = logging.getLogger(__name__)

_QUEUE_SPANS: Final = 4096  # further spans are dropped, so that spans never block or accumulate
_BATCH_SPANS: Final = 512
_EXPORT_EVERY_MILLISECONDS: Final = 2000
_EXPORT_TIMEOUT_SECONDS: Final = 5.0
_COMPLAINT_EVERY_SECONDS: Final = 60.0
_EXPORT_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk.trace.export",
)
_CONTEXT: Final = TraceContextTextMapPropagator()


def make_session() -> Session:
    """Return a session for OTLPSpanExporter."""
    session = Session()
    session.mount("https://", TlsAdapter())
    return session


class Tracing:
    """One batch processor with its own thread, and one provider with a service.name per service."""

    def __init__(self, service: str, endpoint: str) -> None:
        """`endpoint` may lack /v1/traces; `service` is the default if the context has none."""
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint if endpoint.endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces",
            timeout=_EXPORT_TIMEOUT_SECONDS,
            session=make_session(),
        )
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=_QUEUE_SPANS,
            max_export_batch_size=_BATCH_SPANS,
            schedule_delay_millis=_EXPORT_EVERY_MILLISECONDS,
        )
        self._service = service
        self._tracers: dict[str, Tracer] = {}
        _complain_seldom()

    @contextmanager
    def span(
        self,
        name: str,
        kind: str,
        parent_headers: Mapping[str, str] | None,
        links: Sequence[Mapping[str, str]],
        attributes: Mapping[str, Attribute],
    ) -> Iterator[Span]:
        """See `telemetry.span`."""
        linked = [get_current_span(_extracted(headers)).get_span_context() for headers in links]
        with self._tracer().start_as_current_span(
            name,
            context=_extracted(parent_headers) if parent_headers else None,
            kind=SpanKind[kind.upper()],
            links=[Link(context) for context in linked if context.is_valid],
            attributes=attributes,
        ) as recorded:
            yield recorded

    def outgoing_headers(self) -> dict[str, str]:
        """See `telemetry.outgoing_headers`."""
        headers: dict[str, str] = {}
        _CONTEXT.inject(headers)
        return headers

    def exemplar(self) -> dict[str, str] | None:
        """See `telemetry.exemplar`."""
        context = get_current_span().get_span_context()
        sampled = context.is_valid and context.trace_flags.sampled
        return {"trace_id": format_trace_id(context.trace_id)} if sampled else None

    def annotate(self, attributes: Mapping[str, Attribute]) -> None:
        """See `telemetry.annotate`."""
        get_current_span().set_attributes({f"talosccm.{key}": value for key, value in attributes.items()})

    def record(self, name: str, seconds: float, attributes: Mapping[str, Attribute]) -> None:
        """See `telemetry.record`."""
        if not get_current_span().is_recording():
            return  # a list or the renewal of a Lease belongs to no trace
        now = time.time_ns()
        began = now - int(seconds * 1e9)
        span = self._tracer().start_span(name, kind=SpanKind.CLIENT, attributes=attributes, start_time=began)
        span.end(now)

    async def flush(self, deadline_seconds: float) -> None:
        """See `telemetry.flush`."""
        # Not asyncio.to_thread: closing the loop would wait for a thread that may wait for a dead collector.
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
            log.warning("export of last spans timed out", extra={"seconds": deadline_seconds})

    def close(self) -> None:
        """Stop exporting at once, without waiting for a collector that may hang."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends its retries
        threading.Thread(target=self._processor.shutdown, name="span-end", daemon=True).start()

    def _tracer(self) -> Tracer:
        service = str(context_field("service") or self._service)
        if service not in self._tracers:
            provider = TracerProvider(
                resource=Resource.create({"service.namespace": "talos-ccm", "service.name": service}),
                shutdown_on_exit=False,  # its atexit hook waits for the collector; flush() is bounded
            )
            provider.add_span_processor(self._processor)
            self._tracers[service] = provider.get_tracer("talos-ccm")
        return self._tracers[service]


def _extracted(headers: Mapping[str, str]) -> Context:
    return _CONTEXT.extract(dict(headers))


def _complain_seldom() -> None:
    """Limit log lines of the exporter to one per minute, because a collector may be down for long."""
    last: dict[str, float] = {}

    def seldom(record: logging.LogRecord) -> bool:
        now = time.monotonic()
        if now - last.get(record.name, float("-inf")) < _COMPLAINT_EVERY_SECONDS:
            return False
        last[record.name] = now
        return True

    for name in _EXPORT_LOGGERS:
        logging.getLogger(name).addFilter(seldom)
