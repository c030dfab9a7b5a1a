"""The chart renders a service that is added as docs/contributing says; no template changes."""

from pathlib import Path
from typing import Any

import pytest

from libs.testbed.helm.chart import (
    ChartValues,
    HelmError,
    Manifest,
    parse_manifests,
    render_text,
    select_kind,
)
from tests.page_steps import TreeCopy, read_steps

ADDED = "auditor"
NAME = f"talos-cloud-controller-manager-{ADDED}"
CHOSEN = ["cloud-node", "auditor-controller"]


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = TreeCopy(tmp_path_factory.mktemp("copy"))
    steps = read_steps("add-a-service.md")
    tree.apply(steps)
    commands = [step.text for step in steps if step.place == "run"]
    written = tree.run("-m", "tests.page_checks", "add_a_service", ADDED, *commands)
    assert written.returncode == 0, written.stderr
    return tree.root / "deploy" / "k8s" / "chart"


def rendered(chart: Path, **values: Any) -> list[Manifest]:
    return parse_manifests(
        render_text(ChartValues(overrides={"enabledControllers": CHOSEN, **values}), chart)
    )


def test_the_deployment_runs_the_service_on_its_port_with_its_key(chart: Path):
    deployment = select_kind(rendered(chart), "Deployment")[NAME]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", f"services.{ADDED}"]
    assert "--secure-port=10465" in container["args"]
    assert container["ports"] == [{"name": "metrics", "containerPort": 10465, "protocol": "TCP"}]
    assert pod["serviceAccountName"] == NAME
    secrets = [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert secrets == [f"talos-cloud-controller-manager-nats-{ADDED}"]


def test_its_account_has_the_rights_of_its_row(chart: Path):
    found = rendered(chart)
    assert NAME in select_kind(found, "ServiceAccount")
    assert select_kind(found, "ClusterRole")[NAME]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    ]


def test_its_controller_selects_it(chart: Path):
    for controllers, is_there in ((CHOSEN, True), (["*"], False), (["*", "auditor-controller"], True)):
        deployments = select_kind(rendered(chart, enabledControllers=controllers), "Deployment")
        assert (NAME in deployments) is is_there
    with pytest.raises(HelmError, match="auditer-controller"):
        rendered(chart, enabledControllers=["auditer-controller"])


def test_its_values_are_accepted_and_others_are_not(chart: Path):
    deployment = select_kind(rendered(chart, **{f"services.{ADDED}.replicas": 3}), "Deployment")[NAME]
    assert deployment["spec"]["replicas"] == 3
    with pytest.raises(HelmError, match="replica"):
        rendered(chart, **{f"services.{ADDED}.replica": 3})


def test_one_process_of_all_services_gets_its_rights(chart: Path):
    roles = select_kind(rendered(chart, **{"daemonSet.enabled": True}), "ClusterRole")
    assert NAME in roles
