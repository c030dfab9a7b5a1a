"""`talos-ccm config check`: what it says of a file, and how it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.__main__ import main
from cli.config.config_check import check_config
from libs.common.contract.platforms import PLATFORMS
from tests.cli_snapshots import TEXTS

GOOD = """\
transformations:
  - name: web
    labels: {example.com/platform: "{{ .Platform }}"}
"""


def checked(tmp_path: Path, content: str, *options: str) -> Result:
    file = tmp_path / "ccm.yaml"
    file.write_text(content)
    return CliRunner().invoke(main, ["config", "check", *options, str(file)])


def lines(result: Result, kind: str) -> list[str]:
    """Return the findings of that kind: line and message."""
    found = [line.split(f": {kind}: ") for line in result.stdout.splitlines() if f": {kind}: " in line]
    return [f"{where.rpartition(':')[2]} {words}" for where, words in found]


@pytest.mark.parametrize(("name", "status"), [("mistaken", 1), ("migrated", 0)])
def test_everything_is_told_at_once_with_its_line_path_and_rule(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch
):
    """mistaken: every kind of mistake that only trying a template shows. migrated: every difference to the
    reference, with what follows from it.
    """
    monkeypatch.chdir(TEXTS)
    result = CliRunner().invoke(main, ["config", "check", f"{name}.yaml"])
    assert result.stdout == (TEXTS / f"{name}.txt").read_text()
    assert result.exit_code == status


def test_differences_from_the_reference_can_be_left_out_and_warnings_can_fail():
    options = ["--no-differences", "--strict"]
    result = CliRunner().invoke(main, ["config", "check", *options, str(TEXTS / "migrated.yaml")])
    assert "differs" not in result.stdout
    assert "reference" not in result.stdout
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("template", "selected", "warned"),
    [
        ('vm://c/{{ regexReplaceAll .Hostname "vm" "$1" }}', "hostname: metal-.*", True),  # swapped arguments
        ("vm://c/7", "platform: metal", True),
        ("vm://c/{{ .Zone }}/{{ .InstanceType }}", "platform: aws", True),
        ("vm://c/7", "hostname: ^metal-[0-9]*1$", False),  # a rule for one machine
        ('vm://c/{{ regexReplaceAll "^.*-" .Hostname "" }}', "hostname: metal-.*", False),
        ("vm://c/{{ .UUID }}", "platform: .*", False),
        ("vm://c/{{ .Tags.team }}", "platform: aws", False),  # tags differ between machines
    ],
)
def test_a_provider_id_that_is_the_same_for_every_machine_is_a_warning(
    tmp_path: Path, template: str, selected: str, warned: bool
):
    key, _, pattern = selected.partition(": ")
    rule = {
        "nodeSelector": [{"matchExpressions": [{"key": key, "operator": "Regexp", "values": [pattern]}]}],
        "platformMetadata": {"ProviderID": template},
    }
    found = lines(checked(tmp_path, json.dumps({"transformations": [rule]})), "warning")
    assert any("only one Node can have a providerID" in each for each in found) is warned


@pytest.mark.parametrize(
    ("rule", "warned"),
    [
        ("labels: {a: '{{ .ProductName }}'}", "a label value consists of letters"),
        ("annotations: {a: '{{ printf \"%2000s\" .Hostname }}'}", "at most 1024 characters"),
        ("taints: {a: '{{ .ProductName }}:NoSchedule'}", "a taint is value:Effect"),
        ("platformMetadata: {region: '{{ .ProductName }}'}", "would make it 'PowerEdge-R650'"),
        ("sanitize: true, platformMetadata: {region: '{{ .ProductName }}'}", ""),
        ("platformMetadata: {internalDNS: '{{ .ProductName }}'}", ""),
    ],
)
def test_a_rule_that_selects_metal_by_its_hostname_is_tried_as_the_labeler_applies_it(
    tmp_path: Path, rule: str, warned: str
):
    """Metal reports no hostname: the rules see the Node's name."""
    selector = "nodeSelector: [{matchExpressions: [{key: hostname, operator: In, values: [metal-1]}]}]"
    result = checked(tmp_path, f"transformations: [{{{selector}, {rule}}}]\n")
    found = lines(result, "warning")
    assert [warned in line and "machine of metal and is skipped there" in line for line in found] == (
        [True] if warned else []
    )


def test_a_template_that_fails_on_a_platform_that_its_rule_is_about_is_a_warning(tmp_path: Path):
    template = "transformations:\n  - labels: {a: '{{ slice .Zone 0 2 }}'}\n"
    result = checked(tmp_path, template)
    assert result.exit_code == 0
    (warning,) = lines(result, "warning")
    assert warning.startswith('2 transformations[0].labels["a"] cannot be rendered for a machine of akamai, ')


def test_a_template_that_fails_only_where_its_rule_does_not_match_is_good(tmp_path: Path):
    content = """
transformations:
  - nodeSelector: [{matchExpressions: [{key: zone, operator: Regexp, values: ["^..."]}]}]
    labels: {a: "{{ slice .Zone 0 2 }}"}
"""
    result = checked(tmp_path, content, "--strict")
    assert result.exit_code == 0, result.stdout


def test_json_says_the_same(tmp_path: Path):
    result = checked(tmp_path, (TEXTS / "mistaken.yaml").read_text(), "-o", "json")
    (file,) = json.loads(result.stdout)["files"]
    assert not file["usable"]
    assert [error["line"] for error in file["errors"]] == [6, 7, 8, 9, 10, 11, 14, 15, 16, 18, 19, 20]
    assert file["errors"][0] == {
        "line": 6,
        "path": 'transformations[0].labels["example.com/zone"]',
        "rule": "web",
        "message": "uses .Zoone, which no machine has; did you mean Zone?",
    }


def test_a_file_that_cannot_be_read_ends_with_2_and_the_others_are_checked(tmp_path: Path):
    good = tmp_path / "good.yaml"
    good.write_text(GOOD)
    result = CliRunner().invoke(main, ["config", "check", str(tmp_path / "none.yaml"), str(good)])
    assert result.exit_code == 2
    assert "good.yaml: 1 rule, no errors" in result.stdout
    assert result.stderr.endswith(f"{tmp_path}/none.yaml: cannot be read: No such file or directory\n")


@pytest.mark.parametrize("content", ["[", "a: &a [*a]", "\x00", "transformations: 3", "- 1"])
def test_what_is_no_config_file_at_all_is_an_error_and_no_traceback(content: str):
    result = CliRunner().invoke(main, ["config", "check", "-"], input=content)
    assert result.exit_code == 1
    assert ": error: " in result.stdout


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_templates_are_tried_on_a_machine_of_every_platform(platform: str):
    template = '{{ if eq .Platform "PLATFORM" }}{{ upper }}{{ end }}'.replace("PLATFORM", platform)
    content = f"transformations:\n  - labels: {{a: '{template}'}}\n"
    (mistake,) = check_config(content, "f").mistakes
    assert "wrong number of args for upper" in mistake.problem


OF_VALUES = ("looks like a values file of the chart: add --chart-values",)
OF_OBJECT = ("HelmRelease or an Application: add --chart-values", "ConfigMap: give the text of its key")


@pytest.mark.parametrize(
    ("content", "hints", "errors"),
    [
        ("image: {tag: v1}\n", OF_VALUES, 2),
        ("transformations: []\nreplicaCount: 2\n", OF_VALUES, 2),
        ("apiVersion: example.com/v1\nkind: HelmRelease\nspec: {}\n", OF_OBJECT, 1),  # none for its keys
        ("glob: {}\n", (), 1),
    ],
)
def test_a_file_of_another_kind_gets_a_hint(
    content: str, hints: tuple[str, ...], errors: int, tmp_path: Path
):
    result = checked(tmp_path, content)
    first, *others = lines(result, "error")
    assert (result.exit_code, len(others)) == (1, errors - 1)
    assert all(hint in first for hint in hints)
    assert ("--chart-values" in first) == bool(hints)


@pytest.mark.parametrize(
    ("key", "fact"),
    [
        ("topology.kubernetes.io/region", "region"),
        ("failure-domain.beta.kubernetes.io/zone", "zone"),
        ("node.kubernetes.io/instance-type", "instancetype"),
        ("kubernetes.io/hostname", "nodename"),
        ("node.cloudprovider.kubernetes.io/platform", "platform"),
        ("node.cloudprovider.kubernetes.io/lifecycle", "spot"),
        ("node-role.kubernetes.io/control-plane", "machinetype"),
    ],
)
def test_a_selector_with_the_label_of_a_fact_is_an_error_that_names_the_fact(
    key: str, fact: str, tmp_path: Path
):
    selector = f"nodeSelector: [{{matchExpressions: [{{key: {key}, operator: Exists}}]}}]"
    result = checked(tmp_path, f"transformations: [{{{selector}, labels: {{a: b}}}}]\n")
    (error,) = lines(result, "error")
    assert error.endswith(
        f'names "{key}", an unknown fact, which is absent on every machine; did you mean {fact}?'
    )
    assert (result.exit_code, lines(result, "warning")) == (1, [])
