"""`talos-ccm config check --chart-values`: what old values of the chart do otherwise here."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.__main__ import main
from cli.config.chart_values import check_values
from tests.architecture.sources import ROOT

CHART = ROOT / "deploy" / "k8s" / "chart"
OLD = CHART / "ci" / "reference-values.yaml"
SPOT = "cloud-node-lifecycle keeps the Nodes of preempted GCP spot machines. The reference deletes them."
ALL = "in the reference it selects cloud-node and cloud-node-lifecycle"


def told(text: str) -> tuple[list[str], list[str], list[str]]:
    """Mistakes, warnings and differences, each as path and words."""
    found = check_values(text, "f")
    of = (found.mistakes, found.warnings, found.differences)
    return tuple([f"{each.path} {each.problem}" for each in kind] for kind in of)  # type: ignore[return-value]


def test_old_values_are_told_what_fails_the_install_and_what_is_otherwise():
    result = CliRunner().invoke(main, ["config", "check", "--chart-values", str(OLD)])
    assert result.exit_code == 1
    assert (
        "error: image.repository: ghcr.io/siderolabs/talos-cloud-controller-manager is the reference's"
        in result.stdout
    )
    assert f"differs: enabledControllers: {SPOT}" in result.stdout
    assert 'enabledControllers: "route" has no effect: this controller has no routes' in result.stdout


@pytest.mark.parametrize("name", ["values.yaml", "ci/ha-values.yaml", "ci/all-in-one-values.yaml"])
def test_values_of_this_chart_are_good(name: str):
    missing = "image.repository: is not set. The chart requires it, here or with --set"
    assert told((CHART / name).read_text()) == ([], [missing], [])


@pytest.mark.parametrize(
    ("written", "differs"),
    [
        ("[cloud-node, node-csr-approval]", []),
        ("['*']", [ALL]),
        ("['*', -node-csr-approval, cloud-node-lifecycle]", [SPOT]),
        ("[cloud-node, cloud-node-lifecycle]", [SPOT]),
        ("[cloud-node, cloud-node-lifecycle]\nextraArgs: [--delete-preempted-gcp-spot]", []),
        (
            "[cloud-node-lifecycle]\nservices: {lifecycle: {extraArgs: [--delete_preempted_gcp_spot=false]}}",
            [],
        ),
    ],
)
def test_controllers_that_do_otherwise_are_told(written: str, differs: list[str]):
    _, _, differences = told(f"enabledControllers: {written}\n")
    found = [each for each in (ALL, SPOT) if any(each in said for said in differences)]
    assert found == differs


def test_a_tag_a_former_key_and_rules_are_judged():
    mistakes, warnings, _ = told(
        "image: {tag: v1.12.0, repository: registry.example.com/ours}\nuseDaemonSet: true\n"
        "enabledControllers: [cloud-nod]\n"
        "transformations: [{labels: {a: '{{ .Nothing }}'}, features: {publicIPPredict: true}}]\n"
    )
    assert [each.partition(" ")[0] for each in mistakes] == [
        "useDaemonSet:",
        "enabledControllers:",
        'transformations[0].labels["a"]',
    ]
    assert [each.partition(" ")[0] for each in warnings] == [
        "image.tag:",
        "transformations[0].features.publicIPPredict",
    ]


@pytest.mark.parametrize(
    "text", ["", "a: [", "- a\n", "image: 5\nextraArgs: x\nservices: []\nconfig: 7\n", "1: 2\n"]
)
def test_whatever_is_written_is_judged(text: str, tmp_path: Path):
    file = tmp_path / "values.yaml"
    file.write_text(text)
    assert CliRunner().invoke(main, ["config", "check", "--chart-values", str(file)]).exit_code in (0, 1)
