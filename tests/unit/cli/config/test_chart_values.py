"""`talos-ccm config check --chart-values`: mistakes, what has no effect, and what old values do otherwise."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from cli.__main__ import main
from cli.config.chart_schema import CHART, check_schema
from cli.config.chart_values import check_values_file
from cli.config.config_check import FileReport
from libs.testbed.helm.renders import EMBEDDED, render_embedded
from tests.architecture.sources import ROOT

FOLDER = ROOT / "deploy" / "k8s" / "chart"
DIGEST = "sha256:" + "0" * 64
IMAGE = "image: {repository: registry.example.com/ours}"
SPOT = "cloud-node-lifecycle keeps the Nodes of preempted GCP spot machines. The reference deletes them."
ALL = "in the reference it selects cloud-node and cloud-node-lifecycle"
EXPOSED = "exposed: {enabled: true, tlsSecretName: tls, hosts: [a.example.com]}"
BAD = "daemonSet: {enabled: perhaps}"
RELEASE = "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: ccm}\n"
APPLICATION = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: ccm}\n"
SOURCE = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\nmetadata: {name: charts}\n"
CILIUM = (
    RELEASE.replace("ccm", "cilium") + f"spec: {{chart: {{spec: {{chart: cilium}}}}, values: {{{BAD}}}}}\n"
)


def check(text: str | bytes) -> FileReport:
    [report] = check_values_file(text.encode() if isinstance(text, str) else text, "f")
    return report


def found(text: str) -> tuple[list[str], list[str], list[str]]:
    """Return mistakes, warnings and differences, each as path and problem."""
    report = check(text)
    mistakes, warnings, differences = (
        [f"{each.path} {each.problem}" for each in kind]
        for kind in (report.mistakes, report.warnings, report.differences)
    )
    return mistakes, warnings, differences


def checked(text: str, tmp_path: Path, *options: str) -> Result:
    file = tmp_path / "values.yaml"
    file.write_text(text)
    return CliRunner().invoke(main, ["config", "check", "--chart-values", *options, str(file)])


def test_the_embedded_chart_is_the_chart():
    assert EMBEDDED.read_text() == render_embedded(), (
        "run `make manifests`, look at the difference, and commit it"
    )


def account_with(part: str) -> str:
    """Values with one account."""
    controllers = "enabledControllers: [cloud-node, service-lb-controller, node-route-controller]"
    return f"{controllers}\nclouds: [{{provider: hcloud, account: a, secretRef: {{name: a}}, {part}}}]"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("enabledControllers: cloud-node", "enabledControllers: must be a list"),
        ("extraArgs: --v=4", "extraArgs: must be a list"),
        ("extraArgs: [4]", "extraArgs[0]: must be a string, but is 4. Quote it"),
        ("extraArgs: [--v=much]", 'extraArgs: --v: "much" is not a whole number'),
        ("extraArgs: [--v]", "extraArgs: --v needs a value"),
        ("extraArgs: [--no-such-flag=1]", "extraArgs: unknown flag --no-such-flag"),
        (
            "extraArgs: ['--authorization-always-allow-paths=/healthz,/metrics']",
            "extraArgs: --authorization-always-allow-paths lacks /livez, /readyz",
        ),
        ("extraArgs: [--help]", "extraArgs: --help and --version end the process"),
        ("extraArgs: [--bus=memory]", "extraArgs: --bus=memory works only with daemonSet.enabled"),
        ("extraArgs: [--csr-in-flight=1]", "(watcher, metadata, labeler). Set it in services.csr.extraArgs"),
        (
            "console: {enabled: true}\nservices: {console: {extraArgs: [--console-prot=1]}}",
            "services.console.extraArgs: unknown flag --console-prot, did you mean --console-port",
        ),
        ("services: {csr: {extraArgs: [--csr-in-flight=x]}}", "services.csr.extraArgs: --csr-in-flight"),
        ("extraEnv: [{name: NATS_URL, value: 'http://n'}]", "extraEnv: --nats-url"),
        ("image: foo", "image: must be a mapping"),
        ("image: {tag: 1.9}", "image.tag: must be a string, but is 1.9. Quote it"),
        ("daemonset: {enabled: true}", "daemonset: the chart rejects this key; did you mean daemonSet?"),
        ("transfomations: []", "transfomations: the chart rejects this key; did you mean transformations?"),
        ("image: {tags: v1}", "image.tags: the chart rejects this key; did you mean tag?"),
        (
            "podLabels: {app.kubernetes.io/name: x}",
            "podLabels.app.kubernetes.io/name: the chart rejects this",
        ),
        (
            "podAnnotations: {prometheus.io/port: 10458}",
            "podAnnotations.prometheus.io/port: must be a string, but is 10458. Quote it",
        ),
        ("nodeSelector: {a: true}", "nodeSelector.a: must be a string, but is true. Quote it"),
        ("resources: {limit: {memory: 1Gi}}", "resources.limit: the chart rejects this key; did you mean"),
        ("image: {repository: 'ghcr.io/siderolabs/talos-cloud-controller-manager:v1'}", "Set your own image"),
        ("talos:", "talos: must be a mapping, but has no value"),
        ("enabledControllers:", "selects no controller"),
        ("replicaCount: 0", "replicaCount: must be at least 1"),
        ("nats: {replica: 3}", "nats.replica: the chart rejects this key; did you mean replicas?"),
        (
            "talos: {enabled: false}\nenabledControllers: [cloud-node]",
            "talos.enabled: false allows node-csr-approval alone",
        ),
        (
            "talos: {enabled: false}\nenabledControllers: [node-csr-approval]",
            "services.csr.extraArgs: --service-cluster-ip-range is missing",
        ),
        ("nats: {enabled: false}", "nats.external.url: is missing"),
        (
            account_with("loadBalancers: {class: a, options: {HCLOUD_LOAD_BALANCERS_LOCATOIN: x}}"),
            "clouds: --load-balancer-option of a: HCLOUD_LOAD_BALANCERS_LOCATOIN: it is not supported; did",
        ),
        (
            account_with("loadBalancers: {default: true, options: {subnet-id: x}}"),
            "a: subnet-id is no option; the options are HCLOUD_LOAD_BALANCERS_ALGORITHM_TYPE, ",
        ),
        (
            account_with("routes: {network: '1', podNetworks: [10.0.0.1/24]}"),
            "clouds: --route-pod-network=a=10.0.0.1/24: the form is",
        ),
        (
            account_with("routes: {network: '1', podNetworks: 10.0.0.0/24}"),
            "clouds[0].routes.podNetworks: must be a list",
        ),
        ("config: {global: {endpoint: a}}", 'config.global has no key "endpoint"'),
        ("console: {traceUrlTemplate: https://traces}", "console.traceUrlTemplate: "),
        ("useDaemonSet: true", "useDaemonSet: makes the installation fail"),
        ("enabledControllers: [cloud-nod]", "enabledControllers: "),
        (
            "transformations: [{labels: {a: '{{ .Nothing }}'}}]",
            'transformations[0].labels["a"] uses .Nothing',
        ),
    ],
)
def test_what_fails_the_install_or_a_process_is_an_error(text: str, mistake: str):
    mistakes, _, _ = found(text)
    assert len(mistakes) == 1
    assert mistake in mistakes[0]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("foo: 1", "foo: has no effect: the chart has no such value"),
        ("enabled: true", "enabled: has no effect: the chart has no such value"),
        ("image: {tag: v1.9}", "image.tag: v1.9 is not a version of this controller"),
        ("extraArgs: ['--controllers=*']", "extraArgs: --controllers: `*` selects"),
        ("extraArgs: ['--controllers=*']", "use enabledControllers"),
        ("extraArgs: [--cluster-name=prod]", "extraArgs: --cluster-name has no effect without"),
        ("extraArgs: [--kube-api-qps=9]", "extraArgs: --kube-api-qps=9 has no effect"),
        ("extraArgs: [--observe-only]\nenabledControllers: [node-csr-approval]", ""),
        ("image: {repository: registry.example.com/ours, tag: v1.9.0}", "image.tag: v1.9.0 is not a version"),
        ("image: {tag: edge}", "image.tag: edge: remove it unless"),
        (
            "transformations: [{features: {publicIPPredict: true}}]",
            "transformations[0].features.publicIPPredict",
        ),
        (
            "resources: {limits: {memory: 80Mi}}",
            "80Mi is less than the peak of 1000 joining nodes: 84 MiB (labeler). The kernel may kill",
        ),
        (
            account_with("loadBalancers: {options: {}}"),
            "clouds: loadBalancers of account a has neither class",
        ),
        ("console: {exposed: {enabled: true}}", "console.exposed.enabled: has no effect without console."),
        ("services: {ipam: {extraArgs: [--x]}}", "services.ipam: has no effect: ipam is not installed"),
        ("nats: {external: {url: 'nats://n'}}", "nats.external.url: has no effect without nats.enabled"),
        (
            "services: {labeler: {extraArgs: [--cluster-cidr=10.0.0.0/8]}}",
            "services.labeler.extraArgs: --cluster-cidr has no effect here: it belongs to another service",
        ),
        (account_with("anchor: ''"), "service-lb-controller has no effect without loadBalancers in clouds"),
        (account_with("anchor: ''"), "node-route-controller has no effect without routes in clouds"),
    ],
)
def test_what_has_no_effect_is_a_warning(text: str, warning: str):
    mistakes, warnings, _ = found(text)
    assert mistakes == []
    assert any(warning in each for each in warnings) or (warning == "" and warnings == [])


@pytest.mark.parametrize(
    "text",
    [
        "image: {repository: registry.example.com/ours, tag: }",
        "image: {repository: registry.example.com/ours, tag: v0.1.0}",
        f"image: {{repository: m.example.com/siderolabs/talos-cloud-controller-manager, digest: '{DIGEST}'}}",
        IMAGE
        + "\nextraArgs: [--allocate-node-cidrs]\nservices: {ipam: {extraArgs: [--pod-cidr-quarantine=2m]}}",
        IMAGE + "\ndaemonSet: {enabled: true}\nextraArgs: [--csr-in-flight=8, --bus=memory]",
        (
            f"{IMAGE}\nconsole: {{enabled: true, {EXPOSED}}}\n"
            "services: {console: {extraArgs: [--console-allowed-host=b.example.com]}}"
        ),
    ],
)
def test_what_works_is_not_complained_of(text: str):
    mistakes, warnings, _ = found(text)
    assert mistakes == []
    assert [each for each in warnings if "another service" in each or "image" in each] == []


@pytest.mark.parametrize("name", ["values.yaml", "ci/ha-values.yaml", "ci/all-in-one-values.yaml"])
def test_values_of_this_chart_are_good(name: str):
    assert found((FOLDER / name).read_text()) == ([], [], [])


def test_a_missing_image_is_a_warning_in_a_release_and_otherwise_not_checked():
    elsewhere, release = "image.repository (required, not set here), ", RELEASE + "spec: {values: {%s}}"
    for text, warnings, is_elsewhere in (
        ("replicaCount: 1", [], True),
        (release % "replicaCount: 1", ["image.repository:"], False),
        (release % f"replicaCount: 1, {IMAGE}", [], False),
        (RELEASE + "spec: {valuesFrom: [{kind: Secret, name: s}]}", [], True),
    ):
        report = check(text)
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
    _, _, differences = found(f"enabledControllers: {written}\n")
    assert [each for each in (ALL, SPOT) if any(each in text for text in differences)] == differs


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "serviceAccount: {create: false, name: ccm}",
            ["ccm-watcher", "ccm-metadata", "ccm-labeler", "ccm-csr", "ccm-nats"],
        ),
        ("serviceAccount: {create: false, name: ccm}\ndaemonSet: {enabled: true}", []),
        ("serviceAccount: {name: ccm}", []),
    ],
)
def test_service_accounts_that_must_exist_are_told(text: str, named: list[str]):
    differences = found(text)[2]
    assert len(differences) == bool(named)
    assert all(name in differences[0] for name in named)


@pytest.mark.parametrize(
    ("selector", "differs"),
    [
        ("labelSelector: {matchLabels: {app.kubernetes.io/name: talos-cloud-controller-manager}}", True),
        ("labelSelector: {matchExpressions: [{key: app.kubernetes.io/instance, operator: Exists}]}", True),
        ("labelSelector: {}", True),
        ("labelSelector: {matchLabels: {app.kubernetes.io/component: watcher}}", False),
        ("labelSelector: {}, matchLabelKeys: [app.kubernetes.io/component]", False),
        ("topologyKey: kubernetes.io/hostname", False),
    ],
)
def test_a_required_anti_affinity_of_all_pods_is_told(selector: str, differs: bool):
    for kind, expected in (("required", differs), ("preferred", False)):
        rule = f"{kind}DuringSchedulingIgnoredDuringExecution: [{{{selector}}}]"
        text = f"affinity: {{podAntiAffinity: {{{rule}}}}}\n"
        assert any("some pods stay Pending" in each for each in found(text)[2]) == expected
        assert found(f"{text}daemonSet: {{enabled: true}}\n")[2] == []


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
    assert checked(text, tmp_path).exit_code in (0, 1)


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
    warnings = check(values).warnings
    assert [each.path for each in warnings if "memory" in each.path] == paths


def keywords(schema: Any) -> set[str]:
    """What the schema uses of JSON Schema."""
    if not isinstance(schema, dict):
        return set()
    nested = (schema.get(each) for each in ("items", "additionalProperties", "propertyNames", "not"))
    below = [*schema.get("properties", {}).values(), *nested, *schema.get("anyOf", ())]
    return set(schema).union(*map(keywords, below))


def test_every_keyword_of_the_schema_is_judged():
    assert keywords(CHART["schema"]) == {
        "$schema", "title", "type", "properties", "additionalProperties", "items", "enum", "pattern",
        "minimum", "maximum", "minLength", "minItems", "propertyNames", "anyOf", "not", "required",
    }  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a values file."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in pairs for place in places(each, (*path, key)))]


VALUES = [
    yaml.safe_load(path.read_text()) or {} for path in [FOLDER / "values.yaml", *(FOLDER / "ci").iterdir()]
]
ODD = st.sampled_from(
    [True, 0, -1, 2, 3.0, 1.5, 70000, "", "x", "1", "true", [], ["x"], [1], [{}], {}, {"x": 1}]
)


def spoil(values: Any, data: st.DataObject, odd: st.SearchStrategy[Any]) -> None:
    """Write something odd to one place of the values."""
    *keys, last = data.draw(st.sampled_from(places(values)[1:] or [("foo",)]))
    for key in keys:
        values = values[key]
    values[last] = copy.deepcopy(data.draw(odd))


@given(st.data())
def test_the_verdict_is_that_of_json_schema(data: st.DataObject):
    values = copy.deepcopy(data.draw(st.sampled_from(VALUES)))
    spoil(values, data, ODD)
    validator = jsonschema.Draft7Validator(CHART["schema"])
    assert bool(check_schema(values).mistakes) == (not validator.is_valid(values)), json.dumps(values)


@given(st.data())
def test_whatever_is_written_somewhere_is_judged(data: st.DataObject):
    values = copy.deepcopy(data.draw(st.sampled_from(VALUES)))
    for _ in range(3):
        spoil(values, data, ODD | st.none() | st.floats() | st.lists(st.text(max_size=20), max_size=3))
    assert check(yaml.safe_dump(values)).not_checked


WORDS = ["--v", "--v=1", "-v2", "--", "-", "--help", "--cloud-config=/x", "--csr-in-flight", "x", "--bus", ""]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=12)), st.booleans())
def test_whatever_flags_are_written_are_judged_and_no_file_is_read(flags: list[str], in_one: bool):
    values = {"extraArgs": flags, "services": {"csr": {"extraArgs": flags}}, "daemonSet": {"enabled": in_one}}
    found = check(json.dumps(values))
    assert not any("/x" in each.problem and "read" in each.problem for each in found.mistakes)
