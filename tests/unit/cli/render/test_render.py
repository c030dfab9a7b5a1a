"""`talos-ccm render`: files of facts, what it shows of rules on nodes, what changes do, and how it ends."""

import json
import re
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from cli.__main__ import main
from cli.cluster.machine_events import make_enriched
from cli.render import output
from cli.render.compiled_config import compile_config
from cli.render.facts_file import FactsError, encode_facts, load_samples, parse_facts
from cli.render.preview import apply_config, compare, preview_node
from libs.common.contract.events import encode
from libs.common.contract.node import Node
from tests.address_cases import on_link
from tests.architecture.sources import ROOT
from tests.builders import NOW, make_facts, make_node, make_node_enriched
from tests.cli_snapshots import TEXTS, render_lines
from tests.in_memory_api import apply_json_patch, apply_status_patch
from tools.platform_samples import render_samples

RULES, CHANGED = TEXTS / "rules.yaml", TEXTS / "rules-changed.yaml"
OLD = compile_config(RULES.read_bytes(), "rules.yaml")
NEW = compile_config(CHANGED.read_bytes(), "rules-changed.yaml")


def render(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["render", *map(str, arguments)])


@pytest.mark.parametrize("platform", ["nocloud", "metal", "container"])
def test_each_rule_says_why_it_matched_and_what_it_gave(platform: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(TEXTS)
    result = render("rules.yaml", "--sample", platform)
    assert result.stdout == (TEXTS / f"render-{platform}.txt").read_text()
    assert (result.exit_code, result.stderr) == (0, "")


def test_a_change_is_shown_for_each_node_before_it_is_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(TEXTS)
    platforms = ("aws", "container", "hcloud", "metal", "nocloud", "vultr")
    samples = [f"--sample={platform}" for platform in platforms]
    result = render("rules-changed.yaml", "--against", "rules.yaml", *samples)
    assert result.stdout == (TEXTS / "render-against.txt").read_text()
    assert result.exit_code == 0


def test_the_preview_has_the_external_ips_that_the_file_selects():
    addresses = on_link("eth0", "10.0.0.5", "203.0.113.7", "100.64.0.7")
    described = make_enriched(make_node(), make_facts(addresses=addresses), NOW)
    for settings, expected in (
        ("{}", ["203.0.113.7"]),
        ("{discovery: false}", []),
        ("{includeCIDRs: [100.64.0.0/10]}", ["100.64.0.7"]),
    ):
        used = compile_config(f"global: {{externalIPs: {settings}}}", "f")
        after = preview_node(described, used, now=NOW).after.status.addresses
        assert [each.address for each in after if each.type == "ExternalIP"] == expected


def test_several_nodes_end_with_totals():
    several = render(RULES, "--sample", "metal", "--sample", "nocloud").stdout.splitlines()
    assert several[-1] == "2 nodes: 2 would change"
    assert "    - taint node.cloudprovider.kubernetes.io/uninitialized:NoSchedule: 2 nodes" in several
    assert "would change" not in render(RULES, "--sample", "metal").stdout


def test_the_exit_status_tells_of_changes_when_asked_for():
    nothing = render(RULES, "--against", RULES, "--all-samples", "--exit-code")
    assert nothing.stdout == f"No node would change from {RULES} to {RULES}\n"
    assert nothing.exit_code == 0
    assert render(CHANGED, "--against", RULES, "--sample", "metal", "--exit-code").exit_code == 1
    assert render(RULES, "--sample", "metal", "--exit-code").exit_code == 1


@pytest.mark.parametrize("width", [80, 200])
def test_on_a_terminal_no_line_is_wider_than_it(width: int):
    nodes = list(load_samples().values())
    lines = [*output.format_comparison(compare(nodes, OLD, NEW))]
    for node in nodes:
        lines += output.format_preview(preview_node(node, OLD, now=NOW), OLD)
    assert max(map(len, render_lines(lines, width).splitlines())) <= width


def test_json_holds_the_patches_that_would_be_sent():
    result = render(RULES, "--sample", "hcloud", "-o", "json")
    (node,) = json.loads(result.stdout)["nodes"]
    described = load_samples()["hcloud"]
    document = apply_status_patch(json.loads(msgspec.json.encode(described.node)), node["statusPatch"])
    document = apply_json_patch(document, node["patch"])
    assert msgspec.convert(document, Node) == preview_node(described, OLD, now=NOW).after
    web, _, clean = node["rules"]
    assert (web["rule"], web["matched"], clean["entries"][0]["template"]) == (
        "web",
        True,
        "{{ .ProductName }}",
    )


def test_json_of_a_change_names_the_nodes_that_change_and_the_others():
    result = render(CHANGED, "--against", RULES, "--all-samples", "-o", "json")
    told = json.loads(result.stdout)
    metal = next(node for node in told["nodes"] if node["name"] == "metal-1")
    assert {"kind": "taint", "key": "dedicated:NoSchedule", "before": "metal", "after": "web"} in metal[
        "changes"
    ]
    assert told["unchanged"] == []
    assert told["leftOut"] == []


def test_what_somebody_else_has_changed_is_not_a_change_of_the_file():
    node = apply_config(load_samples()["metal"], OLD).node
    labels = {**node.labels, "example.com/clean": "mine"}
    theirs = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))
    comparison = compare([make_enriched(theirs, load_samples()["metal"].facts, NOW)], OLD, NEW)
    (difference,) = comparison.different
    assert "example.com/clean" not in [change.key for change in difference.changes]


def test_nodes_with_the_same_changes_stand_together_and_are_counted():
    names = [f"n-{number:02}" for number in range(30)]
    nodes = [make_enriched(make_node(name), make_facts(node_name=name, zone="z1"), NOW) for name in names]
    other = make_enriched(make_node("o"), make_facts(node_name="o", platform="aws"), NOW)
    zoned = "nodeSelector: [{matchExpressions: [{key: zone, operator: Exists}]}]"
    new = compile_config(f"transformations: [{{{zoned}, labels: {{a: b}}}}]", "new.yaml")
    configs = (compile_config("{}", "old.yaml"), new)
    lines = [line.text.plain for line in output.format_comparison(compare([*nodes, other], *configs))]
    assert lines == [
        "n-00, n-01, n-02, n-03, n-04, n-05, n-06, n-07 and 22 more  30 nodes",
        "+ label a = b",
        "",
        "30 of 31 nodes would change from old.yaml to new.yaml",
    ]


def test_facts_of_a_file_are_rendered(tmp_path: Path):
    file = tmp_path / "nodes.json"
    first = render(RULES, "--sample", "hcloud", "--sample", "aws", "--save-facts", file)
    result = render(RULES, "--facts", file)
    assert (result.exit_code, result.stdout) == (0, first.stdout)
    assert "hcloud-1  hcloud" in result.stdout
    assert "aws-1  aws" in result.stdout


def test_facts_that_lack_what_a_rule_asks_for_leave_it_unjudged(tmp_path: Path):
    file = tmp_path / "node.yaml"
    file.write_text("facts: {platform: {platform: metal}, node_name: m, node_ip: 10.0.0.1}")
    result = render(RULES, "--facts", file)
    assert "Rule web cannot be evaluated: " in result.stdout


def test_what_a_machine_says_does_not_steer_the_terminal(tmp_path: Path):
    file = tmp_path / "node.json"
    platform = {"platform": "metal", "zone": "\x1b]0;owned\x07é\u202e"}
    machine = {"platform": platform, "node_name": "m\x9b", "node_ip": "10.0.0.1"}
    file.write_text(json.dumps([{"facts": machine}]))
    as_text, as_json = render(RULES, "--facts", file), render(RULES, "--facts", file, "-o", "json")
    assert "]0;owned" in as_text.stdout
    assert all(line.isprintable() for line in (as_text.stdout + as_json.stdout).splitlines())
    assert json.loads(as_json.stdout)["nodes"][0]["name"] == "m\x9b"
    twice = render(RULES, "--facts", file, "--facts", file)
    assert (twice.exit_code, twice.stderr) == (
        2,
        "Error: node m\N{REPLACEMENT CHARACTER} is given more than once\n",
    )


def test_a_source_that_never_ends_is_not_read_for_ever():
    result = render(RULES, "--facts", "/dev/zero")
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: /dev/zero: larger than 256 MiB\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([RULES], "no nodes selected"),
        (
            [RULES, "--sample", "moon"],
            f"--sample moon: no such platform; available: {', '.join(sorted(load_samples())[:3])}",
        ),
        (["none.yaml", "--sample", "metal"], "none.yaml: cannot be read: No such file or directory"),
        (
            [TEXTS / "mistaken.yaml", "--sample", "metal"],
            'line 11: transformations[1] has no key "nodeSelectr"',
        ),
        ([RULES, "--against", "none.yaml", "--sample", "metal"], "none.yaml: cannot be read"),
        ([RULES, "--sample", "metal", "--sample", "metal"], "node metal-1 is given more than once"),
        (["-", "--against", "-", "--sample", "metal"], "standard input can be used for one file only"),
        ([RULES, "--facts", RULES], "rules.yaml: it has no machine facts"),
        ([RULES, "--sample", "metal", "--save-facts", "/no/such/place"], "/no/such/place: cannot be written"),
    ],
)
def test_what_cannot_be_shown_ends_with_2_and_says_why(arguments: list[str | Path], said: str):
    result = render(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_the_example_of_the_rules_page_gives_what_stands_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    section = (ROOT / "docs" / "rules.md").read_text().partition("## Preview rules")[2]
    found = re.search(r"```yaml\n(.*?)```.*?`talos-ccm (.*?)`.*?```text\n(.*?)```", section, re.DOTALL)
    assert found
    rules, command, gives = found.groups()
    monkeypatch.chdir(tmp_path)
    Path("ccm-config.yaml").write_text(rules)
    assert CliRunner().invoke(main, command.split()).stdout == gives


def test_samples_are_listed_without_a_file():
    result = render("--list-samples")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.splitlines()]
    assert listed == ["PLATFORM", *load_samples()]


MINIMAL = b"facts: {platform: {platform: hcloud, zone: fsn1}, node_name: web-1, node_ip: 10.0.0.5}"


def test_a_stored_message_is_a_facts_file():
    node, facts = make_node(), make_facts(platform="hcloud")
    (read,) = parse_facts(encode(make_node_enriched(node, facts)))
    assert (read.node, read.facts, read.verified_by) == (node, facts, "nodename")


def test_several_messages_one_a_line_are_a_facts_file():
    messages = [
        encode(make_node_enriched(make_node(name), make_facts(node_name=name))) for name in ("a", "b")
    ]
    assert [each.node.name for each in parse_facts(b"\n".join(messages))] == ["a", "b"]


def test_without_a_node_it_is_what_the_machines_kubelet_would_register():
    (read,) = parse_facts(MINIMAL)
    assert (read.node.name, read.node.provided_node_ip, read.node.is_initialized) == (
        "web-1",
        "10.0.0.5",
        False,
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"nodes: []", "it is empty"),
        (b"3", "expected one node"),
        (b"- {facts: {}}\n- 3", "[0]: "),
        (b"{}", "it has no machine facts"),
        (b"facts: 3", "Expected `object`, got `int` - at `$.facts`"),
        (b"facts: {platform: {platform: 3}}", "at `$.facts.platform.platform`"),
        (b"facts: {platfrm: {}}", "facts.platfrm is not a machine fact"),
        (b"facts: {platform: {zones: x}}", "facts.platform.zones is not a machine fact"),
        (
            b"facts: {inventory: {processors: {core: 1}}}",
            "facts.inventory.processors.core is not a machine fact",
        ),
        (b"facts: {addresses: [{ip: x}]}", "facts.addresses[0].ip is not a machine fact"),
        (b"facts: {platform: {platform: metal}, node_ip: 10.0.0.1}", "must contain node_name and node_ip"),
        (b"- [", "it is neither JSON nor YAML: line"),
    ],
)
def test_what_describes_no_node_is_refused_with_what_was_expected(content: bytes, reason: str):
    with pytest.raises(FactsError) as refused:
        parse_facts(content)
    assert reason in str(refused.value)


@given(
    st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: repr(v).encode())
)
def test_any_bytes_are_nodes_or_refused(content: bytes):
    with suppress(FactsError):
        assert parse_facts(content)


def test_the_samples_are_those_of_the_testbed():
    stale = "stale: make render-samples"
    assert (ROOT / "cli" / "render" / "samples.json").read_text() == render_samples(), stale


def test_a_sample_can_be_written_to_a_facts_file_and_read_again():
    nodes = tuple(load_samples().values())
    assert parse_facts(encode_facts(nodes)) == nodes
