"""`talos-ccm config check --chart-values`: types, image and flags."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cli.__main__ import main
from cli.config.chart_schema import CHART, check_schema
from cli.config.chart_values import check_values
from libs.testbed.helm.renders import EMBEDDED, render_embedded
from tests.architecture.sources import ROOT

FOLDER = ROOT / "deploy" / "k8s" / "chart"
DIGEST = "sha256:" + "0" * 64
OURS = "image: {repository: registry.example.com/ours}\n"
PATHS = "--authorization-always-allow-paths=/healthz,/metrics"


def test_the_embedded_chart_is_the_chart():
    assert EMBEDDED.read_text() == render_embedded(), (
        "run `make manifests`, look at the difference, and commit it"
    )


def checked(text: str) -> tuple[list[str], list[str]]:
    """Mistakes and warnings."""
    found = check_values(text, "f")
    mistakes, warnings = ([f"{e.path} {e.problem}" for e in of] for of in (found.mistakes, found.warnings))
    return mistakes, warnings


def test_values_that_crash_every_pod_are_refused(tmp_path: Path):
    file = tmp_path / "values.yaml"
    file.write_text(f"daemonSet: {{enable: true}}\nextraArgs: ['{PATHS}', --no-such-flag=1]\n")
    result = CliRunner().invoke(main, ["config", "check", "--chart-values", str(file)])
    assert result.exit_code == 1
    assert "error: daemonSet.enable: the chart rejects this key; did you mean enabled?" in result.stdout
    assert "error: extraArgs: unknown flag --no-such-flag" in result.stdout
    assert "error: extraArgs: --authorization-always-allow-paths lacks /livez, /readyz" in result.stdout
    assert "not checked: image.repository (required, not set here), files that flags or" in result.stdout


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("enabledControllers: cloud-node", "enabledControllers: must be a list"),
        ("extraArgs: --v=4", "extraArgs: must be a list"),
        ("extraArgs: [4]", "extraArgs[0]: must be a string, but is 4. Quote it"),
        ("extraArgs: [--v=much]", 'extraArgs: --v: "much" is not a whole number'),
        ("extraArgs: [--v]", "extraArgs: --v needs a value"),
        ("extraArgs: [--help]", "extraArgs: --help and --version end the process"),
        ("extraArgs: [--bus=memory]", "extraArgs: --bus=memory works only with daemonSet.enabled"),
        ("extraArgs: [--csr-in-flight=1]", "(watcher, metadata, labeler). Set it in services.csr.extraArgs"),
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
    ],
)
def test_what_fails_the_install_or_a_process_is_an_error(text: str, mistake: str):
    mistakes, _ = checked(text)
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
    ],
)
def test_what_has_no_effect_is_a_warning(text: str, warning: str):
    mistakes, warnings = checked(text)
    assert mistakes == []
    assert any(warning in each for each in warnings) or (warning == "" and warnings == [])


@pytest.mark.parametrize(
    "text",
    [
        "image: {repository: registry.example.com/ours, tag: }",
        "image: {repository: registry.example.com/ours, tag: v0.1.0}",
        f"image: {{repository: m.example.com/siderolabs/talos-cloud-controller-manager, digest: '{DIGEST}'}}",
        OURS
        + "extraArgs: [--allocate-node-cidrs]\nservices: {ipam: {extraArgs: [--pod-cidr-quarantine=2m]}}",
        OURS + "daemonSet: {enabled: true}\nextraArgs: [--csr-in-flight=8, --bus=memory]",
    ],
)
def test_what_works_is_not_complained_of(text: str):
    mistakes, warnings = checked(text)
    assert mistakes == []
    assert [each for each in warnings if "another service" in each or "image" in each] == []


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
        "minimum", "maximum", "minLength", "minItems", "propertyNames", "anyOf", "not",
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


@given(st.data())
def test_the_verdict_is_that_of_json_schema(data: st.DataObject):
    values = copy.deepcopy(data.draw(st.sampled_from(VALUES)))
    place = data.draw(st.sampled_from(places(values)[1:] or [("foo",)]))
    holder = values
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = copy.deepcopy(data.draw(ODD))
    validator = jsonschema.Draft7Validator(CHART["schema"])
    assert bool(check_schema(values).mistakes) == (not validator.is_valid(values)), json.dumps(values)


@given(st.data())
def test_whatever_is_written_somewhere_is_judged(data: st.DataObject):
    values = copy.deepcopy(data.draw(st.sampled_from(VALUES)))
    for _ in range(3):
        place = data.draw(st.sampled_from(places(values)[1:] or [("foo",)]))
        holder = values
        for key in place[:-1]:
            holder = holder[key]
        odd = data.draw(ODD | st.none() | st.floats() | st.lists(st.text(max_size=20), max_size=3))
        holder[place[-1]] = copy.deepcopy(odd)
    assert check_values(yaml.safe_dump(values), "f").not_checked


WORDS = ["--v", "--v=1", "-v2", "--", "-", "--help", "--cloud-config=/x", "--csr-in-flight", "x", "--bus", ""]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=12)), st.booleans())
def test_whatever_flags_are_written_are_judged_and_no_file_is_read(flags: list[str], in_one: bool):
    values = {"extraArgs": flags, "services": {"csr": {"extraArgs": flags}}, "daemonSet": {"enabled": in_one}}
    found = check_values(json.dumps(values), "f")
    assert not any("/x" in each.problem and "read" in each.problem for each in found.mistakes)
