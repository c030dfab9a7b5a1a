"""Names and attributes of spans: the trace dashboards and saved searches read them."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.observability import telemetry
from libs.common.service.observers import observe_kubernetes
from tests.architecture.sources import Source, sources
from tests.collector import OtlpCollector, export_traces_to, run_collector
from tests.contract.interface_snapshot import assert_unchanged
from tests.contract.observed_run import every_event, messages_of_every_event, run_handlers
from tests.contract.static_values import ModuleText, called

_ATTRIBUTE: Final = re.compile(r"(talosccm|k8s|messaging|error|http|service)(\.[a-z_]+)+")
_SPAN_ARGUMENTS: Final = {"kind", "links", "parent_headers"}


def test_names_of_spans_in_the_source_are_unchanged():
    found: set[str] = set()
    for source in sources("libs/common", "libs/talos", "services"):
        text = ModuleText(source)
        for call in text.calls:
            has_arguments = _SPAN_ARGUMENTS & {keyword.arg for keyword in call.keywords}
            if call.args and (has_arguments or called(call.func) == "span"):
                found.update(text.strings(call.args[0]))
    assert_unchanged("span_names_in_source", sorted(found - {""}))  # "" is the span of tracing that is off


def test_attributes_of_spans_in_the_source_are_unchanged():
    found: set[str] = set()
    for source in sources("libs/common", "libs/talos", "services"):
        found.update(attributes_in(source))
    assert_unchanged("span_attributes_in_source", sorted(found))


async def test_the_spans_of_messages_and_of_kubernetes_requests_are_unchanged():
    async with run_collector() as collector:
        with export_traces_to(collector.url):
            for kind in ("node", "csr"):
                await run_handlers("labeler", kind, messages_of_every_event())
            publisher = OrderedPublisher(MemoryBus(MemoryServer()))
            for event in every_event():
                with telemetry.log_fields(service="labeler"), publisher.publish_span(event):
                    telemetry.annotate(outcome="sent")
                    observe_kubernetes("patch", "nodes", 200, 0.1)
            await telemetry.flush(5)
    found = {described(span) for span in collector.all}
    assert_unchanged("spans", {"spans": sorted(found), "resource": resource_of(collector)})


def attributes_in(source: Source) -> Iterator[str]:
    """String constants that look like an attribute, and what `annotate` adds."""
    for node in source.nodes:
        match node:
            case ast.Constant(value=str(text)) if _ATTRIBUTE.fullmatch(text):
                yield text
            case ast.Call(func=function, keywords=keywords) if (
                called(function) == telemetry.annotate.__name__
            ):
                yield from (f"talosccm.{keyword.arg}" for keyword in keywords if keyword.arg)


def described(span: ExportedSpan) -> str:
    """Name, kind and attribute keys in one line."""
    kind = ExportedSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower()
    return f"{span.name} ({kind}): {' '.join(sorted(pair.key for pair in span.attributes))}"


def resource_of(collector: OtlpCollector) -> dict[str, str]:
    """What says which service a span is from."""
    (found,) = {(each["service.namespace"], each["service.name"]) for each in collector.resources}
    return dict(zip(("service.namespace", "service.name"), found, strict=True))
