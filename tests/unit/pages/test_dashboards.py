"""The dashboards are valid for Grafana, Prometheus and operators, also those of compose."""

import itertools
import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from libs.testbed.helm.chart import DASHBOARDS
from tests.architecture.sources import ROOT
from tests.tables import naming
from tools.registered_metrics import list_series

FILES: Final = {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}
PANELS: Final = [(name, panel) for name, board in FILES.items() for panel in board["panels"]]
QUERIES: Final = [
    (name, panel, target) for name, panel in PANELS for target in panel["targets"] if "expr" in target
]
OURS: Final = ("datasource", "cluster", "job", "runbooks")
OF_PROMETHEUS: Final = {"instance", "pod", "job", "cluster"}
OF_ALERTS: Final = {"alertname", "alertstate", "severity", "service"}
OF_THE_PROCESS: Final = {"process_cpu_seconds_total", "process_resident_memory_bytes"}

METRIC: Final = re.compile(r"\b((?:talosccm|node_ipam_controller|node_controller|process)_\w+|up)\b")


SERIES: Final = list_series() | {name: set() for name in ("up", *OF_THE_PROCESS)}


def list_metrics(expr: str) -> list[str]:
    """The names of the metrics in the query, in order; quoted strings are ignored."""
    return METRIC.findall(re.sub(r'"(?:\\.|[^"\\])*"', "", expr))


def labels_of(expr: str) -> set[str]:
    """The labels of the metrics in the query, before any aggregation."""
    alerts = OF_ALERTS if "ALERTS" in expr else set()
    return alerts | OF_PROMETHEUS.union(*(SERIES[name] for name in list_metrics(expr)))


def test_the_page_lists_every_board():
    page = (ROOT / "docs" / "dashboards.md").read_text()
    assert set(re.findall(r"^\| `(.+)\.json` \|", page, re.MULTILINE)) == set(FILES)


def test_a_board_has_its_question_and_can_be_imported_again():
    for name in FILES:
        with naming(name):
            board = FILES[name]
            assert "?" in board["description"]
            assert board["tags"] == ["talos-ccm"], "boards link to all others with this tag"
            assert board["uid"] == f"talosccm-{name}"
            assert len(board["uid"]) <= 40
            assert "id" not in board, (
                "the id of one Grafana: another one would reject the board or replace its own"
            )
            assert 36 <= board["schemaVersion"] <= 42


def test_a_board_has_few_panels_without_overlap():
    for name in FILES:
        with naming(name):
            panels = FILES[name]["panels"]
            assert 2 <= len(panels) <= 16
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


def test_every_used_variable_is_declared():
    for name in FILES:
        with naming(name):
            board = FILES[name]
            declared = [variable["name"] for variable in board["templating"]["list"]]
            if any(of == name for of, _, _ in QUERIES):
                assert declared[: len(OURS)] == list(OURS)
            assert len(set(declared)) == len(declared)
            without_description = json.dumps([{**panel, "description": ""} for panel in board["panels"]])
            named = set(re.findall(r"\$\{?([a-zA-Z_]\w*)", without_description))
            assert named - {"__rate_interval", "__range", "__value", "__url_time_range"} <= set(declared)
            for variable in board["templating"]["list"]:
                assert variable["label"]
                if variable["type"] == "query":
                    assert variable["datasource"]["uid"] in ("${datasource}", "${traces}")


def test_panels_use_a_data_source_variable_and_describe_good_and_bad_values():
    sources = {"prometheus": "${datasource}", "tempo": "${traces}", "jaeger": "${traces}"}
    for name, panel in PANELS:
        with naming(f"{name}: {panel['title']}"):
            assert panel["title"]
            assert panel["targets"]
            for asked in (panel, *panel["targets"]):
                assert asked["datasource"]["uid"] == sources[asked["datasource"]["type"]]
            letters = [target["refId"] for target in panel["targets"]]
            assert len(set(letters)) == len(letters)
            assert re.match(r"Good: .{2,}\n\nBad: .{2,}", panel["description"])
            fields = panel["fieldConfig"]["defaults"]
            assert fields["unit"]
            steps = fields["thresholds"]["steps"]
            assert steps[0]["value"] is None
            values = [step["value"] for step in steps[1:]]
            assert values == sorted(values)
            if panel["type"] in ("stat", "bargauge"):
                assert len(steps) > 1 or steps[0]["color"] == "blue", "neither good nor bad, or thresholds"


def test_panels_link_to_the_runbooks_of_their_alerts():
    for name, panel in PANELS:
        for link in panel.get("links", ()):
            with naming(f"{name}: {panel['title']}"):
                alert = link["title"].removeprefix("Runbook: ")
                assert (ROOT / "docs" / "runbooks" / f"{alert}.md").exists()
                assert link["url"] == f"${{runbooks:raw}}/{alert}.md"
                assert alert in panel["description"]


def test_queries_use_existing_metrics_and_labels_of_the_selected_clusters_and_jobs():
    for name, panel, target in QUERIES:
        with naming(f"{name}: {panel['title']}"):
            expr = target["expr"]
            metrics = list_metrics(expr)
            assert metrics or "ALERTS" in expr
            assert set(metrics) <= set(SERIES)
            for metric, selected in re.findall(r"\b(\w+)\{([^}]*)\}", expr):
                has = OF_ALERTS if metric == "ALERTS" else SERIES[metric] | OF_PROMETHEUS
                assert set(re.findall(r"(\w+)\s*[=!]", selected)) <= has
            for by in re.findall(r"by \(([^)]*)\)", expr):
                assert set(by.split(", ")) <= labels_of(expr)
            for metric in metrics:
                assert re.search(rf'\b{metric}\{{cluster=~"\$cluster", job=~"\$job"[,}}]', expr)


def test_a_query_without_data_does_not_become_a_good_value():
    """`or vector(0)` would be green. Only alerts need it: those that do not fire have no series."""
    for name, panel, target in QUERIES:
        is_zero = target["expr"].endswith("or vector(0)")
        assert not is_zero or "ALERTS" in target["expr"], f"{name}: {panel['title']}"


def test_a_legend_uses_labels_of_the_result():
    for name, panel, target in QUERIES:
        with naming(f"{name}: {panel['title']}"):
            expr = target["expr"]
            groups = re.findall(r"by \(([^)]*)\)", expr)
            left = {label for by in groups for label in by.split(", ")}
            if not re.search(r"\b(sum|max|min|count|avg)\b", expr):
                left = labels_of(expr)
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= left


# ---- compose


FOLDER: Final = ROOT / "deploy" / "compose"
IN_THE_IMAGE: Final = Path("/otel-lgtm")
PROVISIONING: Final = IN_THE_IMAGE / "grafana/conf/provisioning"


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return content


LGTM: Final = read("compose.yaml")["services"]["lgtm"]
MOUNTS: Final = {
    Path(target): (FOLDER / source).resolve()
    for source, target, _ in (volume.split(":") for volume in LGTM["volumes"])
}


def test_everything_that_is_mounted_is_there():
    assert all(source.exists() for source in MOUNTS.values())


def test_grafana_looks_for_boards_where_they_are_mounted():
    (provider,) = read("grafana/dashboards.yaml")["providers"]
    assert MOUNTS[Path(provider["options"]["path"])] == DASHBOARDS
    # Grafana reads the providers that lie in this very folder, and none of those below it.
    providers = [target for target in MOUNTS if target.parent == PROVISIONING / "dashboards"]
    assert MOUNTS[PROVISIONING / "dashboards" / "talos-ccm.yaml"] == FOLDER / "grafana" / "dashboards.yaml"
    assert len(providers) == 2


def test_the_first_that_one_sees_is_the_overview():
    home = Path(LGTM["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (MOUNTS[home.parent] / home.name).exists()


def test_there_is_a_source_of_each_kind_that_boards_choose_from_but_jaeger():
    sources = read("grafana/datasources.yaml")["datasources"]
    wanted = {
        variable["query"]
        for board in DASHBOARDS.glob("*.json")
        for variable in json.loads(board.read_text())["templating"]["list"]
        if variable["type"] == "datasource"
    }
    assert wanted - {"jaeger"} < {source["type"] for source in sources}
    uids = {source["uid"] for source in sources}
    prometheus = next(source["jsonData"] for source in sources if source["type"] == "prometheus")
    assert prometheus["timeInterval"] == read("prometheus.yaml")["global"]["scrape_interval"]
    assert {each["datasourceUid"] for each in prometheus["exemplarTraceIdDestinations"]} < uids


def test_prometheus_judges_by_our_alerts_and_keeps_our_labels():
    config = read("prometheus.yaml")
    assert [MOUNTS[Path(rules)] for rules in config["rule_files"]] == [
        ROOT / "deploy" / "k8s" / "chart" / "files" / "observability" / "rules.yaml"
    ]
    (job,) = config["scrape_configs"]
    assert job["honor_labels"] is True
    assert "relabel_configs" not in job, "`service` is ours"
