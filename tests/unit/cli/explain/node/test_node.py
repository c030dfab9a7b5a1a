"""`talos-ccm explain node`: ownership, what blocks the Node, whether its machine is gone, and the fix."""

import json
import re
from datetime import timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from cli.cluster.described_node import DescribedNode
from cli.cluster.lease_state import LeaseState
from cli.cluster.unavailable import AbsentObject
from cli.explain.command import node as node_command
from cli.explain.node.deletion_forecast import build_deletion_case
from cli.explain.node.node_evidence import NodeEvidence
from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.explain.node.output import format_explanation, node_explanation_to_json
from cli.inside import flow_snapshot
from cli.lines import format_json
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.events import (
    AnyInstanceReport,
    DeadLetter,
    Decided,
    Event,
    NodeObserved,
    NodeUnreachable,
    ObservationOrder,
)
from libs.common.contract.machine import FaultKind, ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition, Taint
from libs.common.contract.services import IPAM
from libs.common.go_values import parse_duration
from services.labeler.core.blocker import PROVIDER_ID_OF_ANOTHER, block, build_condition
from services.labeler.core.plan.plan_node import plan_node
from services.lifecycle.core.decide import Delete, DeletionCase, DeletionPolicy, ReplicaStatus, decide
from services.lifecycle.core.evidence import (
    LIFECYCLE_LABEL,
    NOT_READY_TAINT,
    PLATFORM_LABEL,
)
from services.lifecycle.core.query_history import QueryHistory, QueryResult
from services.lifecycle.core.shutdown_taint import SHUTTING_DOWN_STAGE
from services.lifecycle.settings import LifecycleSettings
from tests.builders import NOW, make_facts, make_node, make_node_enriched
from tests.cli_snapshots import make_evidence, make_flow, render_lines
from tests.instance_reports import (
    ANCHOR,
    make_exists,
    make_gone,
    make_recorded_node,
    make_shut_down,
    make_unknown,
)

TERMS, SPOT = DeletionPolicy(), DeletionPolicy(deletes_gcp_spot=True)
OLD, NEW = "0a1b2c3d-1111-4222-8333-944455556666", "0a1b2c3d-7777-4888-8999-aaabbbbccccd"
HOSTILE = "\x1b[2J\u202egnp.exe"
ADDRESSES: Final = (
    NodeAddress(type="InternalIP", address="10.0.0.5"), NodeAddress(type="Hostname", address="web-5")
)  # fmt: skip
OWNERSHIP = """
ownership:
  nodeSelector:
    - matchExpressions: [{key: team, operator: In, values: [a]}]
  controllers:
    - name: cloud-node-lifecycle
      nodeSelector:
        - matchExpressions: [{key: team, operator: Exists}]
"""


def ready(status: str = "True", *, minutes: int = 30, **said: str) -> NodeCondition:
    at = (NOW - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return NodeCondition(type="Ready", status=status, last_transition_time=at, **said)


SILENT_KUBELET: Final = ready(
    "Unknown", reason="NodeStatusUnknown", message="Kubelet stopped posting node status."
)


def node(*conditions: NodeCondition, **fields: Any) -> Node:
    """Return web-5, initialized a day ago and ready, unless the arguments differ."""
    given = {
        "uid": "uid-5",
        "provider_id": "talos://metal/10.0.0.5",
        "taints": (),
        "addresses": ADDRESSES,
        "conditions": conditions or (ready(),),
        "system_uuid": OLD,
        "labels": {"kubernetes.io/hostname": "web-5", "node.cloudprovider.kubernetes.io/platform": "metal"},
    }
    made = make_node("web-5", **given | fields)
    metadata = msgspec.structs.replace(made.metadata, creation_timestamp=NOW - timedelta(days=1))
    return msgspec.structs.replace(made, metadata=metadata)


def joining(**fields: Any) -> Node:
    return node(**{"provider_id": "", "taints": make_node().spec.taints, "labels": None} | fields)


def just_joined(**fields: Any) -> Node:
    made = joining(**fields)
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, creation_timestamp=NOW - timedelta(seconds=5))
    )


def facts(**fields: Any) -> MachineFacts:
    return make_facts(**{"node_name": "web-5"} | fields)


def fault(kind: FaultKind, message: str) -> MachineFault:
    return MachineFault(kind=kind, step="PlatformMetadata", endpoint="cp for 10.0.0.5", message=message)


SILENCE: Final = fault("timeout", "no answer within 5 s")
ANOTHER: Final = MachineFault(
    kind="wrong_machine",
    step="Nodename",
    message="the machine at 10.0.0.5 has node name web-9, not web-5, and its systemUUID is not its either",
)
REPLACED: Final = (ForeignMachine(address="10.0.0.5", node_name="web-9", uuid=NEW, queried_at=NOW),)


# what was read beside the Node and the flow
WHOLE: Final[dict[str, Any]] = {
    "events": (),
    "requests": (),
    "lease": LeaseState(holder="watcher-1", renewed_at=NOW),
    "pods": (),
    "config": AbsentObject(),
}


def evidence(
    of: Node, look: MachineFacts | MachineFault | None = None, *, file: str = "", **fields: Any
) -> NodeEvidence:
    described = DescribedNode(node=of, facts=look) if isinstance(look, MachineFacts) else look
    return make_evidence(of, file=file, machine_result=described, **WHOLE | fields)


def decided(service: str, outcome: str, reason: str) -> Decided:
    at = NOW - timedelta(minutes=3)
    return Decided(
        service=service, kind="node", name="web-5", uid="uid-5", outcome=outcome, reason=reason, decided_at=at
    )


def unreachable(why: MachineFault, **fields: Any) -> NodeUnreachable:
    return NodeUnreachable(
        stream_id="1",
        observed_sequence=1,
        node=node(),
        fault=why,
        attempt=7,
        retry_at=NOW + timedelta(seconds=40),
        observed_at=NOW,
        enriched_at=NOW - timedelta(seconds=20),
        **fields,
    )


def flow(*events: Event, unreadable: tuple[str, ...] = ()) -> flow_snapshot.FlowSnapshot:
    return make_flow("web-5", *events, unreadable=unreadable)


OBSERVED: Final = NodeObserved(
    stream_id="1",
    order=ObservationOrder(epoch=1, resource_version=7),
    node=node(),
    observed_at=NOW - timedelta(minutes=20),
)
NO_NATS: Final = flow_snapshot.FlowUnavailable(reason="connection refused")
WORDS: Final = flow(
    OBSERVED,
    decided("labeler", "unchanged", "left as it is: the machine is silent"),
    decided("ipam", "unchanged", "it has its pod CIDRs"),
    decided("lifecycle", "kept", "kept: only 2 of 3 polls show it"),
    DeadLetter(
        service="labeler", kind="node", name="web-5", subject="s", sequence=1, reason="not JSON",
        payload="", at=NOW - timedelta(minutes=9),
    ),
    unreachable(SILENCE),
)  # fmt: skip
WENT: Final = unreachable(
    SILENCE,
    last_known=msgspec.structs.replace(
        facts(), stage=SHUTTING_DOWN_STAGE, queried_at=NOW - timedelta(hours=1)
    ),
)
GOING: Final = flow(WENT)
SPOT_LABELS: Final = dict((PLATFORM_LABEL, LIFECYCLE_LABEL))
PREEMPTED: Final = node(
    SILENT_KUBELET,
    labels=SPOT_LABELS,
    provider_id="gce://project/zone/web-5",
    taints=(Taint(key=NOT_READY_TAINT[0], effect=NOT_READY_TAINT[1]),),
)
FOREIGN: Final = node(provider_id="hcloud://7", labels={"team": "b"})
HOSTILE_NODE: Final = node(
    ready("False", reason=HOSTILE, message=HOSTILE),
    provider_id=f"talos://{HOSTILE}",
    labels={"team": HOSTILE},
)
EVIDENCE: Final[dict[str, tuple[NodeEvidence, DeletionPolicy]]] = {
    "well": (evidence(node(pod_cidrs=("10.244.3.0/24",)), facts(uuid=OLD)), TERMS),
    "joining": (evidence(just_joined(), facts()), TERMS),
    "joining-for-a-day": (evidence(joining(), facts()), TERMS),
    "no-metadata": (evidence(joining(), facts(platform="hcloud")), TERMS),
    "silent": (evidence(node(SILENT_KUBELET), SILENCE), TERMS),
    "silent-while-joining": (evidence(joining(), SILENCE), TERMS),
    "owned-by-others": (evidence(FOREIGN, facts(platform="metal"), file=OWNERSHIP), TERMS),
    "another-cloud": (evidence(node(provider_id="hcloud://7"), facts()), TERMS),
    "mismatch": (
        evidence(node(provider_id="hcloud://7"), facts(platform="hcloud", provider_id="hcloud://8")), TERMS
    ),
    "replaced": (evidence(node(SILENT_KUBELET), ANOTHER, answered_by=REPLACED), TERMS),
    "replaced-but-ready": (evidence(node(), ANOTHER, answered_by=REPLACED), TERMS),
    "shut-down": (evidence(node(SILENT_KUBELET), SILENCE, flow=GOING), TERMS),
    "preempted": (evidence(PREEMPTED, SILENCE), SPOT),
    "without-access": (evidence(joining(), not_queried_reason="cannot access the Talos API: no "
        "talosconfig"), TERMS),
    "without-talos": (
        evidence(node(), not_queried_reason="not queried: --without-talos", is_query_skipped=True),
        TERMS,
    ),
    "said": (evidence(node(), SILENCE, flow=WORDS), TERMS),
    "said-nothing": (evidence(node(), facts(), flow=flow()), TERMS),
    "no-nats": (evidence(node(), facts(), flow=NO_NATS), TERMS),
    "hostile": (
        evidence(HOSTILE_NODE, fault("internal", HOSTILE), file=OWNERSHIP, flow=flow(
            decided("ipam", HOSTILE, HOSTILE), unreadable=(HOSTILE,)
        )), TERMS
    ),
}  # fmt: skip


def explained(name: str) -> NodeExplanation:
    return explain_node_evidence(*EVIDENCE[name])


def shown(explanation: NodeExplanation, width: int | None = None) -> str:
    return render_lines(format_explanation(explanation, NOW), width)


@example(text="\u08ca" * 200, kind="timeout")
@example(text="\u4e2d" * 200, kind="timeout")
@given(text=st.text(max_size=300), kind=st.sampled_from(["wrong_machine", "timeout", "internal"]))
def test_whatever_people_and_machines_write_is_told_and_steers_nothing(text: str, kind: FaultKind):
    of = node(
        NodeCondition(type="Ready", status=text, reason=text, message=text, last_transition_time=text),
        NodeCondition(type=BLOCKED_CONDITION, status="True", reason=text, message=text),
        provider_id=text,
        pod_cidrs=(text,),
        taints=(Taint(key=text, effect=text),),
        addresses=(NodeAddress(type=text, address=text),),
        system_uuid=text,
    )
    there = (ForeignMachine(address=text, node_name=text, uuid=text, queried_at=NOW),)
    words = flow(decided("ipam", text, text), WENT, unreadable=(text,))
    explanation = explain_node_evidence(
        evidence(
            of, fault(kind, text), answered_by=there, inconclusive_reason=text, flow=words, file=OWNERSHIP
        ),
        TERMS,
    )
    told = shown(explanation, 80)
    assert told.replace("\n", "").isprintable()
    assert max(map(cell_len, told.splitlines())) <= 80, "columns: a combining mark has none, others have two"
    assert json.loads(format_json(node_explanation_to_json(explanation)))


STATUS: Final = {
    "well": 0, "joining": 0, "owned-by-others": 0, "another-cloud": 0, "without-talos": 0, "no-nats": 0,
    "no-metadata": 1, "silent": 1, "silent-while-joining": 1, "mismatch": 1, "replaced": 1,
    "replaced-but-ready": 1, "shut-down": 1, "preempted": 1, "said": 1, "said-nothing": 0, "hostile": 1,
    "joining-for-a-day": 2, "without-access": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_exit_status_says_whether_all_is_well_and_what_is_not_has_a_cause_and_a_fix(name: str):
    explanation = explained(name)
    deletable = name in ("replaced", "preempted")
    assert explanation.exit_status == STATUS[name]
    assert explanation.deletion.outcome == ("deletable" if deletable else "kept")
    findings = explanation.verdict.findings
    assert all(finding.cause and finding.fix for finding in findings)
    assert findings or not STATUS[name]


def found(explanation: NodeExplanation, kind: str) -> list[str]:
    return [piece.text for piece in explanation.deletion.evidence if piece.state == kind]


def test_a_node_whose_provider_id_is_withheld_names_the_other_node():
    blocker = block(
        PROVIDER_ID_OF_ANOTHER,
        provider_id="vm://c/7",
        other="web-9",
        why="machine web-9 answers as that Node",
    )
    withheld = joining(conditions=(ready(), build_condition(blocker)))
    explanation = explain_node_evidence(evidence(withheld, facts(provider_id="vm://c/7")), TERMS)
    [finding] = explanation.verdict.findings
    assert (finding.fault, explanation.exit_status) == ("provider-id-of-another", 1)
    assert "belongs to Node web-9" in finding.cause
    assert explanation.plan is not None
    assert explanation.plan.summary == ()


def test_without_an_answer_of_talos_who_answers_there_is_not_known():
    unasked = explain_node_evidence(
        evidence(node(SILENT_KUBELET), not_queried_reason="no talosconfig"), TERMS
    )
    assert found(unasked, "unknown") == ["machines at its addresses: no talosconfig"]
    assert (unasked.deletion.outcome, unasked.exit_status) == ("unknown", 1)


def test_a_node_that_is_not_lifecycles_is_left_alone_whatever_the_evidence():
    file = "ownership: {providerIDSchemes: [hcloud]}"
    told = explain_node_evidence(
        evidence(node(SILENT_KUBELET), ANOTHER, answered_by=REPLACED, file=file), TERMS
    )
    assert told.deletion.outcome == "not-owned"
    assert "has none of ownership.providerIDSchemes" in told.deletion.reason
    assert told.deletion.evidence == ()


def test_a_preempted_machine_is_kept_unless_the_flag_is_given():
    assert explain_node_evidence(EVIDENCE["preempted"][0], TERMS).deletion.outcome == "kept"


def test_with_the_flag_it_tells_what_a_spot_machine_lacks_for_it():
    back = msgspec.structs.replace(PREEMPTED, spec=msgspec.structs.replace(PREEMPTED.spec, taints=()))
    told = explain_node_evidence(evidence(back, SILENCE), SPOT)
    assert told.deletion.outcome == "kept"
    assert (
        f"for --delete-preempted-gcp-spot: it has no taint {NOT_READY_TAINT[0]}:{NOT_READY_TAINT[1]}"
        in found(told, "lacks")
    )


def test_a_node_whose_instance_its_account_no_longer_finds_would_be_deleted():
    gone = make_recorded_node("web-5", uid="uid-5", conditions=(SILENT_KUBELET,))
    report = make_gone(gone)
    told = explain_node_evidence(evidence(gone, SILENCE, flow=flow(report)), TERMS)
    assert told.deletion.outcome == "deletable"
    assert "account prod has no instance hcloud://1001 any more, and finds anchor network/77" in found(
        told, "has"
    )
    text = shown(told)
    assert "seen alive by account prod" in text
    assert "no such instance any more; proof of the credential: network/77, asked" in text

    elsewhere = flow(report, make_exists(gone, account="other"))
    told = explain_node_evidence(evidence(gone, SILENCE, flow=elsewhere), TERMS)
    assert told.deletion.outcome == "kept"
    assert any(
        text.startswith("for the cloud's instances: account other has shown") for text in found(told, "lacks")
    )
    told = explain_node_evidence(evidence(gone, facts(), flow=flow(report)), TERMS)
    assert "for the cloud's instances: its machine answers" in found(told, "lacks")


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (make_exists(node()), "the instance exists"),
        (make_shut_down(node()), "the instance is off"),
        (make_unknown(node(), absent_from=ANCHOR), "no such instance, and none with its name"),
        (make_unknown(node()), "unknown: HTTP 503"),
    ],
)
def test_what_an_account_says_of_the_instance_is_told(report: AnyInstanceReport, text: str):
    told = explain_node_evidence(evidence(node(), facts(), flow=flow(report)), TERMS)
    assert re.search(f"cloud prod +{re.escape(text)}, asked", shown(told))


def test_what_the_machine_said_to_another_node_of_that_name_says_nothing():
    before = msgspec.structs.replace(WENT, node=node(uid="uid-before"))
    assert (
        explain_node_evidence(
            evidence(node(SILENT_KUBELET), SILENCE, flow=flow(before)), TERMS
        ).deletion.taint
        is None
    )


def test_a_machine_that_says_that_it_shuts_down_is_told_so():
    going = msgspec.structs.replace(facts(), stage=SHUTTING_DOWN_STAGE)
    assert "its stage is 'shutting down'" in shown(explain_node_evidence(evidence(node(), going), TERMS))
    assert "stage" not in shown(explained("well"))


# ---- as the services


@given(
    minutes=st.integers(-2, 20),
    status=st.sampled_from(["True", "False", "Unknown"]),
    uuid=st.sampled_from([OLD, NEW, "", "00000000-0000-0000-0000-000000000000"]),
    own=st.sampled_from([OLD, "", "03000200-0400-0500-0006-000700080009"]),
    bears=st.sampled_from(["web-9", "web-5"]),
    tainted=st.booleans(),
    kind=st.sampled_from(["wrong_machine", "timeout", "refused"]),
    answered=st.booleans(),
)
def test_it_tells_that_a_node_would_be_deleted_exactly_if_lifecycle_with_all_its_looks_would(
    *,
    minutes: int,
    status: str,
    uuid: str,
    own: str,
    bears: str,
    tainted: bool,
    kind: FaultKind,
    answered: bool,
):
    of = node(ready(status, minutes=minutes), system_uuid=own)
    of = joining(conditions=of.status.conditions, system_uuid=own) if tainted else of
    there = (
        (ForeignMachine(address="10.0.0.5", node_name=bears, uuid=uuid, queried_at=NOW),) if answered else ()
    )
    looked = evidence(of, fault(kind, "so it is"), answered_by=there)
    assert looked.machine_report is not None
    last = QueryResult(started_at=NOW, ended_at=NOW, received_at=3600.0, attempt=9)
    first = QueryResult(
        started_at=NOW - timedelta(hours=1), ended_at=NOW - timedelta(hours=1), received_at=0.0, attempt=1
    )
    history = QueryHistory(identity=of.uid, first=first, last=last, count=9)
    case = DeletionCase(
        node=of,
        report=looked.machine_report,
        history=history,
        machines=build_deletion_case(looked).machines,
    )
    settled = ReplicaStatus(uptime=timedelta(days=1), leading_for=timedelta(days=1))
    would = isinstance(decide(case, TERMS, settled, now=NOW, monotonic_now=3600.0), Delete)
    assert (explain_node_evidence(looked, TERMS).deletion.outcome == "deletable") == would


def test_what_the_labeler_would_write_is_its_own_plan():
    looked = evidence(joining(), facts(), file="global: {clusterName: prod}\n")
    plan = plan_node(looked.node, facts(), "nodename", looked.config)
    assert explain_node_evidence(looked, TERMS).plan == plan
    assert any("clustername=prod" in line for line in plan.summary)


def test_of_each_controller_it_tells_whose_the_node_is_by_its_own_part_of_the_file():
    owners = {owner.controller: owner.why_not for owner in explained("owned-by-others").owners}
    for controller in ("cloud-node", "node-ipam-controller", "cloud-node-lifecycle-controller"):
        ownership = EVIDENCE["owned-by-others"][0].ownership.for_controller(controller)
        assert owners[controller] == why_not_owned(ownership, FOREIGN)
    assert "nodeSelector does not select it" in owners["cloud-node"]
    assert owners["cloud-node-lifecycle-controller"] == ""


# ---- last messages


def test_what_stands_there_is_told_and_what_is_no_event_too():
    said, subject = make_node_enriched(node(), facts()), "talosccm.v1.decided.ipam.node.web-5"
    decision = decided("ipam", "x", "y")
    known = evidence(node(), flow=flow(said, OBSERVED, decision, unreadable=(subject,)))
    assert (known.machine_event, known.observed, known.find_decision(IPAM)) == (said, OBSERVED, decision)
    told = node_explanation_to_json(explain_node_evidence(known, TERMS))["lastWords"]
    assert told["unreadable"] == [subject]


# ---- the command


@pytest.mark.parametrize("name", EVIDENCE)
def test_json_says_the_same(name: str):
    explanation = explained(name)
    told = json.loads(format_json(node_explanation_to_json(explanation)))
    assert told["name"] == "web-5"
    assert [check["result"] for check in told["checks"]] == [check.result for check in explanation.checks]
    assert told["lifecycle"]["outcome"] == explanation.deletion.outcome
    found = [finding["fault"] for finding in told["verdict"]["findings"]]
    assert found == [finding.fault for finding in explanation.verdict.findings]
    assert [step["what"] for step in told["journey"]] == [step.what for step in explanation.steps]
    assert len(told["owners"]) == 4


def test_the_terms_are_lifecycles_own_unless_others_are_given():
    usual = {option.name: option.default for option in node_command.params}
    settings = LifecycleSettings()
    for name, seconds in (
        ("lifecycle_not_ready_time", settings.not_ready_seconds),
        ("lifecycle_evidence_time", settings.evidence_seconds),
        ("lifecycle_start_grace", settings.grace_seconds),
    ):
        assert parse_duration(str(usual[name])) == seconds
