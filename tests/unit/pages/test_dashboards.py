"""The dashboards are valid for Grafana, Prometheus and operators."""

import itertools
import json
import re
from typing import Any, Final

import pytest

from libs.testbed.helm.chart import DASHBOARDS
from tests.architecture.sources import ROOT
from tools.registered_metrics import list_registered_metrics

FILES: Final = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json")}
PANELS: Final = [(name, panel) for name, board in FILES.items() for panel in board["panels"]]
OURS: Final = ("datasource", "cluster", "job", "runbooks")
OF_PROMETHEUS: Final = {"instance", "pod", "job", "cluster"}
OF_ALERTS: Final = {"alertname", "alertstate", "severity", "service"}
OF_THE_PROCESS: Final = {"process_cpu_seconds_total", "process_resident_memory_bytes"}

METRIC: Final = re.compile(r"\b((?:talosccm|node_ipam_controller|node_controller|process)_\w+|up)\b")

every_file = pytest.mark.parametrize("name", sorted(FILES))
every_panel = pytest.mark.parametrize(
    ("name", "panel"), PANELS, ids=[f"{name}-{panel['id']}" for name, panel in PANELS]
)


def series() -> dict[str, set[str]]:
    """The names of our metrics in Prometheus, with their labels."""
    found: dict[str, set[str]] = {name: set() for name in ("up", *OF_THE_PROCESS)}
    for metric in list_registered_metrics():
        labels = set(metric.labels)
        if metric.type == "histogram":
            found |= {f"{metric.name}_{part}": labels for part in ("count", "sum")}
            found[f"{metric.name}_bucket"] = labels | {"le"}
        else:
            found[metric.name] = labels
    return found


SERIES: Final = series()


def list_metrics(expr: str) -> list[str]:
    """The names of the metrics in the query, in order; quoted strings are ignored."""
    return METRIC.findall(re.sub(r'"(?:\\.|[^"\\])*"', "", expr))


def of_prometheus(panel: dict[str, Any]) -> list[dict[str, Any]]:
    return [target for target in panel["targets"] if "expr" in target]


def labels_of(expr: str) -> set[str]:
    """The labels of the metrics in the query, before any aggregation."""
    alerts = OF_ALERTS if "ALERTS" in expr else set()
    return alerts | OF_PROMETHEUS.union(*(SERIES[name] for name in list_metrics(expr)))


def test_the_page_lists_every_board():
    page = (ROOT / "docs" / "dashboards.md").read_text()
    assert set(re.findall(r"^\| `(.+)\.json` \|", page, re.MULTILINE)) == set(FILES)


@every_file
def test_a_board_has_its_question_and_can_be_imported_again(name: str):
    board = FILES[name]
    assert "?" in board["description"]
    assert board["tags"] == ["talos-ccm"], "boards link to all others with this tag"
    assert board["uid"] == f"talosccm-{name}"
    assert len(board["uid"]) <= 40
    assert "id" not in board, "the id of one Grafana: another one would reject the board or replace its own"
    assert 36 <= board["schemaVersion"] <= 42


@every_file
def test_a_board_has_few_panels_without_overlap(name: str):
    panels = FILES[name]["panels"]
    assert 6 <= len(panels) <= 12
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] + panel["type"] for panel in panels}) == len(panels)
    for panel in panels:
        where = panel["gridPos"]
        assert 0 <= where["x"] < where["x"] + where["w"] <= 24
        assert where["h"] > 0
    for one, other in itertools.combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above


@every_file
def test_every_used_variable_is_declared(name: str):
    board = FILES[name]
    declared = [variable["name"] for variable in board["templating"]["list"]]
    assert declared[: len(OURS)] == list(OURS)
    assert len(set(declared)) == len(declared)
    without_description = json.dumps([{**panel, "description": ""} for panel in board["panels"]])
    named = set(re.findall(r"\$\{?([a-zA-Z_]\w*)", without_description))
    assert named - {"__rate_interval", "__range", "__value", "__url_time_range"} <= set(declared)
    for variable in board["templating"]["list"]:
        assert variable["label"]
        if variable["type"] == "query":
            assert variable["datasource"]["uid"] in ("${datasource}", "${traces}")


@every_panel
def test_a_panel_uses_a_data_source_variable(name: str, panel: dict[str, Any]):
    sources = {"prometheus": "${datasource}", "tempo": "${traces}", "jaeger": "${traces}"}
    assert panel["targets"]
    for asked in (panel, *panel["targets"]):
        assert asked["datasource"]["uid"] == sources[asked["datasource"]["type"]]
    letters = [target["refId"] for target in panel["targets"]]
    assert len(set(letters)) == len(letters)


@every_panel
def test_a_panel_describes_good_and_bad_values_and_has_a_unit(name: str, panel: dict[str, Any]):
    assert panel["title"]
    assert re.match(r"Good: .{2,}\n\nBad: .{2,}", panel["description"])
    fields = panel["fieldConfig"]["defaults"]
    assert fields["unit"]
    steps = fields["thresholds"]["steps"]
    assert steps[0]["value"] is None
    values = [step["value"] for step in steps[1:]]
    assert values == sorted(values)
    if panel["type"] in ("stat", "bargauge"):
        assert len(steps) > 1 or steps[0]["color"] == "blue", "neither good nor bad, or thresholds"


@every_panel
def test_a_panel_links_to_the_runbooks_of_its_alerts(name: str, panel: dict[str, Any]):
    for link in panel["links"]:
        alert = link["title"].removeprefix("Runbook: ")
        assert (ROOT / "docs" / "runbooks" / f"{alert}.md").exists()
        assert link["url"] == f"${{runbooks:raw}}/{alert}.md"
        assert alert in panel["description"]


@every_panel
def test_a_query_uses_existing_metrics_and_labels(name: str, panel: dict[str, Any]):
    for target in of_prometheus(panel):
        expr = target["expr"]
        named = list_metrics(expr)
        assert named or "ALERTS" in expr
        assert set(named) <= set(SERIES)
        for metric, selected in re.findall(r"\b(\w+)\{([^}]*)\}", expr):
            has = OF_ALERTS if metric == "ALERTS" else SERIES[metric] | OF_PROMETHEUS
            assert set(re.findall(r"(\w+)\s*[=!]", selected)) <= has
        for by in re.findall(r"by \(([^)]*)\)", expr):
            assert set(by.split(", ")) <= labels_of(expr)


@every_panel
def test_a_query_without_data_does_not_become_a_good_value(name: str, panel: dict[str, Any]):
    """`or vector(0)` would be green. Only alerts need it: those that do not fire have no series."""
    for target in of_prometheus(panel):
        assert not target["expr"].endswith("or vector(0)") or "ALERTS" in target["expr"]


@every_panel
def test_a_title_fits_on_a_small_screen(name: str, panel: dict[str, Any]):
    assert len(panel["title"]) <= 6.5 * panel["gridPos"]["w"]


@every_panel
def test_a_legend_uses_labels_of_the_result(name: str, panel: dict[str, Any]):
    for target in of_prometheus(panel):
        expr = target["expr"]
        groups = re.findall(r"by \(([^)]*)\)", expr)
        left = {label for by in groups for label in by.split(", ")}
        if not re.search(r"\b(sum|max|min|count|avg)\b", expr):
            left = labels_of(expr)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left


@every_panel
def test_every_metric_is_restricted_to_the_selected_clusters_and_jobs(name: str, panel: dict[str, Any]):
    for target in of_prometheus(panel):
        for metric in list_metrics(target["expr"]):
            assert re.search(rf'\b{metric}\{{cluster=~"\$cluster", job=~"\$job"[,}}]', target["expr"])


def test_both_node_journeys_show_the_same_of_all_nodes():
    """They differ only in the panels of Tempo and Jaeger."""
    tempo, jaeger = (
        [(panel["title"], panel["targets"]) for panel in FILES[name]["panels"] if of_prometheus(panel)]
        for name in ("node-journey", "node-journey-jaeger")
    )
    assert tempo == jaeger
