"""What compose's Grafana and Prometheus are given is there, and where they look for it."""

import json
from pathlib import Path
from typing import Any, Final

import yaml

from libs.testbed.helm.chart import DASHBOARDS
from tests.architecture.sources import ROOT

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


def test_everything_that_is_mounted_is_there_and_nobody_writes_it():
    assert all(source.exists() for source in MOUNTS.values())
    assert all(volume.endswith(":ro") for volume in LGTM["volumes"])


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
