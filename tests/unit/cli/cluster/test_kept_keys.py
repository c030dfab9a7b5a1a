"""Kept keys in `explain node`, `render` and `status`: by whom, since when, and how they come back."""

import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from cli.__main__ import main
from cli.cluster.described_node import DescribedNode
from cli.cluster.kept_keys import ManagedNode, format_kept_key, report_kept_keys
from cli.explain.node.node_explanation import explain_node_evidence
from cli.explain.node.output import node_explanation_to_json
from cli.lines import format_json
from cli.render.compiled_config import compile_config
from cli.render.facts_file import encode_facts
from cli.render.preview import preview_node
from cli.status.cluster_status import build_status
from libs.common.contract.node import APPLY_TAINTS_ANNOTATION, Node, NodeCondition, Taint
from services.labeler.core.plan import ClusterConfig
from services.lifecycle.core.decide import DeletionPolicy
from tests.builders import NOW, make_facts, make_node
from tests.cli_screen import render_lines
from tests.cli_snapshots import make_evidence
from tests.node_plans import change_metadata, compile_one_rule, plan_and_apply
from tests.unit.cli.status.test_flow import WELL

ZONE = "topology.kubernetes.io/zone"
FACTS = make_facts(platform="hcloud", provider_id="hcloud://7", region="eu-central", zone="fsn1-dc14")
RULE = "transformations: [{name: one, taints: {example.com/agent: 'waiting:NoExecute'}}]"
TAINT = compile_one_rule(taints="{example.com/agent: 'waiting:NoExecute'}")
READY = (NodeCondition(type="Ready", status="True", last_transition_time="2026-03-01T11:30:00Z"),)


def entry(manager: str, time: str, fields: Any) -> dict[str, Any]:
    return {
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": time,
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }  # fmt: skip


def labels(*keys: str) -> dict[str, Any]:
    return {"f:metadata": {"f:labels": {".": {}} | {f"f:{key}": {} for key in keys}}}


MANAGERS = [
    entry("kubelet", "2026-03-01T11:00:00Z", labels("kubernetes.io/hostname")),
    entry("kubectl-label", "2026-03-01T11:45:00Z", labels(ZONE)),
    entry("talos-ccm", "2026-03-01T11:50:00Z", labels(f"{ZONE}s")),
    entry("kube-controller-manager", "2026-03-01T11:10:00Z", {"f:spec": {"f:taints": {}}}),
]
MANAGED = msgspec.Raw(msgspec.json.encode(MANAGERS))
FIX = f"kubectl label node web-1 {ZONE}-"


def overwritten() -> Node:
    """A Node whose zone a person has changed, before the labeler has seen it."""
    node = plan_and_apply(make_node(conditions=READY), FACTS, ClusterConfig())
    return change_metadata(node, labels={ZONE: "foo"})


def withheld() -> Node:
    """A Node of the reference controller, before the labeler has seen the taint of the rule."""
    return make_node(taints=(), provider_id="hcloud://7", conditions=READY)


NODES = [overwritten(), plan_and_apply(overwritten(), FACTS, ClusterConfig())]


def text_of(node: Node, managed_fields: msgspec.Raw = MANAGED) -> str:
    reports = report_kept_keys(node, managed_fields)
    return render_lines([line for each in reports for line in format_kept_key(each)], None)


@pytest.mark.parametrize("node", NODES, ids=["just changed", "recorded"])
def test_explain_tells_it_and_calls_the_node_not_healthy(node: Node):
    described = DescribedNode(node=node, facts=FACTS)
    found = make_evidence(node, machine_result=described, managed_fields={node.name: MANAGED})
    explanation = explain_node_evidence(found, DeletionPolicy())
    said = json.loads(format_json(node_explanation_to_json(explanation)))
    [told] = said["keptKeys"]
    assert (told["manager"], told["since"], told["fix"]) == ("kubectl-label", "2026-03-01T11:45:00Z", FIX)
    assert (told["kind"], told["key"], told["current"], told["desired"]) == (
        "label",
        ZONE,
        "foo",
        "fsn1-dc14",
    )
    assert ZONE in said["labeler"]["reason"]
    assert explanation.exit_status == 0, "an operator may have set it on purpose"


@pytest.mark.parametrize("node", NODES, ids=["just changed", "recorded"])
def test_status_tells_it_without_a_machine_to_ask(node: Node):
    status = build_status(msgspec.structs.replace(WELL, nodes=(node,), managed_fields={node.name: MANAGED}))
    [told] = msgspec.to_builtins(status)["keptKeys"]
    assert (told["node"], told["manager"], told["fix"]) == ("web-1", "kubectl-label", FIX)
    assert (status.wrong, status.exit_status) == ((), 0)


@pytest.mark.parametrize("node", NODES, ids=["just changed", "recorded"])
def test_render_tells_it(node: Node, tmp_path: Any):
    facts, rules = tmp_path / "facts", tmp_path / "rules.yaml"
    facts.write_bytes(encode_facts([DescribedNode(node=node, facts=FACTS)]))
    rules.write_text("global: {}\n")
    result = CliRunner().invoke(main, ["render", str(rules), "--facts", str(facts)])
    assert f"label {ZONE} is foo instead of fsn1-dc14: set by an unknown client" in result.stdout
    assert f"to get it back: {FIX}" in result.stdout
    assert "No changes\n" not in result.stdout
    result = CliRunner().invoke(main, ["render", str(rules), "--facts", str(facts), "-o", "json"])
    assert json.loads(result.stdout)["nodes"][0]["keptKeys"][0]["fix"] == FIX


def test_a_withheld_taint_is_told_with_its_opt_in():
    config = compile_config(RULE, "rules.yaml")
    [report] = preview_node(DescribedNode(node=withheld(), facts=FACTS), config, now=NOW).kept_keys
    recorded = plan_and_apply(withheld(), FACTS, TAINT)
    assert report_kept_keys(recorded, MANAGED) == (report,)
    assert report.fix == f"kubectl annotate node web-1 {APPLY_TAINTS_ANNOTATION}=true"
    assert (report.manager, report.since) == ("", None)
    assert "is not set" in text_of(recorded)


def test_the_newest_client_counts_and_for_a_taint_the_one_that_wrote_the_list():
    node = plan_and_apply(make_node(), FACTS, TAINT)
    node = change_metadata(node, taints=(Taint(key="example.com/agent", value="x", effect="NoExecute"),))
    [report] = report_kept_keys(node, MANAGED)
    assert (report.manager, report.current) == ("kube-controller-manager", "x")
    assert report.fix.startswith("kubectl taint node web-1 example.com/agent:NoExecute-")
    later = msgspec.Raw(msgspec.json.encode([*MANAGERS, entry("lens", "2026-03-01T11:46:00Z", labels(ZONE))]))
    assert "set by lens, 2026-03-01 11:46:00 UTC or before" in text_of(NODES[0], later)


@pytest.mark.parametrize(
    "managed", [b"[]", b"null", b'[{"time":"x"}]', b'[{"fieldsV1":[]}]', b'[{"fieldsV1":{"f:metadata":1}}]']
)
def test_without_usable_managed_fields_the_client_is_unknown(managed: bytes):
    assert "set by an unknown client\n" in text_of(NODES[0], msgspec.Raw(managed))


def test_managed_fields_are_read_beside_the_node_and_not_into_it():
    body = msgspec.to_builtins(NODES[0])
    body["metadata"]["managedFields"] = MANAGERS
    read = msgspec.json.decode(msgspec.json.encode(body), type=ManagedNode)
    assert read.without_managers() == NODES[0]
    assert type(read.without_managers().metadata) is type(NODES[0].metadata)
    assert text_of(read.without_managers(), read.metadata.managed_fields) == text_of(NODES[0])
