"""Node journey: the traces of one node step by step, and the state of all nodes."""

from __future__ import annotations

from typing import Any, Final

from libs.testbed.dashboards.joining import DELAY, UNTIL_USABLE
from libs.testbed.dashboards.panels import (
    NEUTRAL,
    ORANGE,
    RED,
    Board,
    Panel,
    Query,
    quantile,
    risen,
    series,
    stat,
)
from libs.testbed.dashboards.variables import source_variable, tempo_values, text_variable

_TRACES: Final = "traces"  # the variable with the Tempo or Jaeger data source
_OF_NODE: Final = 'resource.service.namespace = "talos-ccm" && span.k8s.node.name = "$node"'
_OFF: Final = (
    "tracing is off (OTEL_EXPORTER_OTLP_ENDPOINT), or the node had no event in the selected time range."
)
_COLUMN_OF_TRACE: Final = "/^(traceID|Trace ID)$/"


def _search_tempo(query: str, rows: int) -> dict[str, Any]:
    return {
        "queryType": "traceql",
        "query": query,
        "filters": [],  # for the search form, an alternative to the query
        "limit": rows,
        "spss": 20,
        "tableType": "traces",
    }


def _journeys(plugin: str, uid: str, target: dict[str, Any]) -> tuple[Panel, ...]:
    address = f"/d/{uid}?var-node=${{node}}&var-trace=${{__value.raw}}&${{__url_time_range}}"
    return (
        Panel(
            kind="table",
            title="Traces of $node",
            good="short traces; the last one ends at the labeler. Click a trace ID to show it below.",
            bad="long traces, or none after the node joined.",
            targets=(target,),
            source=_TRACES,
            source_type=plugin,
            links={_COLUMN_OF_TRACE: ("Show below", address)},
            silent_because=_OFF,
            height=7,
            width=24 if plugin == "jaeger" else 14,
        ),
    )


def _waterfall(plugin: str, target: dict[str, Any]) -> Panel:
    return Panel(
        kind="traces",
        title="Selected trace",
        good="watch event, look at machine, process and the requests to Kubernetes, without gaps.",
        bad="a gap: the message waited. Red: the step failed; `error.type` has the cause.",
        targets=(target,),
        source=_TRACES,
        source_type=plugin,
        silent_because="no trace is selected: click one above.",
        width=24,
        height=12,
    )


def _troubles() -> Panel:
    return Panel(
        kind="table",
        title="Failed attempts",
        good="an empty table.",
        bad="rows: failed attempts, which the service retries or publishes as dead letters.",
        targets=(_search_tempo(f"{{ {_OF_NODE} && (status = error || span.error.type != nil) }}", 20),),
        source=_TRACES,
        source_type="tempo",
        silent_because="nothing failed.",
        height=7,
        width=10,
    )


_HOP: Final = "talosccm_hop_latency_seconds"
_JOURNEY: Final = "talosccm_journey_seconds"

_ALL_NODES: Final = (
    stat(
        "Blocked nodes",
        "max(talosccm_blocked_nodes)",
        good="0.",
        bad="above 0: each node has a condition with the reason; see also `talos-ccm explain node NAME`.",
        steps=((1, RED),),
        alerts=("TalosCCMNodeUninitializedTooLong",),
        width=8,
    ),
    stat(
        "Nodes that became usable",
        f"sum(increase({DELAY}_count[$__range]))",
        good="as many as joined in the selected time range.",
        bad="fewer.",
        steps=NEUTRAL,
        decimals=0,
        width=8,
    ),
    stat(
        "Writes per joined node",
        f"sum(increase(talosccm_node_writes_total[$__range])) / (sum(increase({DELAY}_count[$__range])) > 0)",
        good="a handful: two of the Node, its Event, its certificate, its pod CIDRs.",
        bad="tens while nodes join: another controller reverts writes. Meaningless without joins.",
        steps=((10, ORANGE), (30, RED)),
        decimals=1,
        silent_because="no node became usable in the selected time range.",
        width=8,
    ),
    UNTIL_USABLE,
    series(
        "Message age at each hop (p50)",
        Query(quantile(0.5, _HOP, "service, event"), "{{service}} {{event}}", exemplars=True),
        good="milliseconds.",
        bad="one hop above the others: nodes wait there.",
        unit="s",
        steps=((1, ORANGE), (10, RED)),
    ),
    series(
        "End-to-end latency since the watcher's observation (p99)",
        Query(quantile(0.99, _JOURNEY, "service, event"), "{{service}} {{event}}", exemplars=True),
        good="well below a second. The labeler's line covers all steps, including the query to the machine.",
        bad="minutes: services retried until missing data arrived.",
        unit="s",
        steps=((10, ORANGE), (60, RED)),
    ),
    series(
        "Writes to Kubernetes by service",
        Query(
            "sum by (service, resource) (rate(talosccm_node_writes_total[$__rate_interval]))",
            "{{service}} {{resource}}",
        ),
        good="peaks when nodes join, 0 while nothing changes.",
        bad="a plateau: two controllers overwrite the same field.",
        unit="wps",
        stacked=True,
    ),
    series(
        "Failed requests to Kubernetes, and keys that rules could not set",
        Query(
            risen("talosccm_kubernetes_requests_total", "verb, resource, status", 'status!~"2.."'),
            "{{verb}} {{resource}} {{status}}",
        ),
        Query(
            risen("talosccm_transformer_errors_total", "type"),
            "rules: {{type}}",
        ),
        good="no data. An occasional 409 means that another client wrote first.",
        bad="403: a right is missing. none: no answer. 422: a rule sets an invalid value.",
        decimals=0,
        silent_because="no request to Kubernetes failed, and rules set all their keys.",
    ),
)

NODE_JOURNEY: Final = Board(
    name="node-journey",
    title="Node journey",
    question="What happened to one node, step by step (traces in Tempo), and how do all nodes do?",
    variables=(
        source_variable(_TRACES, "Traces", "tempo"),
        tempo_values("node", "Node", "k8s.node.name", _TRACES),
        text_variable("trace", "Trace ID"),
    ),
    panels=(
        *_journeys("tempo", "talosccm-node-journey", _search_tempo(f"{{ {_OF_NODE} }}", 50)),
        _troubles(),
        _waterfall("tempo", _search_tempo("$trace", 1)),
        *_ALL_NODES,
    ),
)

NODE_JOURNEY_JAEGER: Final = Board(
    name="node-journey-jaeger",
    title="Node journey (Jaeger)",
    question="What happened to one node, step by step (traces in Jaeger), and how do all nodes do?",
    variables=(
        source_variable(_TRACES, "Traces", "jaeger"),
        text_variable("node", "Node"),
        text_variable("trace", "Trace ID"),
    ),
    panels=(
        *_journeys(
            "jaeger",
            "talosccm-node-journey-jaeger",
            # Jaeger searches by service. The watcher's span is the root and has the node's name.
            {"queryType": "search", "service": "watcher", "tags": 'k8s.node.name="$node"', "limit": 50},
        ),
        _waterfall("jaeger", {"query": "$trace"}),
        *_ALL_NODES,
    ),
)
