"""The interface of `talos-ccm ... -o json`: keys, types of values, closed sets of values, and exit codes.

The evidence is that of the tests of the texts, so every branch that has a text has its JSON here.
"""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from click.testing import CliRunner

from cli.__main__ import main
from cli.cluster.installation import assume_installation
from cli.doctor.as_json import diagnosis_to_json
from cli.doctor.check_report import CheckState as FindingState
from cli.doctor.diagnosis import diagnose
from cli.doctor.installation_snapshot import InstallationSnapshot
from cli.explain.csr import request_explanation as csr
from cli.explain.csr.as_json import request_explanation_to_json as csr_json
from cli.explain.node import deletion_forecast, initialization_steps, node_verdict
from cli.explain.node import node_explanation as node
from cli.explain.node.as_json import node_explanation_to_json as node_json
from cli.explain.node.fault_texts import FAULT_TEXTS
from cli.render.node_changes import ChangeKind
from cli.status import components as flow_components
from cli.status import requests as flow_requests
from cli.status.as_json import status_to_json
from cli.status.cluster_status import build_status
from cli.status.ipam import claim_conflicts, pod_cidr_status
from cli.status.ipam.as_json import ipam_status_to_json
from libs.common.contract.machine import FaultKind
from libs.common.contract.node import BLOCKED_CONDITION, NodeCondition
from services.labeler.plan import PlanOutcome
from services.labeler.rules.effects import EffectKind
from tests import doctor_cases
from tests.cli_screen import TEXTS
from tests.contract.interface_shapes import domain, key_types
from tests.contract.interface_snapshot import assert_unchanged
from tests.unit.cli.explain.csr import test_explain
from tests.unit.cli.explain.node import test_node as test_explain_node
from tests.unit.cli.status import test_flow as test_status_flow
from tests.unit.cli.status.ipam import test_ipam as test_status_ipam


def printed(*arguments: str) -> Any:
    """Run the command in the folder of the example files and read what it prints."""
    return json.loads(CliRunner().invoke(main, [*arguments, "-o", "json"]).stdout)


def as_printed(document: dict[str, Any]) -> Any:
    return json.loads(json.dumps(document))


def exit_codes(found: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Group exit codes by what was found."""
    codes: dict[str, set[int]] = {}
    for what, code in found:
        codes.setdefault(what, set()).add(code)
    return {what: sorted(each) for what, each in codes.items()}


@pytest.fixture(autouse=True)
def _in_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TEXTS)


def test_the_json_of_config_check_is_unchanged():
    names = ("mistaken.yaml", "migrated.yaml", "absent.yaml")
    found = [printed("config", "check", name) for name in names]
    assert_unchanged("json-config-check", key_types(found))


def test_the_kinds_of_findings_of_config_check_are_unchanged():
    said = CliRunner().invoke(main, ["config", "check", "mistaken.yaml", "migrated.yaml"]).stdout
    heads = [line.split(": ") for line in said.splitlines()]
    kinds = {head[1] for head in heads if len(head) > 2}
    assert_unchanged("config-check-kinds", sorted(kinds))


def test_the_json_of_render_is_unchanged():
    shown = [printed("render", "rules.yaml", "--all-samples")]
    compared = [printed("render", "rules-changed.yaml", "--against", "rules.yaml", "--all-samples")]
    values = {
        ".nodes[].changes[].kind": domain(ChangeKind),
        ".nodes[].outcome": domain(PlanOutcome),
        ".nodes[].rules[].entries[].kind": domain(EffectKind),
    }
    keys = {"render": key_types(shown), "render --against": key_types(compared), "values": values}
    assert_unchanged("json-render", keys)


def test_the_json_of_explain_csr_is_unchanged():
    explained = [test_explain.explained(name) for name in test_explain.EVIDENCE]
    values = {
        ".checks[].result": domain(csr.CheckOutcome),
        ".decision.now": domain(csr.RequestVerdict),
        ".state": domain(csr.RequestPhase),
        "names of checks": sorted({check.name for each in explained for check in each.checks}),
    }
    keys = key_types(as_printed(csr_json(each)) for each in explained)
    codes = exit_codes((f"{each.state}, {each.verdict}", each.exit_status) for each in explained)
    assert_unchanged("json-explain-csr", {"keys": keys, "values": values, "exit codes": codes})


def test_the_json_of_explain_node_is_unchanged():
    blocked = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="r", message="m")
    evidence = test_explain_node.evidence(test_explain_node.joining(conditions=(blocked,)))
    explained = [
        *(test_explain_node.explained(name) for name in test_explain_node.EVIDENCE),
        node.explain_node_evidence(evidence, test_explain_node.TERMS),
    ]
    documents = [as_printed(node_json(each)) for each in explained]
    values = {
        ".checks[].result": sorted({check["result"] for each in documents for check in each["checks"]}),
        ".journey[].standing": domain(initialization_steps.StepState),
        ".labeler.outcome": domain(PlanOutcome),
        ".lifecycle.evidence[].found": domain(deletion_forecast.EvidenceState),
        ".lifecycle.outcome": domain(deletion_forecast.DeletionOutcome),
        ".state": domain(node.InitializationState),
        ".verdict.state": domain(node_verdict.VerdictState),
        "kinds of faults": domain(FaultKind),
        "names of checks": sorted({check["name"] for each in documents for check in each["checks"]}),
        "actors of the journey": sorted({step["who"] for each in documents for step in each["journey"]}),
        "faults": sorted(FAULT_TEXTS),
    }
    codes = exit_codes((each.verdict.state, each.exit_status) for each in explained)
    assert_unchanged(
        "json-explain-node", {"keys": key_types(documents), "values": values, "exit codes": codes}
    )


def test_the_json_of_status_is_unchanged():
    found = [build_status(evidence) for evidence in test_status_flow.CASES.values()]
    documents = [as_printed(status_to_json(each)) for each in found]
    values = {
        ".services[].name": sorted({one["name"] for each in documents for one in each["services"]}),
        ".services[].state": domain(flow_components.ComponentState),
        ".requests.open[].state": domain(flow_requests.OpenRequestState),
    }
    codes = exit_codes(
        ("wrong" if each.problems else "unknown" if each.is_unknown else "well", each.exit_status)
        for each in found
    )
    assert_unchanged("json-status", {"keys": key_types(documents), "values": values, "exit codes": codes})


def test_the_json_of_status_ipam_is_unchanged():
    keys = key_types(as_printed(ipam_status_to_json(each)) for each in test_status_ipam.CASES.values())
    values = {
        ".conflicts[].kind": domain(claim_conflicts.ConflictKind),
        ".podCIDRs[].state": domain(pod_cidr_status.PodCidrState),
    }
    codes = exit_codes(
        ("conflicts" if each.conflicts else "no conflicts", each.exit_status)
        for each in test_status_ipam.CASES.values()
    )
    assert_unchanged("json-status-ipam", {"keys": keys, "values": values, "exit codes": codes})


def test_the_json_of_doctor_is_unchanged():
    well = doctor_cases.make_snapshot()
    blind = InstallationSnapshot(
        at=well.at, version="0.1.0", installation=assume_installation("kube-system", "", "forbidden")
    )
    seen = (well, doctor_cases.make_snapshot(config="nonsense: true\n"), blind)
    found = [diagnose(each) for each in seen]
    documents = [
        as_printed(diagnosis_to_json(one, each.installation)) for one, each in zip(found, seen, strict=True)
    ]
    values = {
        ".checks[].name": [check["name"] for check in documents[0]["checks"]],
        ".checks[].state": domain(FindingState),
    }
    codes = exit_codes((one.worst_first[0].state, one.exit_status) for one in found)
    assert_unchanged("json-doctor", {"keys": key_types(documents), "values": values, "exit codes": codes})
