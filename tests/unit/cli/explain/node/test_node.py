"""`talos-ccm explain node`: ownership, what blocks the Node, whether its machine is gone, and the fix."""

import json
import re
from datetime import timedelta
from typing import Any, Final

import click
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from cli.cluster.installation import find_container, read_service_settings
from cli.cluster.pods import Pod
from cli.explain.command import node as explain_node_command
from cli.explain.node.cloud_state import describe_route
from cli.explain.node.deletion_forecast import build_deletion_case
from cli.explain.node.node_evidence import NodeEvidence
from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.explain.node.output import explanation_to_json, format_explanation
from cli.inside import flow_snapshot
from cli.lines import format_json
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.events import (
    AnyInstanceReport,
    Decided,
    Event,
    NodeUnreachable,
)
from libs.common.contract.machine import FaultKind, ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition, Taint
from libs.common.contract.services import CONTROLLER_SERVICES, IPAM, LIFECYCLE
from services.lifecycle.core.decide import Delete, DeletionPolicy, ReplicaStatus, decide
from services.lifecycle.core.evidence import (
    LIFECYCLE_LABEL,
    NOT_READY_TAINT,
    PLATFORM_LABEL,
)
from services.lifecycle.core.query_history import QueryHistory, QueryResult
from services.lifecycle.core.shutdown_taint import SHUTTING_DOWN_STAGE
from services.lifecycle.settings import LifecycleSettings
from tests.builders import (
    NOW,
    make_dead_letter,
    make_decided,
    make_facts,
    make_node,
    make_node_enriched,
    make_node_observed,
)
from tests.cli_snapshots import make_evidence, make_flow, make_running_pod, render_lines
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


def node(*conditions: NodeCondition, age: timedelta = timedelta(days=1), **fields: Any) -> Node:
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
    return make_node("web-5", created=NOW - age, **given | fields)


def joining(**fields: Any) -> Node:
    return node(**{"provider_id": "", "taints": make_node().spec.taints, "labels": None} | fields)


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


def explain(
    of: Node,
    look: MachineFacts | MachineFault | None = None,
    terms: DeletionPolicy = TERMS,
    **fields: Any,
) -> NodeExplanation:
    return explain_node_evidence(make_evidence(of, look, **fields), terms)


def decided(service: str, outcome: str, reason: str) -> Decided:
    at = NOW - timedelta(minutes=3)
    return make_decided(service, name="web-5", uid="uid-5", outcome=outcome, reason=reason, decided_at=at)


def flow(*events: Event, unreadable: tuple[str, ...] = ()) -> flow_snapshot.FlowSnapshot:
    return make_flow("web-5", *events, unreadable=unreadable)


OBSERVED: Final = msgspec.structs.replace(make_node_observed(node()), observed_at=NOW - timedelta(minutes=20))
UNREACHABLE: Final = NodeUnreachable(
    stream_id="1",
    observed_sequence=1,
    node=node(),
    fault=SILENCE,
    attempt=7,
    retry_at=NOW + timedelta(seconds=40),
    observed_at=NOW,
    enriched_at=NOW - timedelta(seconds=20),
)
WORDS: Final = flow(
    OBSERVED,
    decided("labeler", "unchanged", "left as it is: the machine is silent"),
    decided("ipam", "unchanged", "it has its pod CIDRs"),
    decided("lifecycle", "kept", "kept: only 2 of 3 polls show it"),
    make_dead_letter("web-5", reason="not JSON", at=NOW - timedelta(minutes=9)),
    UNREACHABLE,
)
LEAVING: Final = msgspec.structs.replace(
    facts(), stage=SHUTTING_DOWN_STAGE, queried_at=NOW - timedelta(hours=1)
)
WENT: Final = msgspec.structs.replace(UNREACHABLE, last_known=LEAVING)
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
    "well": (make_evidence(node(pod_cidrs=("10.244.3.0/24",)), facts(uuid=OLD)), TERMS),
    "joining": (make_evidence(joining(age=timedelta(seconds=5)), facts()), TERMS),
    "no-metadata": (make_evidence(joining(), facts(platform="hcloud")), TERMS),
    "silent-while-joining": (make_evidence(joining(), SILENCE), TERMS),
    "owned-by-others": (make_evidence(FOREIGN, facts(platform="metal"), file=OWNERSHIP), TERMS),
    "mismatch": (
        make_evidence(node(provider_id="hcloud://7"), facts(platform="hcloud", provider_id="hcloud://8")),
        TERMS,
    ),
    "replaced": (make_evidence(node(SILENT_KUBELET), ANOTHER, foreign=REPLACED), TERMS),
    "shut-down": (make_evidence(node(SILENT_KUBELET), SILENCE, flow=GOING), TERMS),
    "preempted": (make_evidence(PREEMPTED, SILENCE), SPOT),
    "without-access": (make_evidence(joining(), not_queried_reason="cannot access the Talos API: no "
        "talosconfig"), TERMS),
    "said": (make_evidence(node(), SILENCE, flow=WORDS), TERMS),
    "said-nothing": (make_evidence(node(), facts(), flow=flow()), TERMS),
    "hostile": (
        make_evidence(HOSTILE_NODE, fault("internal", HOSTILE), file=OWNERSHIP, flow=flow(
            decided("ipam", HOSTILE, HOSTILE), unreadable=(HOSTILE,)
        )), TERMS
    ),
}  # fmt: skip


def explained(name: str) -> NodeExplanation:
    return explain_node_evidence(*EVIDENCE[name])


def shown(explanation: NodeExplanation, width: int | None = None) -> str:
    return render_lines(format_explanation(explanation), width)


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
    explanation = explain(
        of, fault(kind, text), foreign=there, inconclusive_reason=text, flow=words, file=OWNERSHIP
    )
    told = shown(explanation, 80)
    assert told.replace("\n", "").isprintable()
    assert max(map(cell_len, told.splitlines())) <= 80, "columns: a combining mark has none, others have two"
    assert json.loads(format_json(explanation_to_json(explanation)))


@pytest.mark.parametrize("name", EVIDENCE)
def test_the_exit_status_says_whether_all_is_well_and_json_says_the_same(name: str):
    explanation = explained(name)
    findings = explanation.verdict.findings
    status = {"well": 0, "joining": 0, "owned-by-others": 0, "said-nothing": 0, "without-access": 2}
    assert explanation.exit_status == status.get(name, 1)
    assert all(finding.cause and finding.fix for finding in findings)
    assert findings or not explanation.exit_status
    told = json.loads(format_json(explanation_to_json(explanation)))
    assert told["name"] == "web-5"
    assert [check["result"] for check in told["checks"]] == [check.result for check in explanation.checks]
    assert told["lifecycle"]["outcome"] == explanation.deletion.outcome
    assert [each["fault"] for each in told["verdict"]["findings"]] == [each.fault for each in findings]
    assert [step["what"] for step in told["steps"]] == [step.what for step in explanation.steps]
    assert len(told["owners"]) == len(CONTROLLER_SERVICES)


# ---- whether lifecycle would delete it


NO_TAINT: Final = msgspec.structs.replace(PREEMPTED, spec=msgspec.structs.replace(PREEMPTED.spec, taints=()))
LOST: Final = make_recorded_node("web-5", uid="uid-5", conditions=(SILENT_KUBELET,))
GONE: Final = make_gone(LOST)
FORECASTS: Final = {
    "replaced": (explained("replaced"), "deletable", "no machine known to us bears its name"),
    "preempted, with the flag": (explained("preempted"), "deletable", "it is a GCP spot machine"),
    "preempted, without the flag": (explain(PREEMPTED, SILENCE), "kept", "another machine in its place"),
    "preempted, without the taint": (
        explain(NO_TAINT, SILENCE, SPOT), "kept", "for --delete-preempted-gcp-spot: it has no taint"
    ),
    "not asked": (
        explain(node(SILENT_KUBELET), not_queried_reason="no talosconfig"), "unknown",
        "machines at its addresses: no talosconfig",
    ),
    "not lifecycle's": (
        explain(
            node(SILENT_KUBELET), ANOTHER, foreign=REPLACED, file="ownership: {providerIDSchemes: [x]}"
        ), "not-owned", "has none of ownership.providerIDSchemes",
    ),
    "its account has it no more": (
        explain(LOST, SILENCE, flow=flow(GONE)), "deletable",
        "account prod has no instance hcloud://1001 any more, and finds anchor network/77",
    ),
    "another account has it": (
        explain(LOST, SILENCE, flow=flow(GONE, make_exists(LOST, account="other"))), "kept",
        "for the cloud's instances: account other has shown",
    ),
    "its machine answers": (
        explain(LOST, facts(), flow=flow(GONE)), "kept", "for the cloud's instances: its machine answers"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORECASTS)
def test_the_forecast_names_what_decides(name: str):
    explanation, outcome, text = FORECASTS[name]
    deletion = explanation.deletion
    assert deletion.outcome == outcome
    assert text in "\n".join((deletion.reason, *(piece.text for piece in deletion.evidence)))


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (make_exists(node()), "the instance exists"),
        (make_shut_down(node()), "the instance is off"),
        (make_gone(node()), "no such instance any more; proof of the credential: network/77"),
        (make_unknown(node(), absent_from=ANCHOR), "no such instance, and none with its name"),
        (make_unknown(node()), "unknown: HTTP 503"),
    ],
)
def test_what_an_account_says_of_the_instance_is_told(report: AnyInstanceReport, text: str):
    assert re.search(
        f"cloud prod +{re.escape(text)}, asked", shown(explain(LOST, facts(), flow=flow(report)))
    )
    assert "seen alive by account prod" in shown(explain(LOST, facts()))


def test_what_the_machine_said_to_another_node_of_that_name_says_nothing():
    before = msgspec.structs.replace(WENT, node=node(uid="uid-before"))
    assert explain(node(SILENT_KUBELET), SILENCE, flow=flow(before)).deletion.taint is None
    assert explain(node(SILENT_KUBELET), SILENCE, flow=GOING).deletion.taint is not None


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
    looked = make_evidence(of, fault(kind, "so it is"), foreign=there)
    ago = NOW - timedelta(hours=1)
    last = QueryResult(started_at=NOW, ended_at=NOW, received_at=3600.0, attempt=9)
    first = QueryResult(started_at=ago, ended_at=ago, received_at=0.0, attempt=1)
    history = QueryHistory(identity=of.uid, first=first, last=last, count=9)
    case = msgspec.structs.replace(build_deletion_case(looked), history=history, monotonic_now=3600.0)
    settled = ReplicaStatus(uptime=timedelta(days=1), leading_for=timedelta(days=1))
    would = isinstance(decide(case, TERMS, settled), Delete)
    assert (explain_node_evidence(looked, TERMS).deletion.outcome == "deletable") == would


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
    known = make_evidence(node(), flow=flow(said, OBSERVED, decision, unreadable=(subject,)))
    assert (known.machine_event, known.observed, known.find_decision(IPAM)) == (said, OBSERVED, decision)
    assert explanation_to_json(explain_node_evidence(known, TERMS))["lastMessages"]["unreadable"] == [subject]


def test_a_route_to_a_server_that_is_gone_or_off_is_reported():
    condition = NodeCondition(
        type="NetworkUnavailable", status="False", reason="RouteCreated", message="Network 7 routes it"
    )
    conditions = (*LOST.status.conditions, condition)
    routed = msgspec.structs.replace(LOST, status=msgspec.structs.replace(LOST.status, conditions=conditions))
    of_another = msgspec.structs.replace(GONE, provider_id="hcloud://2")
    shown = [
        describe_route(make_evidence(routed, flow=flow(report)))
        for report in (GONE, make_shut_down(LOST), make_exists(LOST), of_another)
    ]
    text = "Network 7 routes it"
    assert shown == [f"{text}, but its server is gone", f"{text}, but its server is off", text, text]


def test_an_error_of_the_machine_is_printed_once_and_then_named():
    decision = decided("labeler", "unchanged", f"left as it is: connect: {SILENCE.message}; retried")
    silent = msgspec.structs.replace(UNREACHABLE, fault=SILENCE)
    found = make_evidence(node(), SILENCE, flow=flow(silent, OBSERVED, decision))
    text = render_lines(format_explanation(explain_node_evidence(found, TERMS)))
    messages = text.partition("Last messages")[2]
    assert messages.count("the error of the check `machine`") == 2
    assert SILENCE.message not in messages
    assert "7 attempts failed, the last 2026" in messages


def test_the_terms_are_those_of_the_running_lifecycle_unless_others_are_given():
    def read(pods: tuple[Pod, ...], given: str = "") -> float:
        flags = {"lifecycle-not-ready-time": given, "lifecycle-evidence-time": ""}
        return read_service_settings(
            LifecycleSettings, flags, find_container(pods, LIFECYCLE)
        ).not_ready_seconds

    short = "--lifecycle-not-ready-time=30s"
    separate = make_running_pod("services.lifecycle", "--v=4", short)
    labeler = make_running_pod("services.labeler", "--v=4", short)
    whole = make_running_pod(
        "services", "--controllers=*,cloud-node-lifecycle", "--lifecycle-not-ready-time", "40s"
    )
    assert read((labeler, separate)) == 30
    assert read((whole,)) == 40
    assert read((labeler, make_running_pod("services", short))) == 300, "no lifecycle runs"
    assert read((separate,), "1m") == 60
    broken = make_running_pod("services.lifecycle", "--lifecycle-not-ready-time=soon")
    assert read((broken,)) == 300, "it cannot start"


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["web-1"], ""),
        (["web-1", "--delete-preempted-gcp-spot"], "true"),
        (["--delete-preempted-gcp-spot=false", "web-1"], "false"),
        (["web-1", "--delete-preempted-gcp-spot", "false", "-o", "json"], "false"),
    ],
)
def test_the_flag_for_spot_machines_is_true_without_a_value(arguments: list[str], value: str):
    context = explain_node_command.make_context("node", arguments)
    assert context.params["flag_delete_preempted_gcp_spot"] == value
    assert context.params["name"] == "web-1"


def test_a_flag_of_a_service_that_is_not_boolean_needs_a_value():
    with pytest.raises(click.UsageError, match="requires an argument"):
        explain_node_command.make_context("node", ["web-1", "--lifecycle-start-grace"])
