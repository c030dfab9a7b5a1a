"""Node journey: the traces of one node step by step, and the state of all nodes."""

from __future__ import annotations

from typing import Any, Final

from tools.dashboards import panels
from tools.dashboards.declaration import load_board
from tools.dashboards.variables import make_source_variable, make_tempo_variable, make_text_variable

OVERVIEW: Final = load_board("overview")
_DELAY: Final = "node_controller_cloud_provider_taint_removal_delay_seconds"
_JOINED: Final = f"sum(increase({_DELAY}_count[$__range]))"
_UNTIL_USABLE: Final = next(  # of both dashboards
    panel for panel in OVERVIEW.panels if panel.queries and _DELAY in panel.queries[0].expr
)
_TRACES: Final = "traces"  # the variable with the Tempo or Jaeger data source
_OF_NODE: Final = 'resource.service.namespace = "talos-ccm" && span.k8s.node.name = "$node"'
_OFF: Final = (
    "tracing is off (OTEL_EXPORTER_OTLP_ENDPOINT), or the node had no event in the selected time range."
)
_COLUMN_OF_TRACE: Final = "/^(traceID|Trace ID)$/"


def _build_tempo_search(query: str, rows: int) -> dict[str, Any]:
    return {
        "queryType": "traceql",
        "query": query,
        "filters": [],  # for the search form, an alternative to the query
        "limit": rows,
        "spss": 20,
        "tableType": "traces",
    }


def _make_trace_panel(plugin: str, target: dict[str, Any], **fields: Any) -> panels.Panel:
    return panels.Panel(targets=(target,), source=_TRACES, source_type=plugin, **fields)


def _build_journey_panels(plugin: str, uid: str, target: dict[str, Any]) -> tuple[panels.Panel, ...]:
    address = f"/d/{uid}?var-node=${{node}}&var-trace=${{__value.raw}}&${{__url_time_range}}"
    return (
        _make_trace_panel(
            plugin,
            target,
            kind="table",
            title="Traces of $node",
            good="short traces; the last one ends at the labeler. Click a trace ID to show it below.",
            bad="long traces, or none after the node joined.",
            links={_COLUMN_OF_TRACE: ("Show below", address)},
            silent_because=_OFF,
            height=7,
            width=24 if plugin == "jaeger" else 14,
        ),
    )


def _build_waterfall(plugin: str, target: dict[str, Any]) -> panels.Panel:
    return _make_trace_panel(
        plugin,
        target,
        kind="traces",
        title="Selected trace",
        good="watch event, look at machine, process and the requests to Kubernetes, without gaps.",
        bad="a gap: the message waited. Red: the step failed; `error.type` has the cause.",
        silent_because="no trace is selected: click one above.",
        width=24,
        height=12,
    )


def _build_problem_panel() -> panels.Panel:
    failed = f"{{ {_OF_NODE} && (status = error || span.error.type != nil) }}"
    return _make_trace_panel(
        "tempo",
        _build_tempo_search(failed, 20),
        kind="table",
        title="Failed attempts",
        good="an empty table.",
        bad="rows: failed attempts, which the service retries or publishes as dead letters.",
        silent_because="nothing failed.",
        height=7,
        width=10,
    )


_HOP: Final = "talosccm_hop_latency_seconds"
_JOURNEY: Final = "talosccm_journey_seconds"

_ALL_NODES: Final = (
    panels.make_stat(
        "Blocked nodes",
        "max(talosccm_blocked_nodes)",
        good="0.",
        bad="above 0: each node has a condition with the reason; see also `talos-ccm explain node NAME`.",
        steps=((1, panels.RED),),
        alerts=("TalosCCMNodeUninitializedTooLong",),
        width=8,
    ),
    panels.make_stat(
        "Nodes that became usable",
        _JOINED,
        good="as many as joined in the selected time range.",
        bad="fewer.",
        steps=panels.NEUTRAL,
        decimals=0,
        width=8,
    ),
    panels.make_stat(
        "Writes per joined node",
        f"sum(increase(talosccm_node_writes_total[$__range])) / ({_JOINED} > 0)",
        good="a handful: two of the Node, its Event, its certificate, its pod CIDRs.",
        bad="tens while nodes join: another controller reverts writes. Meaningless without joins.",
        steps=((10, panels.ORANGE), (30, panels.RED)),
        decimals=1,
        silent_because="no node became usable in the selected time range.",
        width=8,
    ),
    _UNTIL_USABLE,
    panels.make_time_series(
        "Message age at each hop (p50)",
        panels.build_quantile(0.5, _HOP, "{{service}} {{event}}", "service, event"),
        good="milliseconds.",
        bad="one hop above the others: nodes wait there.",
        **panels.in_seconds(1, 10),
    ),
    panels.make_time_series(
        "End-to-end latency since the watcher's observation (p99)",
        panels.build_quantile(0.99, _JOURNEY, "{{service}} {{event}}", "service, event"),
        good="well below a second. The labeler's line covers all steps, including the query to the machine.",
        bad="minutes: services retried until missing data arrived.",
        **panels.in_seconds(10, 60),
    ),
    panels.make_time_series(
        "Writes to Kubernetes by service",
        panels.build_rate("talosccm_node_writes_total", "{{service}} {{resource}}", "service, resource"),
        good="peaks when nodes join, 0 while nothing changes.",
        bad="a plateau: two controllers overwrite the same field.",
        unit="wps",
        stacked=True,
    ),
    panels.make_time_series(
        "Failed requests to Kubernetes, and keys that rules could not set",
        panels.build_increase(
            "talosccm_kubernetes_requests_total",
            "{{verb}} {{resource}} {{status}}",
            "verb, resource, status",
            'status!~"2.."',
        ),
        panels.build_increase("talosccm_transformer_errors_total", "rules: {{type}}", "type"),
        good="no data. An occasional 409 means that another client wrote first.",
        bad="403: a right is missing. none: no answer. 422: a rule sets an invalid value.",
        decimals=0,
        silent_because="no request to Kubernetes failed, and rules set all their keys.",
    ),
)

NODE_JOURNEY: Final = panels.Board(
    name="node-journey",
    title="Node journey",
    question="What happened to one node, step by step (traces in Tempo), and how do all nodes do?",
    variables=(
        make_source_variable(_TRACES, "Traces", "tempo"),
        make_tempo_variable("node", "Node", "k8s.node.name", _TRACES),
        make_text_variable("trace", "Trace ID"),
    ),
    panels=(
        *_build_journey_panels(
            "tempo", "talosccm-node-journey", _build_tempo_search(f"{{ {_OF_NODE} }}", 50)
        ),
        _build_problem_panel(),
        _build_waterfall("tempo", _build_tempo_search("$trace", 1)),
        *_ALL_NODES,
    ),
)

NODE_JOURNEY_JAEGER: Final = panels.Board(
    name="node-journey-jaeger",
    title="Node journey (Jaeger)",
    question="What happened to one node, step by step (traces in Jaeger), and how do all nodes do?",
    variables=(
        make_source_variable(_TRACES, "Traces", "jaeger"),
        make_text_variable("node", "Node"),
        make_text_variable("trace", "Trace ID"),
    ),
    panels=(
        *_build_journey_panels(
            "jaeger",
            "talosccm-node-journey-jaeger",
            # Jaeger searches by service. The watcher's span is the root and has the node's name.
            {"queryType": "search", "service": "watcher", "tags": 'k8s.node.name="$node"', "limit": 50},
        ),
        _build_waterfall("jaeger", {"query": "$trace"}),
        *_ALL_NODES,
    ),
)
