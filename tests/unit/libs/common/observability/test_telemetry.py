"""Spans and log lines: nothing when off, one trace per journey when on, and never in the way of the work."""

import asyncio
import io
import json
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import Message
from libs.common.observability import telemetry
from libs.common.observability.telemetry import (
    JsonFormatter,
    TextFormatter,
    level_of_verbosity,
    setup_logging,
)
from libs.testbed.child_process import HANG_SECONDS
from tests.builders import make_message, make_node, make_node_observed
from tests.service_flow import make_dependencies
from tests.tcp_server import OtlpCollector, export_traces_to, run_collector

EXPORTER_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace.export")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The root logger, as it was, afterwards."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield logging.getLogger("libs.test")
    root.handlers[:], root.level = before
    logging.captureWarnings(False)


# ---- off


def test_off_means_that_opentelemetry_is_not_even_loaded():
    script = (
        "import sys\nfrom libs.common.bus import consumer_middleware\n"
        "from libs.common.observability import telemetry\n"
        "from libs.common import service\n"
        "with telemetry.span('x', attributes={'a': 1}) as span: span.set_attributes({'b': 2})\n"
        "telemetry.annotate(outcome='x'); assert telemetry.outgoing_headers() == {}\n"
        "telemetry.setup_tracing('labeler', ''); assert not telemetry.tracing_is_on()\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'requests'))])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    assert ran.stdout.strip() == "[]"


# ---- on


@asynccontextmanager
async def exported_traces() -> AsyncIterator[OtlpCollector]:
    """A collector that has every span of the block at its end."""
    async with run_collector() as collector:
        with export_traces_to(collector.url):
            yield collector
            await telemetry.flush(5)


async def test_a_journey_is_one_trace_across_messages_and_services():
    async with exported_traces() as collector:
        with telemetry.log_fields(service="watcher"), telemetry.span("send", kind="producer"):
            headers = telemetry.outgoing_headers()
        with (
            telemetry.log_fields(service="labeler"),
            telemetry.span("process", kind="consumer", parent_headers=headers) as span,
            telemetry.span("patch node", kind="client"),
        ):
            span.set_attributes({"k8s.node.name": "web-1"})
    assert list(headers) == ["traceparent"]
    sent, processed, patched = (collector.spans[name] for name in ("send", "process", "patch node"))
    assert sent.trace_id == processed.trace_id == patched.trace_id
    assert (processed.parent_span_id, patched.parent_span_id) == (sent.span_id, processed.span_id)
    assert [sent.kind, processed.kind, patched.kind] == [
        ExportedSpan.SPAN_KIND_PRODUCER,
        ExportedSpan.SPAN_KIND_CONSUMER,
        ExportedSpan.SPAN_KIND_CLIENT,
    ]
    assert collector.services == {"send": "watcher", "process": "labeler", "patch node": "labeler"}
    assert [pair.value.string_value for pair in processed.attributes if pair.key == "k8s.node.name"] == [
        "web-1"
    ]


async def test_the_span_of_a_handled_message_says_what_carried_it_and_continues_its_trace():
    async def handle(message: Message) -> None:
        telemetry.annotate(outcome="initialized")

    handling = ConsumerMiddleware("labeler", "node", make_dependencies(MemoryBus(MemoryServer())))
    async with exported_traces() as collector:
        with telemetry.span("send", kind="producer"):
            headers = telemetry.outgoing_headers()
        await handling.wrap(handle)(make_message(make_node_observed(make_node("web-1")), headers=headers))
    processed = collector.spans["process talosccm.v1.flow.observed.node"]
    recorded = {pair.key: pair.value.string_value for pair in processed.attributes}
    assert processed.parent_span_id == collector.spans["send"].span_id
    assert (recorded["messaging.system"], recorded["k8s.node.name"]) == ("memory", "web-1")
    assert recorded["talosccm.outcome"] == "initialized"


async def test_an_error_marks_its_span_and_a_resync_links_to_the_earlier_trace():
    async with exported_traces() as collector:
        with telemetry.span("earlier"):
            headers = telemetry.outgoing_headers()
        with pytest.raises(ZeroDivisionError):
            _resync_that_fails(headers)
    earlier, resync = collector.spans["earlier"], collector.spans["resync"]
    assert resync.trace_id != earlier.trace_id
    assert [link.span_id for link in resync.links] == [earlier.span_id]
    assert resync.status.code == resync.status.STATUS_CODE_ERROR
    assert "talosccm.outcome" in [pair.key for pair in resync.attributes]


def _resync_that_fails(earlier: dict[str, str]) -> None:
    with telemetry.span("resync", links=[earlier, {"traceparent": "x"}]):
        telemetry.annotate(outcome="blocked")
        raise ZeroDivisionError


async def test_a_call_that_has_ended_belongs_to_the_span_around_it_and_to_nothing_else():
    async with exported_traces() as collector:
        telemetry.record("list nodes", seconds=0.1, attributes={})
        with telemetry.span("process"):
            telemetry.record("patch nodes", seconds=0.5, attributes={"http.response.status_code": 200})
    patched = collector.spans["patch nodes"]
    assert patched.parent_span_id == collector.spans["process"].span_id
    assert patched.end_time_unix_nano - patched.start_time_unix_nano == 500_000_000
    assert "list nodes" not in collector.spans


@pytest.mark.parametrize(
    "headers", [{}, {"traceparent": ""}, {"traceparent": "00-zz-1-1"}, {"Traceparent": "x"}]
)
async def test_headers_that_are_no_trace_context_begin_a_trace_of_their_own(headers: dict[str, str]):
    async with exported_traces() as collector:
        with telemetry.span("process", parent_headers=headers):
            pass
    assert not collector.spans["process"].parent_span_id


async def test_the_usual_variables_say_how_much_is_traced_by_whom_and_with_which_headers(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.cluster.name=prod,service.name=other")
    async with exported_traces() as collector:
        with telemetry.log_fields(service="labeler"), telemetry.span("work"):
            assert telemetry.exemplar() is not None
    assert [headers["authorization"] for headers in collector.headers] == ["Basic abc"]
    (resource,) = collector.resources
    assert resource["k8s.cluster.name"] == "prod"
    assert (resource["service.name"], resource["service.namespace"]) == ("labeler", "talos-ccm")


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_SAMPLER", "always_off"), ("OTEL_SDK_DISABLED", "true")]
)
async def test_what_is_not_sampled_is_neither_exported_nor_an_exemplar(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
):
    monkeypatch.setenv(variable, value)
    async with exported_traces() as collector:
        with telemetry.span("work"):
            assert telemetry.exemplar() is None
        telemetry.annotate(outcome="x")
    assert collector.all == []


async def test_a_collector_that_swallows_everything_neither_stalls_the_loop_nor_the_end():
    """It accepts connections and never answers."""
    slowest = 0.0
    black_hole = socket.create_server(("127.0.0.1", 0))
    # It closes first: the exporter then need not wait out its timeout.
    with export_traces_to(f"http://127.0.0.1:{black_hole.getsockname()[1]}"), black_hole:
        for _ in range(20):  # far more than the queue holds
            began = time.perf_counter()
            for _ in range(500):
                with telemetry.span("work", attributes={"k8s.node.name": "web-1"}):
                    pass
            await asyncio.sleep(0)
            slowest = max(slowest, time.perf_counter() - began)
        began = time.perf_counter()
        await telemetry.flush(0.3)
        assert time.perf_counter() - began < 4.0, "not the exporter's timeout, which is 5 s"
    assert slowest < 4.0, "a span must never wait for the collector, which would hold it for 5 s"


async def test_a_collector_that_is_not_there_complains_seldom(logger: logging.Logger):
    stream = io.StringIO()
    setup_logging(log_format="json", level=logging.INFO, stream=stream)
    for name in EXPORTER_LOGGERS:
        logging.getLogger(name).filters.clear()  # those of earlier tests, which have just let one pass
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with export_traces_to(f"http://127.0.0.1:{port}"):
        for _ in range(3):
            with telemetry.span("work"):
                pass
            await telemetry.flush(0.2)
    complaints = [
        line for line in stream.getvalue().splitlines() if "opentelemetry" in json.loads(line)["logger"]
    ]
    assert 1 <= len(complaints) <= 2


# ---- log lines


def a_line(logger: logging.Logger, formatter: logging.Formatter, **extra: object) -> str:
    stream = io.StringIO()
    setup_logging(log_format="json", level=logging.INFO, stream=stream)
    logging.getLogger().handlers[0].setFormatter(formatter)
    logger.warning("not handled", extra=extra)
    return stream.getvalue()


async def test_fields_of_the_context_reach_every_line_across_tasks(logger: logging.Logger):
    stream = io.StringIO()
    setup_logging(log_format="json", level=logging.INFO, stream=stream)

    async def work() -> None:
        await asyncio.sleep(0)
        logger.info("inside", extra={"attempt": 2})

    with telemetry.log_fields(service="labeler", attempt=1), telemetry.log_fields(node="web-1"):
        await asyncio.create_task(work())
    logger.info("outside")
    inside, outside = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (inside["service"], inside["node"], inside["attempt"]) == ("labeler", "web-1", 2)
    assert set(outside) == {"time", "level", "logger", "message"}


def test_a_json_line_is_one_line_whatever_it_holds(logger: logging.Logger):
    line = a_line(logger, JsonFormatter(), error=ValueError("a\nb"), text='"\n', at=socket.AF_INET)
    assert line.count("\n") == 1
    decoded = msgspec.json.decode(line)
    assert decoded["message"] == "not handled"
    assert decoded["error"] == "a\nb"
    assert decoded["time"].endswith("Z")


def test_a_text_line_quotes_what_would_be_ambiguous(logger: logging.Logger):
    with telemetry.log_fields(service="labeler"):
        line = a_line(logger, TextFormatter(), node="web-1", error='two words\n"x"', empty="")
    assert line.endswith('warning labeler  not handled  node=web-1 error="two words\\n\\"x\\"" empty=""\n')


def test_what_others_wrote_can_neither_move_a_terminal_nor_forge_a_line(logger: logging.Logger):
    hostile = "\x1b[2J\x9b31m\u202e\n12:00:00.000 info     labeler  forged"
    stream = io.StringIO()
    setup_logging(log_format="text", level=logging.INFO, stream=stream)
    logger.error("unforeseen: %s", hostile, extra={"reason": hostile}, exc_info=ValueError(hostile))
    logger.info("plain", extra={"reason": "Größe"})
    text = stream.getvalue()
    assert not set(text) & {"\x1b", "\x9b", "\u202e"}
    first, *trace, last = text.splitlines()
    assert first.count("forged") == 2
    assert all(line.startswith("    ") for line in trace)
    assert last.endswith("plain  reason=Größe")


def test_klog_verbosity_becomes_a_level():
    assert [level_of_verbosity(v) for v in (0, 2, 3, 10)] == [20, 20, 10, 10]
