"""Metrics, alerts and dashboards for who asks for them: as deploy/observability has them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from libs.testbed.helm.chart import (
    ChartValues,
    HelmError,
    Manifest,
    render_manifests,
    render_text,
    select_kind,
)
from libs.testbed.helm.observability_copies import COPIES, list_surplus_files, read_original_files
from tests.architecture.sources import ROOT
from tests.deploy.profiles import PROFILES, containers, prefix

ORIGINALS = ROOT / "deploy" / "observability"
ALL = {f"metrics.{each}.enabled": True for each in ("podMonitor", "prometheusRule", "dashboards")}
OURS = {"PodMonitor", "PrometheusRule"}


def asked_for(profile: str = "default", **said: Any) -> list[Manifest]:
    values = PROFILES[profile]
    told = dict(values.overrides) | ALL | {key.replace("_", "."): value for key, value in said.items()}
    return render_manifests(
        ChartValues(files=values.files, overrides=told, release=values.release, namespace=values.namespace)
    )


@pytest.mark.parametrize("name", read_original_files())
def test_the_charts_copy_is_the_file_that_there_is(name: str):
    assert (COPIES / name).read_text() == read_original_files()[name], "run `make manifests` and commit it"


def test_nothing_lies_among_the_copies_that_is_none():
    assert list_surplus_files() == [], "run `make manifests` and commit it"


def test_nobody_gets_them_who_has_not_asked():
    found = render_manifests(ChartValues())
    assert not {m["kind"] for m in found} & OURS
    assert not [m for m in found if "dashboard" in m["metadata"]["name"]]


@pytest.mark.parametrize("profile", ["default", "ha", "all-in-one", "elsewhere"])
def test_every_process_that_has_metrics_is_read_and_says_itself_which_it_is(profile: str):
    found = asked_for(profile)
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


def test_the_alerts_are_those_of_the_file_and_lead_to_a_runbook_that_can_be_opened():
    base = "https://git.example.net/talos-ccm/blob/v1"
    original = yaml.safe_load((ORIGINALS / "rules.yaml").read_text())
    plain = select_kind(asked_for(), "PrometheusRule")[prefix("default")]["spec"]
    assert plain == original
    for group in original["groups"]:
        for rule in group["rules"]:
            rule["annotations"]["runbook_url"] = f"{base}/{rule['annotations']['runbook_url']}"
    found = asked_for(metrics_prometheusRule_runbookBase=f"{base}/")
    assert select_kind(found, "PrometheusRule")[prefix("default")]["spec"] == original


def test_the_dashboards_are_those_of_the_folder_where_grafanas_sidecar_finds_them():
    found = asked_for(metrics_dashboards_annotations={"grafana_folder": "Talos"})
    boards = {name: m for name, m in select_kind(found, "ConfigMap").items() if "-dashboard-" in name}
    shown = {}
    for board in boards.values():
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert board["metadata"]["annotations"] == {"grafana_folder": "Talos"}
        ((file, content),) = board["data"].items()
        shown[file.removeprefix("talos-ccm-")] = json.loads(content)
    assert shown == {
        path.name: json.loads(path.read_text()) for path in Path(ORIGINALS / "dashboards").glob("*.json")
    }


def test_labels_of_ones_own_are_added():
    release = {"release": "kube-prometheus-stack"}
    found = asked_for(metrics_podMonitor_labels=release, metrics_prometheusRule_labels=release)
    for kind in OURS:
        (each,) = select_kind(found, kind).values()
        assert release.items() <= each["metadata"]["labels"].items()


@pytest.mark.parametrize(
    "said",
    [
        {"metrics.podMonitor.enable": True},
        {"metrics.serviceMonitor.enabled": True},
        {"metrics.prometheusRule.runbookBase": "docs"},
        {"metrics.podMonitor.interval": "often"},
    ],
    ids=str,
)
def test_a_mistake_in_them_is_refused_by_name(said: dict[str, Any]):
    with pytest.raises(HelmError, match="metrics"):
        render_text(ChartValues(overrides=said))
