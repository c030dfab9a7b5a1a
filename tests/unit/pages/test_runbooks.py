"""Each alert reads metrics that there are and has a runbook and a trial; each stuck Node has its words."""

import ast
import re
from typing import Final

import click
import msgspec
import pytest

from cli.__main__ import main
from cli.doctor.command import CHECK_NAMES as CHECKS
from cli.explain.node.cloud_state import RELEASES
from libs.common.contract.fault_texts import FAULT_BY_BLOCK_REASON, FAULT_TEXTS
from libs.common.contract.machine import FAULT_KINDS
from libs.common.contract.services import SERVICES
from libs.testbed.helm.chart import parse_manifests
from services.lifecycle.core.instance_evidence import CLAUSES, needs_gone
from tests.architecture.sources import ROOT, sources
from tests.tables import naming
from tools.registered_metrics import list_series

FOLDER: Final = ROOT / "deploy" / "k8s" / "chart" / "files" / "observability"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
HEADINGS: Final = ["What it means", "How to see it", "What to do"]


def groups():
    return msgspec.yaml.decode((FOLDER / "rules.yaml").read_text())["groups"]


RULES: Final = {rule["alert"]: rule for group in groups() for rule in group["rules"]}
PAGES: Final = {page.stem: page.read_text() for page in RUNBOOKS.glob("*.md") if page.stem != "README"}
INDEX: Final = (RUNBOOKS / "README.md").read_text()
TRIALS: Final = msgspec.yaml.decode((ROOT / "tests" / "observe" / "rules_test.yaml").read_text())
RELEASE: Final = "talos-cloud-controller-manager"
INSTALLED: Final = {
    each["metadata"]["name"]
    for each in parse_manifests((ROOT / "deploy/k8s/manifests/cloud-controller-manager.yml").read_text())
} | {f"{RELEASE}-{wiring.service}" for wiring in SERVICES}
WORKLOADS: Final = {("deployment", service) for service in ("nats", *(each.service for each in SERVICES))}
every_alert = pytest.mark.parametrize("alert", sorted(RULES))


SERIES: Final = list_series() | {"ALERTS": {"alertname", "alertstate", "severity"}}


def named_in(expression: str) -> list[tuple[str, set[str]]]:
    """Each metric of an expression, with the labels that it is selected by."""
    selected = re.findall(
        r"\b((?:talosccm|node_\w+?_controller|node_controller)_\w+)(\{[^}]*\})?", expression
    )
    return [(name, set(re.findall(r"(\w+)\s*[=!]", labels))) for name, labels in selected]


@every_alert
def test_an_alert_reads_only_metrics_and_labels_that_the_code_has(alert: str):
    expression = RULES[alert]["expr"]
    named = named_in(expression)
    assert named
    for name, labels in named:
        assert labels <= SERIES[name], name
    without_labels = re.sub(r"\{[^}]*\}|(?:by|on) \([^)]*\)|\[[^]]*\]", "", expression)
    words = set(re.findall(r"[a-zA-Z_]\w{3,}", without_labels))
    functions = {"absent", "count", "histogram_quantile", "increase", "max_over_time", "offset", "rate"}
    functions |= {"time", "unless"}
    assert words <= functions | {name for name, _ in named}, "a metric that is not ours"


@every_alert
def test_what_an_alert_tells_are_labels_that_are_left_to_it(alert: str):
    expression = RULES[alert]["expr"]
    has = {label for name, _ in named_in(expression) for label in SERIES[name]} | {"instance"}
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    assert all(set(by.split(", ")) <= has for by in grouped)
    if grouped:
        has = {label for by in grouped for label in by.split(", ")}
    elif re.match(r"(max|absent)\(", expression):
        has = set()
    told = set(re.findall(r"\$labels\.(\w+)", str(RULES[alert]["annotations"])))
    assert told <= has


@every_alert
def test_an_alert_says_how_grave_it_is_and_where_its_runbook_is(alert: str):
    rule = RULES[alert]
    assert alert.startswith("TalosCCM")
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{alert}.md"
    assert f"| [{alert}]({alert}.md) | {rule['labels']['severity']} |" in INDEX


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    assert set(PAGES) == set(RULES)
    assert len(RULES) == sum(len(group["rules"]) for group in groups())
    assert INDEX.count("\n| [") == len(RULES)


@every_alert
def test_a_runbook_says_what_it_means_how_to_see_it_and_what_to_do(alert: str):
    page = PAGES[alert]
    assert page.startswith(f"# {alert}\n")
    parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    assert parts[1::2] == HEADINGS
    assert all(part.strip() for part in parts[2::2])


@every_alert
def test_the_commands_and_links_of_a_runbook_exist(alert: str):
    page = PAGES[alert]
    for words in re.findall(r"talos-ccm ((?:explain|status|render|config|doctor|demo)[^`\n|#]*)", page):
        command: click.Command = main
        arguments = words.split()
        while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
            command = command.commands[arguments.pop(0)]
        assert not isinstance(command, click.Group) or command.invoke_without_command, words
        flags = {name for option in command.params for name in option.opts}
        assert {each for each in arguments if each.startswith("--")} <= flags, words
        assert set(re.findall(r"--only (\S+)", words)) <= set(CHECKS), words
    assert "talos-ccm inside" not in page, "what it says is for other commands, not for people"
    for target in re.findall(r"\]\(([^)#]+)", page):
        assert (RUNBOOKS / target).exists(), target


@every_alert
def test_the_objects_that_a_runbook_names_are_those_that_are_installed(alert: str):
    named = set(re.findall(rf"{RELEASE}[-\w]*", PAGES[alert]))
    assert named <= INSTALLED | {f"{RELEASE}-nats-ca"}  # which the bootstrap of NATS makes
    for kind, name in re.findall(rf"\b(deployment|statefulset|pod)[/ ]({RELEASE}[-\w]*)", PAGES[alert]):
        assert (kind, name.removeprefix(f"{RELEASE}-")) in WORKLOADS, f"there is no {kind} {name}"


@every_alert
def test_a_trial_fires_each_alert_and_has_it_quiet(alert: str):
    trials = [trial for trial in TRIALS["tests"] if trial["name"] == alert]
    assert trials
    for trial in trials:
        told = [each["exp_samples"] for each in trial["promql_expr_test"]]
        assert [] in told
        assert any(f'alertname="{alert}"' in sample["labels"] for samples in told for sample in samples)
        for given in trial["input_series"]:
            for name, labels in named_in(given["series"]):
                assert labels <= SERIES[name] | {"instance"}


def test_the_trials_are_of_the_alerts():
    assert {trial["name"] for trial in TRIALS["tests"]} == set(RULES)
    assert TRIALS["rule_files"] == ["../../deploy/k8s/chart/files/observability/rules.yaml"]


# ---- stuck Nodes


STUCK_NODES: Final = (ROOT / "docs" / "stuck-nodes.md").read_text()
BY_MACHINE_REASON: Final = {kind.block_reason: kind.text for kind in FAULT_KINDS.values()}
GIVEN: Final = {
    "node": "web-5",
    "ip": "10.0.0.5",
    "detail": "...",
    "namespace": "kube-system",
    "csr": "csr-x7k2p",
    "account": "prod",
    "server": "hcloud://4711",
    "release": "...",
}


def constants(module: str) -> set[str]:
    [source] = [each for each in sources("cli", "services") if each.module == module]
    return {
        node.value for node in source.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_the_page_tells_it_in_the_words_of_the_command():
    for fault in FAULT_TEXTS:
        with naming(fault):
            section = STUCK_NODES.partition(f"\n### `{fault}`\n")[2].partition("\n### ")[0]
            words = FAULT_TEXTS[fault]
            given = GIVEN | {"service": words.service}
            assert f"\n{words.cause.format(**given)}\n{words.fix.format(**given)}\n" in section


def test_the_page_has_what_releases_a_node_that_a_clause_keeps():
    rows = STUCK_NODES.partition("\n### `instance-gone-kept`\n")[2].partition("\n### ")[0]
    assert set(RELEASES) == set(CLAUSES) - {
        needs_gone
    }  # an account that does not report it: instance-unknown
    for release in RELEASES.values():
        with naming(release):
            assert f"| {release.format(**GIVEN)} |" in rows


def test_the_page_has_no_other_fault():
    assert sorted(re.findall(r"^### `([\w-]+)`$", STUCK_NODES, re.MULTILINE)) == sorted(FAULT_TEXTS)


def test_each_fault_is_told_by_somebody():
    code = constants("cli.explain.node.node_verdict") | constants("cli.explain.node.cloud_state")
    told = code | set(BY_MACHINE_REASON.values()) | set(FAULT_BY_BLOCK_REASON.values())
    assert set(FAULT_TEXTS) <= told


def test_whatever_a_machine_or_the_labeler_calls_a_fault_has_its_words():
    named = constants("services.labeler.core.blocker")
    said = {each for each in named if re.fullmatch(r"([A-Z][A-Za-z]+){2,}", each)}
    assert said - set(BY_MACHINE_REASON) == set(FAULT_BY_BLOCK_REASON)
    assert {*BY_MACHINE_REASON.values(), *FAULT_BY_BLOCK_REASON.values()} <= set(FAULT_TEXTS)


def test_the_page_leads_from_each_reason_of_the_condition_to_its_fault():
    rows = STUCK_NODES.partition("\n## Reasons of the condition\n")[2].partition("\n## ")[0]
    linked = re.findall(r"^\| `(\w+)` \| \[`([\w-]+)`\]\(#([\w-]+)\) \|$", rows, re.MULTILINE)
    expected = {**BY_MACHINE_REASON, **FAULT_BY_BLOCK_REASON}.items()
    assert sorted(linked) == sorted((reason, fault, fault) for reason, fault in expected)
