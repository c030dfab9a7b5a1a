"""Servers on the loopback: one for any protocol, and an OTLP/HTTP collector that remembers traces."""

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan

from libs.common.observability import telemetry
from libs.testbed.loopback_site import LoopbackSite, stop_listening

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serve_tcp(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Call `serve` for each connection, and close the connection after it; gives the port.

    A server of asyncio leaves open connections behind, and Python reports them when they are collected,
    in whichever test runs then. Here the end of the block ends them, and waits for that. A client may
    leave at any time; other exceptions of `serve` are raised at the end of the block.
    """
    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client left first
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.append(asyncio.create_task(serve_and_close(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_listening(server)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
    for each in ended:
        if isinstance(each, Exception):
            raise each


class OtlpCollector:
    """Where it listens, and the spans by name, the last one of each."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: dict[str, ExportedSpan] = {}
        self.services: dict[str, str] = {}
        self.all: list[ExportedSpan] = []
        self.service_of: dict[bytes, str] = {}  # by span id
        self.resources: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []  # one per request

    async def receive(self, request: web.Request) -> web.Response:
        self.headers.append({key.lower(): value for key, value in request.headers.items()})
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            self.resources.append(named)
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.all.append(span)
                self.spans[span.name] = span
                self.services[span.name] = named["service.name"]
                self.service_of[span.span_id] = named["service.name"]
        return web.Response()


def get_attributes(span: ExportedSpan) -> dict[str, str | int]:
    """What it says."""
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in span.attributes}


@asynccontextmanager
async def run_collector() -> AsyncIterator[OtlpCollector]:
    collector = OtlpCollector()
    application = web.Application()
    application.add_routes([web.post("/v1/traces", collector.receive)])
    runner = web.AppRunner(application)
    site = await LoopbackSite.start(runner, "127.0.0.1")
    collector.url = f"http://127.0.0.1:{site.port}"
    try:
        yield collector
    finally:
        await site.stop()


@contextmanager
def export_traces_to(endpoint: str) -> Iterator[None]:
    """Traces of this process go there, and nowhere at the end."""
    telemetry.setup_tracing("all-in-one", endpoint)
    try:
        yield
    finally:
        telemetry.setup_tracing("all-in-one", None)
        # An exporter that still retries draws random numbers, which hypothesis refuses in tests that follow.
        for thread in threading.enumerate():
            if thread.name.startswith("Otel"):
                thread.join(10)
                assert not thread.is_alive(), "the exporter goes on after tracing was turned off"
