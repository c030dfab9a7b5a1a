"""`talos-ccm config check --chart-values`: what old values of the chart do otherwise here."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.__main__ import main
from cli.config.chart_values import check_values, check_values_file
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
    assert told((CHART / name).read_text()) == ([], [], [])


def test_a_missing_image_is_a_warning_in_a_release_and_otherwise_not_checked():
    elsewhere, release = "image.repository (required, not set here), ", RELEASE + "spec: {values: {%s}}"
    for text, warnings, is_elsewhere in (
        ("replicaCount: 1", [], True),
        (release % "replicaCount: 1", ["image.repository:"], False),
        (release % f"replicaCount: 1, {IMAGE}", [], False),
        (RELEASE + "spec: {valuesFrom: [{kind: Secret, name: s}]}", [], True),
    ):
        report = check_values(text, "f")
        assert [each.path for each in report.warnings] == warnings
        assert report.not_checked.startswith(elsewhere) == is_elsewhere


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
    "text",
    [
        *("", "a: [", "- a\n", "image: 5\nextraArgs: x\nservices: []\nconfig: 7\n", "1: 2\n"),
        "apiVersion: 1\nkind: {}\n",
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: 5\nspec: {chart: 5}\n",
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec: {sources: 5, source: {helm: 5}}\n",
    ],
)
def test_whatever_is_written_is_judged(text: str, tmp_path: Path):
    file = tmp_path / "values.yaml"
    file.write_text(text)
    assert CliRunner().invoke(main, ["config", "check", "--chart-values", str(file)]).exit_code in (0, 1)


IMAGE = "image: {repository: registry.example.com/ours}"
BAD = "daemonSet: {enabled: perhaps}"
RELEASE = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: ccm}\n"
APPLICATION = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: ccm}\n"
SOURCE = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts}\n"
CILIUM = (
    RELEASE.replace("ccm", "cilium") + f"spec: {{chart: {{spec: {{chart: cilium}}}}, values: {{{BAD}}}}}\n"
)


def checked(text: str, tmp_path: Path, *options: str) -> Result:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    return CliRunner().invoke(main, ["config", "check", "--chart-values", *options, str(file)])


@pytest.mark.parametrize(
    "text",
    [
        RELEASE + f"spec: {{values: {{{BAD}}}}}",
        APPLICATION + f"spec: {{source: {{helm: {{valuesObject: {{{BAD}}}}}}}}}",
        APPLICATION + f"spec: {{source: {{helm: {{values: '{BAD}'}}}}}}",
        APPLICATION + f"spec:\n  sources:\n  - {{ref: values}}\n  - helm:\n      values: |\n        {BAD}\n",
        f"{SOURCE}---\n{CILIUM}---\n{RELEASE}spec: {{values: {{{BAD}}}}}",
        f"{RELEASE}spec: {{}}\n---\n{RELEASE}spec: {{values: {{{BAD}}}}}",
        f"---\n{{}}\n---\n{BAD}",
    ],
    ids=["flux", "argo-object", "argo-text", "argo-sources", "others", "second", "plain"],
)
def test_the_values_of_each_release_in_a_file_are_checked(text: str, tmp_path: Path):
    result = checked(text, tmp_path)
    assert result.exit_code == 1
    assert "daemonSet.enabled: must be true or false" in result.stdout
    assert "apiVersion" not in result.stdout
    assert result.stdout.count(": error: ") == 1


@pytest.mark.parametrize(
    "text",
    [
        f"{SOURCE}---\n{RELEASE}spec: {{chart: {{spec: {{chart: a/}}}}, values: {{{IMAGE}}}}}\n---\n{CILIUM}",
        APPLICATION + "spec: {source: {chart: talos-cloud-controller-manager, helm: {valueFiles: [a.yaml]}}}",
    ],
    ids=["flux", "argo"],
)
def test_a_release_with_good_values_beside_its_source_and_other_charts_is_good(text: str, tmp_path: Path):
    result = checked(text, tmp_path, "--strict")
    assert (result.exit_code, result.stdout.count("no errors, no warnings")) == (0, 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("apiVersion: apps/v1\nkind: Deployment\n", "Deployment: is no source of values: give a values file"),
        (CILIUM, "HelmRelease cilium: installs the chart cilium, not talos-cloud-controller-manager"),
        (RELEASE + "spec: {values: text}", "HelmRelease ccm: spec.values: must be a mapping of values"),
        (APPLICATION + "spec: {source: {helm: {values: {}}}}", "helm.values: must be a string"),
        (APPLICATION + "spec: {source: {helm: {values: '['}}}", "helm.values: line 2: not valid YAML"),
        (f"{RELEASE}spec: {{}}\n---\n[", "not valid YAML"),
    ],
)
def test_what_has_no_values_of_this_chart_is_refused(text: str, problem: str, tmp_path: Path):
    result = checked(text, tmp_path)
    assert result.exit_code == 1
    assert problem in result.stdout


def test_ignored_and_missing_sources_of_values_are_told():
    (ours,) = check_values_file(
        (
            APPLICATION + "spec: {source: {helm: {values: 'a: 1', valuesObject: {}, parameters: [1]}}}"
        ).encode(),
        "f",
    )
    assert [each.path for each in ours.warnings] == ["helm.values:"]
    assert "the values of helm.parameters, files that " in ours.not_checked
    _, second = check_values_file(b"{}\n---\nreplicaCount: 2\n", "f")
    assert "Helm reads only the first one" in second.warnings[0].problem


@pytest.mark.parametrize(
    ("values", "paths"),
    [
        ("resources: {limits: {memory: 64Mi}}", ["resources.limits.memory:"]),
        ("resources: {limits: {memory: 0.1Gi}}", []),
        ("resources: {limits: {memory: 67108864}}", ["resources.limits.memory:"]),
        ("resources: {limits: {memory: 128M}}\ndaemonSet: {enabled: true}", ["resources.limits.memory:"]),
        ("resources: {limits: {memory: 256Mi}}\ndaemonSet: {enabled: true}", []),
        (
            "services: {metadata: &low {resources: {limits: {memory: 48e6}}}, ipam: *low}",
            ["services.metadata.resources.limits.memory:"],
        ),
        (
            "resources: {limits: {memory: 16Mi}}\nservices: {"
            + ", ".join(f"{name}: {{resources: {{limits: {{cpu: 1}}}}}}" for name in ("watcher", "metadata"))
            + "}",
            ["resources.limits.memory:"],
        ),
        ("resources: {limits: {memory: much}}", []),
        ("resources: 5\nservices: 5", []),
    ],
)
def test_memory_limits_below_the_measured_peak_are_warned_of(values: str, paths: list[str]):
    found = check_values(values, "f").warnings
    assert [each.path for each in found if "memory" in each.path] == paths


def test_a_limit_that_services_inherit_names_those_that_need_more():
    (found,) = check_values("resources: {limits: {memory: 80Mi}}", "f").warnings
    assert found.problem == (
        "80Mi is less than the peak of 1000 joining nodes: 84 MiB (labeler). The kernel may kill the process"
    )
