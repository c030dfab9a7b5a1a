"""Node journey: what happened to one node, step by step, by its traces; and how all of them fare."""

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

_TRACES: Final = "traces"  # the variable that names Tempo or Jaeger
_OF_NODE: Final = 'resource.service.namespace = "talos-ccm" && span.k8s.node.name = "$node"'
_OFF: Final = "tracing is off (OTEL_EXPORTER_OTLP_ENDPOINT), or the node said nothing in the chosen time."
_COLUMN_OF_TRACE: Final = "/^(traceID|Trace ID)$/"


def _search_tempo(query: str, rows: int) -> dict[str, Any]:
    return {
        "queryType": "traceql",
        "query": query,
        "filters": [],  # of the search form, which is another way to ask
        "limit": rows,
        "spss": 20,
        "tableType": "traces",
    }


def _journeys(plugin: str, uid: str, target: dict[str, Any]) -> tuple[Panel, ...]:
    address = f"/d/{uid}?var-node=${{node}}&var-trace=${{__value.raw}}&${{__url_time_range}}"
    return (
        Panel(
            kind="table",
            title="Journeys of $node",
            good="each short, the last one ending at the labeler; a trace ID shows it below.",
            bad="long ones, or none after the node had joined.",
            targets=(target,),
            source=_TRACES,
            source_type=plugin,
            links={_COLUMN_OF_TRACE: ("Show it below", address)},
            silent_because=_OFF,
            height=7,
            width=24 if plugin == "jaeger" else 14,
        ),
    )


def _waterfall(plugin: str, target: dict[str, Any]) -> Panel:
    return Panel(
        kind="traces",
        title="The journey that was chosen",
        good="watch event, look at machine, process, and the requests to Kubernetes, one after the other.",
        bad="a gap: the message waited. Red: it failed, and `error.type` says of what.",
        targets=(target,),
        source=_TRACES,
        source_type=plugin,
        silent_because="no trace was chosen: click one above.",
        width=24,
        height=12,
    )


def _troubles() -> Panel:
    return Panel(
        kind="table",
        title="Where it failed",
        good="an empty table.",
        bad="rows: attempts that failed, to be tried again or put aside.",
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
        bad="above 0: each says in a condition why, and `talos-ccm explain node NAME` what to do.",
        steps=((1, RED),),
        alerts=("TalosCCMNodeUninitializedTooLong",),
        width=8,
    ),
    stat(
        "Became usable",
        f"sum(increase({DELAY}_count[$__range]))",
        good="as many as have joined in the chosen time.",
        bad="fewer.",
        steps=NEUTRAL,
        decimals=0,
        width=8,
    ),
    stat(
        "Writes for each node that joined",
        f"sum(increase(talosccm_node_writes_total[$__range])) / (sum(increase({DELAY}_count[$__range])) > 0)",
        good="a handful: two of the Node, its event, its certificate, its pod CIDRs.",
        bad="tens while nodes join: somebody changes back what we write. Without joins it means nothing.",
        steps=((10, ORANGE), (30, RED)),
        decimals=1,
        silent_because="no node became usable in the chosen time.",
        width=8,
    ),
    UNTIL_USABLE,
    series(
        "Age of a message at each hop (half of them)",
        Query(quantile(0.5, _HOP, "service, event"), "{{service}} {{event}}", exemplars=True),
        good="milliseconds: a hop costs little.",
        bad="one hop above the others is where nodes wait.",
        unit="s",
        steps=((1, ORANGE), (10, RED)),
    ),
    series(
        "Since the watcher saw it, when handling had succeeded (99 %)",
        Query(quantile(0.99, _JOURNEY, "service, event"), "{{service}} {{event}}", exemplars=True),
        good="well below a second: the labeler's line is the whole journey, asking the machine included.",
        bad="minutes: it was tried again until something was there.",
        unit="s",
        steps=((10, ORANGE), (60, RED)),
    ),
    series(
        "Writes to Kubernetes, by service",
        Query(
            "sum by (service, resource) (rate(talosccm_node_writes_total[$__rate_interval]))",
            "{{service}} {{resource}}",
        ),
        good="peaks when nodes join, nothing while nothing changes.",
        bad="a plateau: a fight over a field.",
        unit="wps",
        stacked=True,
    ),
    series(
        "Requests that Kubernetes refused, and keys that rules could not set",
        Query(
            risen("talosccm_kubernetes_requests_total", "verb, resource, status", 'status!~"2.."'),
            "{{verb}} {{resource}} {{status}}",
        ),
        Query(
            risen("talosccm_transformer_errors_total", "type"),
            "rules: {{type}}",
        ),
        good="nothing; a 409 now and then is somebody else's write in between.",
        bad="403: a right is missing. none: no answer. 422: a rule asks for what cannot be.",
        decimals=0,
        silent_because="Kubernetes has refused nothing, and rules could set all that they say.",
    ),
)

NODE_JOURNEY: Final = Board(
    name="node-journey",
    title="Node journey",
    question="What happened to one node, step by step (traces in Tempo), and how do all of them fare?",
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
    question="What happened to one node, step by step (traces in Jaeger), and how do all of them fare?",
    variables=(
        source_variable(_TRACES, "Traces", "jaeger"),
        text_variable("node", "Node"),
        text_variable("trace", "Trace ID"),
    ),
    panels=(
        *_journeys(
            "jaeger",
            "talosccm-node-journey-jaeger",
            # Jaeger searches by the service of a span: the watcher's begins the journey, and bears the name.
            {"queryType": "search", "service": "watcher", "tags": 'k8s.node.name="$node"', "limit": 50},
        ),
        _waterfall("jaeger", {"query": "$trace"}),
        *_ALL_NODES,
    ),
)
