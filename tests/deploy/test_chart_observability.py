"""Optional objects for metrics, alerts and dashboards, with the content of the chart's files."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.testbed.helm.chart import (
    CHART,
    ChartValues,
    HelmError,
    Manifest,
    render_manifests,
    render_text,
    select_kind,
)
from tests.deploy.profiles import PROFILES, containers, prefix

FOLDER = CHART / "files" / "observability"
ALL = {f"metrics.{each}.enabled": True for each in ("podMonitor", "prometheusRule", "dashboards")}
OURS = {"PodMonitor", "PrometheusRule"}


def with_all_enabled(profile: str = "default", **overrides: Any) -> list[Manifest]:
    values = PROFILES[profile]
    merged = dict(values.overrides) | ALL | {key.replace("_", "."): value for key, value in overrides.items()}
    return render_manifests(
        ChartValues(files=values.files, overrides=merged, release=values.release, namespace=values.namespace)
    )


def test_they_are_disabled_by_default():
    found = render_manifests(ChartValues())
    assert not {m["kind"] for m in found} & OURS
    assert not [m for m in found if "dashboard" in m["metadata"]["name"]]


@pytest.mark.parametrize("profile", ["default", "ha", "all-in-one", "elsewhere"])
def test_every_process_with_metrics_is_scraped_with_its_own_labels(profile: str):
    found = with_all_enabled(profile, daemonSet_bindAddress="$(NODE_IP)")
    (monitor,) = select_kind(found, "PodMonitor").values()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    for workload in (m for m in found if m["kind"] in {"Deployment", "DaemonSet", "StatefulSet"}):
        assert chosen <= workload["spec"]["template"]["metadata"]["labels"].items()
        serving = [
            c for c in containers(workload) for p in c.get("ports", ()) if p["name"] == endpoint["port"]
        ]
        assert len(serving) == 1
        assert serving[0]["livenessProbe"]["httpGet"]["scheme"].lower() == endpoint["scheme"]


def test_the_alerts_are_those_of_the_file_with_links_to_runbooks():
    base = "https://git.example.net/talos-ccm/blob/v1"
    original = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    plain = select_kind(with_all_enabled(), "PrometheusRule")[prefix("default")]["spec"]
    assert plain == original
    for group in original["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"{base}/{rule['annotations']['runbook_url']}"
    found = with_all_enabled(metrics_prometheusRule_runbookBase=f"{base}/")
    assert select_kind(found, "PrometheusRule")[prefix("default")]["spec"] == original


def test_the_dashboards_are_those_of_the_folder_with_the_label_for_grafanas_sidecar():
    found = with_all_enabled(metrics_dashboards_annotations={"grafana_folder": "Talos"})
    boards = {name: m for name, m in select_kind(found, "ConfigMap").items() if "-dashboard-" in name}
    shown = {}
    for board in boards.values():
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert board["metadata"]["annotations"] == {"grafana_folder": "Talos"}
        ((file, content),) = board["data"].items()
        shown[file.removeprefix("talos-ccm-")] = json.loads(content)
    assert shown == {
        path.name: json.loads(path.read_text()) for path in Path(FOLDER / "dashboards").glob("*.json")
    }


def test_configured_labels_are_added():
    release = {"release": "kube-prometheus-stack"}
    found = with_all_enabled(metrics_podMonitor_labels=release, metrics_prometheusRule_labels=release)
    for kind in OURS:
        (each,) = select_kind(found, kind).values()
        assert release.items() <= each["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "overrides",
    [
        {"metrics.podMonitor.enable": True},
        {"metrics.serviceMonitor.enabled": True},
        {"metrics.prometheusRule.runbookBase": "docs"},
        {"metrics.podMonitor.interval": "often"},
    ],
    ids=str,
)
def test_a_mistake_in_these_values_is_rejected_by_name(overrides: dict[str, Any]):
    with pytest.raises(HelmError, match="metrics"):
        render_text(ChartValues(overrides=overrides))
