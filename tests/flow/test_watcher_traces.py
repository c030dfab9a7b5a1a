"""What the watcher says again is a trace of its own, linked to the one before."""

from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan

from libs.common import telemetry
from libs.common.memory_bus.bus import MemoryBus, MemoryServer
from tests.builders import a_node
from tests.bus_actors import doing, eventually
from tests.collector import Collector, a_collector, attributes_of, tracing_to
from tests.watcher_actors import Flow, ScriptedNodes, a_watcher


def watch_events(collector: Collector) -> list[ExportedSpan]:
    found = [span for span in collector.all if span.name == "watch event"]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


async def test_a_resync_begins_a_trace_and_names_the_one_in_which_the_node_was_said_before():
    bus, flow = MemoryBus(MemoryServer()), Flow()
    async with a_collector() as collector:
        with tracing_to(collector.url):
            watcher = a_watcher(bus, ScriptedNodes(a_node("web-1")).source, resync_seconds=1.0)
            async with flow.following(bus), doing(watcher.run()):
                await eventually(lambda: len(flow.of("web-1")) >= 3, "said again, twice")
            await telemetry.flush(5)
        first, second, third = watch_events(collector)[:3]
        assert attributes_of(first)["talosccm.reason"] == "new to the stream"
        assert attributes_of(second)["talosccm.reason"] == "said again"
        assert len({span.trace_id for span in (first, second, third)}) == 3
        assert not first.links
        assert [link.trace_id for link in second.links] == [first.trace_id]
        assert [link.trace_id for link in third.links] == [second.trace_id]
        headers = {
            message.headers["traceparent"].split("-")[1]
            for message in flow.messages
            if "node" in message.subject
        }
        assert headers <= {span.trace_id.hex() for span in collector.all}
