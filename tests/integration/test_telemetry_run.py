"""What our processes tell of a run: traces, metrics and log lines of a fleet that joins, over real NATS."""

import json
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ExportedSpan

from libs.common.contract.services import SERVICES
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from tests.bus_actors import wait_until
from tests.integration.service_cluster import open_simulated
from tests.tcp_server import OtlpCollector, get_attributes, run_collector

FIRST = "journey-1.example.com"
FLEET = 60
MOST_SERIES = 1500  # per process, for any number of Nodes
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
CLUSTER_CIDR, SERVICE_CIDR = "10.96.0.0/12", "10.64.0.0/16"
OBSERVED_NODE, ENRICHED_NODE = "talosccm.v1.flow.observed.node", "talosccm.v1.flow.enriched.node"
OBSERVED_CSR, ENRICHED_CSR = "talosccm.v1.flow.observed.csr", "talosccm.v1.flow.enriched.csr"


class TelemetryRun(NamedTuple):
    """The telemetry of the run."""

    collector: OtlpCollector
    csr: str
    pages: dict[str, str]  # by service, in OpenMetrics
    lines: dict[str, list[dict[str, Any]]]  # by service

    def journey(self, root: str, **attributes: str) -> list[ExportedSpan]:
        """The first trace that begins with such a span about that object, in the order of beginning."""
        return journey(self.collector, root, **attributes)


def journey(collector: OtlpCollector, root: str, **attributes: str) -> list[ExportedSpan]:
    wanted = {key.replace("_", "."): value for key, value in attributes.items()}
    begun = [
        span
        for span in collector.all
        if span.name == root and not span.parent_span_id and wanted.items() <= get_attributes(span).items()
    ]
    if not begun:
        return []
    first = min(begun, key=lambda span: span.start_time_unix_nano)
    found = [span for span in collector.all if span.trace_id == first.trace_id]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


@pytest.fixture(scope="module")
async def told(
    tmp_path_factory: pytest.TempPathFactory, machines: MachineFleet
) -> AsyncIterator[TelemetryRun]:
    """One Node with its certificate, then a fleet, then a machine that falls silent: all six services."""
    run_dir = tmp_path_factory.mktemp("telemetry")
    first, *fleet = (
        make_machine(name, f"10.230.{n // 250}.{n % 250 + 1}", platform="metal")
        for n, name in enumerate([FIRST, *(f"fleet-{n:03}.example.com" for n in range(FLEET))])
    )
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        nats = await enter(NatsServer.start(run_dir / "nats"))
        collector = await enter(run_collector())
        cluster = await enter(open_simulated(run_dir, machines))
        kubelets = cluster.kubelets
        services = await cluster.serve(
            nats_url=nats.url,
            wirings=SERVICES,
            flags=["--logging-format=json", "--v=4"],
            own_flags={
                "ipam": [f"--cluster-cidr={CLUSTER_CIDR}", f"--service-cluster-ip-range={SERVICE_CIDR}"]
            },
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url},
        )
        await machines.put_machines(first)
        await kubelets.join(SimKubelet.of_machine(first))
        csr = await kubelets.request_certificate(SimKubelet.of_machine(first))
        await kubelets.wait_for_outcome(csr)
        await cluster.wait_until_initialized(1)
        await cluster.join(*fleet)
        await cluster.wait_until_initialized(1 + FLEET)
        await machines.delete_machines(first.id)
        await wait_until(lambda: is_kept(services), "lifecycle has looked at it")
        await wait_until(lambda: is_exported(collector, csr), "both journeys are exported")
        await wait_until(lambda: counts_the_fleet(services), "the watcher has counted all Nodes")
        pages = {name: await open_metrics(port) for name, port in services.ports.items()}
        yield TelemetryRun(
            collector, csr, pages, {name: lines_of(services, name) for name in services.children}
        )


async def open_metrics(port: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept": OPEN_METRICS}) as answer,
    ):
        return await answer.text()


def is_kept(services: ServiceProcesses) -> bool:
    lines = lines_of(services, "lifecycle")
    return any((line["node"], line["event"]) == (FIRST, "NodeUnreachable") for line in lines)


async def counts_the_fleet(services: ServiceProcesses) -> bool:
    page = await services.fetch_page("watcher", "/metrics")
    return f'talosccm_nodes{{state="usable"}} {FLEET + 1}.0' in page


def lines_of(services: ServiceProcesses, name: str) -> list[dict[str, Any]]:
    """Of handled events."""
    complete = [text for text in services.children[name].log.read_text().splitlines(True) if text[-1] == "\n"]
    lines = (json.loads(text) for text in complete if text.startswith("{"))
    return [line for line in lines if "event" in line]


def is_exported(collector: OtlpCollector, csr: str) -> bool:
    """Whether both journeys are there with their ends: a parent ends, and is exported, after its children."""
    of_node = journey(collector, "watch event", k8s_node_name=FIRST)
    of_csr = journey(collector, "watch event", k8s_csr_name=csr)
    is_whole = all(
        {span.parent_span_id for span in spans} <= {b"", *(span.span_id for span in spans)}
        for spans in (of_node, of_csr)
    )
    has_ended = list_processing(collector, of_node) == {"labeler", "ipam"}
    return is_whole and has_ended and "patch certificatesigningrequests/approval" in names(of_csr)


def list_processing(collector: OtlpCollector, spans: Iterable[ExportedSpan]) -> set[str]:
    """The services that processed a message of these spans."""
    return {collector.service_of[span.span_id] for span in spans if span.name.startswith("process")}


def names(spans: Iterable[ExportedSpan]) -> list[str]:
    return [span.name for span in spans]


def path_to(span: ExportedSpan, spans: list[ExportedSpan]) -> list[str]:
    """The names from the root down to it."""
    by_id = {each.span_id: each for each in spans}
    path = [span.name]
    while span.parent_span_id:
        span = by_id[span.parent_span_id]
        path.insert(0, span.name)
    return path


# ---- traces


def test_a_node_s_journey_is_one_trace_over_each_hop_to_the_removed_taint(told: TelemetryRun):
    spans = told.journey("watch event", k8s_node_name=FIRST)
    hops = ["watch event", f"send {OBSERVED_NODE}", f"send {ENRICHED_NODE}", f"process {ENRICHED_NODE}"]
    (initialized,) = (s for s in spans if get_attributes(s).get("talosccm.outcome") == "initialized")
    patches = [s for s in spans if s.name == "patch nodes" and s.parent_span_id == initialized.span_id]
    assert path_to(patches[-1], spans) == [*hops, "patch nodes"]
    look = next(span for span in spans if span.name == "look at machine")
    assert path_to(look, spans) == [*hops[:2], "look at machine"]
    by = {span.name: told.collector.service_of[span.span_id] for span in spans}
    assert [by[name] for name in hops[:3]] == ["watcher", "watcher", "metadata"]
    assert told.collector.service_of[initialized.span_id] == "labeler"
    assert list_processing(told.collector, spans) == {"labeler", "ipam"}


def test_a_request_s_journey_is_one_trace_to_the_approval(told: TelemetryRun):
    spans = told.journey("watch event", k8s_csr_name=told.csr)
    (approval,) = (s for s in spans if s.name == "patch certificatesigningrequests/approval")
    assert path_to(approval, spans) == [
        "watch event",
        f"send {OBSERVED_CSR}",
        f"send {ENRICHED_CSR}",
        f"process {ENRICHED_CSR}",
        "patch certificatesigningrequests/approval",
    ]
    assert told.collector.service_of[approval.span_id] == "csr"
    assert get_attributes(approval)["http.response.status_code"] == 200


def test_spans_of_messages_say_what_the_conventions_want(told: TelemetryRun):
    spans = {span.name: span for span in told.journey("watch event", k8s_node_name=FIRST)}
    sent, processed = spans[f"send {OBSERVED_NODE}"], spans[f"process {ENRICHED_NODE}"]
    assert (sent.kind, processed.kind) == (ExportedSpan.SPAN_KIND_PRODUCER, ExportedSpan.SPAN_KIND_CONSUMER)
    said = get_attributes(sent)
    assert (
        said.items()
        >= {
            "messaging.system": "nats",
            "messaging.operation.type": "send",
            "messaging.operation.name": "publish",
            "messaging.destination.name": f"{OBSERVED_NODE}.{FIRST}",
            "messaging.destination.template": OBSERVED_NODE,
            "k8s.node.name": FIRST,
        }.items()
    )
    assert int(said["messaging.message.body.size"]) > 100
    assert said["talosccm.stream.seq"]
    assert said["talosccm.event.resource_version"]
    done = get_attributes(processed)
    assert (
        done.items()
        >= {
            "messaging.operation.type": "process",
            "messaging.destination.template": ENRICHED_NODE,
            "k8s.node.uid": said["k8s.node.uid"],
            "talosccm.delivery.attempt": 1,
        }.items()
    )
    assert [link.span_id for link in processed.links] == [processed.parent_span_id]


# ---- metrics; tests/observe has the traces that buckets name


def test_a_fleet_does_not_become_a_fleet_of_series(told: TelemetryRun):
    for service, page in told.pages.items():
        series = [line.partition(" # ")[0] for line in page.splitlines() if not line.startswith("#")]
        assert len(series) < MOST_SERIES, service
        values = {value for line in series for value in re.findall(r'="((?:[^"\\]|\\.)*)"', line)}
        assert not [value for value in values if "example.com" in value or told.csr in value], service
        assert not [value for value in values if re.search(r"\d+\.\d+\.\d+\.\d+", value)] or service == "ipam"
        assert not [value for value in values if re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", value)], service


# ---- log lines


@pytest.mark.parametrize(
    ("service", "event", "outcome", "of"),
    [
        ("watcher", "NodeObserved", "published", "node"),
        ("watcher", "CsrObserved", "published", "csr"),
        ("metadata", "NodeEnriched", "published", "node"),
        ("metadata", "CsrEnriched", "published", "csr"),
        ("labeler", "NodeEnriched", "initialized", "node"),
        ("csr", "CsrEnriched", "approved", "csr"),
        ("ipam", "NodeEnriched", "allocated", "node"),
        ("lifecycle", "NodeUnreachable", "kept", "node"),
    ],
)
def test_a_line_says_what_was_handled_what_came_of_it_and_how_long_it_took(
    told: TelemetryRun, service: str, event: str, outcome: str, of: str
):
    name = {"node": FIRST, "csr": told.csr}[of]
    lines = [
        line
        for line in told.lines[service]
        if (line["event"], line.get("outcome"), line.get(of)) == (event, outcome, name)
    ]
    assert lines
    for line in lines:
        assert line["service"] == service
        assert line["attempt"] >= 1
        assert line["seconds"] >= 0
        assert line["reason"]
