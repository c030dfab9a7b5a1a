"""What the watcher says again is a trace of its own, linked to the one before."""

from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.observability import telemetry
from tests.builders import make_node
from tests.bus_actors import run_during, wait_until
from tests.collector import OtlpCollector, export_traces_to, get_attributes, run_collector
from tests.watcher_actors import ScriptedNodes, WatcherFlow, make_watcher


def watch_events(collector: OtlpCollector) -> list[ExportedSpan]:
    found = [span for span in collector.all if span.name == "watch event"]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


async def test_a_resync_begins_a_trace_and_names_the_one_in_which_the_node_was_said_before():
    bus, flow = MemoryBus(MemoryServer()), WatcherFlow()
    async with run_collector() as collector:
        with export_traces_to(collector.url):
            watcher = make_watcher(bus, ScriptedNodes(make_node("web-1")).source, resync_seconds=1.0)
            async with flow.follow(bus), run_during(watcher.run()):
                await wait_until(lambda: len(flow.list_node_events("web-1")) >= 3, "said again, twice")
            await telemetry.flush(5)
        first, second, third = watch_events(collector)[:3]
        assert get_attributes(first)["talosccm.reason"] == "new to the stream"
        assert get_attributes(second)["talosccm.reason"] == "republished"
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
