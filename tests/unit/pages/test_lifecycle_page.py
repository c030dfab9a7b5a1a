"""docs/lifecycle.md says what is true: flags, Events, outcomes, metrics and times are those of the code."""

import ast
import re
from typing import Final

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.cloud_config.model import Ownership
from libs.common.contract.controllers import CSR_APPROVAL, NODE_LIFECYCLE
from libs.common.contract.services import LIFECYCLE, LIFECYCLE_LEASE_NAME
from libs.common.observability import metrics
from libs.common.settings.flags import LIFECYCLE as GROUP
from libs.common.settings.read_settings import list_options
from services.lifecycle import node_deleter
from services.lifecycle.decide import REPLACED, SPOT, DeletionPolicy
from services.lifecycle.deletion_limit import ANNOTATION
from services.lifecycle.gcp_spot import MIN_AGE, NOT_READY_TAINT
from services.lifecycle.settings import LifecycleSettings
from services.lifecycle.shutdown_taint import SHUTDOWN_TAINT
from tests.architecture.sources import ROOT, sources
from tests.unit.cli.explain.node.test_node import explained, shown

PAGE: Final = (ROOT / "docs" / "lifecycle.md").read_text()
SETTINGS: Final = LifecycleSettings()


def named(text: str) -> list[str]:
    """What stands in the first column of its tables."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def in_words(seconds: float) -> str:
    return f"{seconds / 60:g} minutes"


def test_the_flags_are_those_of_lifecycle_with_their_defaults():
    ours = {
        f"--{option.flag.name}" for option in list_options(LifecycleSettings) if option.flag.group == GROUP
    }
    told = {name for name in named(section("Flags and rights")) if "lifecycle" in name or "spot" in name}
    assert told == ours | {"--lifecycle-lease-name"}
    defaults = dict(re.findall(r"^\| `(--[\w-]+)` \| (\w+) \|", section("Flags and rights"), re.MULTILINE))
    assert defaults["--lifecycle-max-deletions-per-hour"] == str(SETTINGS.max_deletions_per_hour)
    for name, seconds in (
        ("not-ready-time", SETTINGS.not_ready_seconds),
        ("evidence-time", SETTINGS.evidence_seconds),
        ("start-grace", SETTINGS.grace_seconds),
    ):
        assert defaults[f"--lifecycle-{name}"] == f"{seconds / 60:g}m"


def test_the_terms_of_a_deletion_are_those_of_the_code():
    terms, text = DeletionPolicy(), " ".join(section("When a Node is deleted").split())
    assert f"for more than {in_words(terms.min_not_ready.total_seconds())}" in text
    assert f"{terms.min_polls} polls over {in_words(terms.min_span.total_seconds())}" in text
    assert f"heard for {in_words(terms.startup_grace.total_seconds())}" in text
    assert f"fewer than {SETTINGS.max_deletions_per_hour} deletions in the last hour" in text
    assert f"older than {MIN_AGE.total_seconds():g} s" in text
    assert f"`{NOT_READY_TAINT[0]}:{NOT_READY_TAINT[1]}`" in text


def test_the_events_are_those_that_are_written():
    events = {node_deleter.DELETING, node_deleter.FAILED, node_deleter.WOULD_DELETE}
    told = section("What you see").partition("| Event on the Node |")[2].partition("`talosccm.v1.decided")[0]
    assert set(named(told)) == events


def test_the_outcomes_are_those_that_are_said():
    told = section("What you see").partition("| outcome |")[2].partition("| metric |")[0]
    words = {
        node.value
        for source in sources("services/lifecycle")
        if source.module.rpartition(".")[2] in ("on_node_enriched", "node_deleter")
        for node in source.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert set(named(told)) == {"kept", "deleted", "would-delete", "shutdown", "not-owned"}
    assert set(named(told)) <= words


def test_the_metrics_are_those_of_lifecycle():
    ours = {value._name for name, value in vars(metrics).items() if name.startswith("LIFECYCLE_")}
    told = {
        name.partition("{")[0].removesuffix("_total")
        for name in named(section("What you see"))
        if "talosccm_" in name
    }
    assert told == ours
    assert {REPLACED, SPOT} <= set(re.findall(r"`([\w-]+)`", section("What you see")))


@pytest.mark.parametrize(
    "text",
    [LIFECYCLE_LEASE_NAME, ANNOTATION, f"{SHUTDOWN_TAINT.key}:{SHUTDOWN_TAINT.effect}", "DeletingNode"],
)
def test_what_stands_in_kubernetes_is_named_as_it_is(text: str):
    assert text in PAGE


def test_the_rights_are_those_of_the_wiring():
    rights = {right.resource: set(right.verbs) for right in LIFECYCLE.policy_rules}
    assert rights["nodes"] == {"get", "patch", "delete"}
    assert "may get, patch and delete Nodes, hold its own Lease, and create Events" in " ".join(PAGE.split())
    assert set(rights) == {"nodes", "leases", "events"}


def test_the_examples_are_what_explain_says():
    replaced, silent = re.findall(r"```text\n(.*?)```", section("What you see"), re.DOTALL)
    assert replaced in shown(explained("replaced"))
    assert silent in shown(explained("silent"))


def test_the_example_of_ownership_is_a_file_without_mistakes():
    text = section("Beside another cloud controller manager").partition("```yaml\n")[2].partition("```")[0]
    ownership = parse_cloud_config(text, "the page").ownership
    assert ownership.default.provider_id_schemes == ("talos",)
    assert ownership.for_controller(CSR_APPROVAL) == Ownership()
    assert ownership.for_controller(NODE_LIFECYCLE).provider_id_schemes == ()
    assert len(ownership.for_controller(NODE_LIFECYCLE).selector) == 1
