"""What `talos-ccm explain node` finds, and in which order. In a real run: test_stuck_nodes."""

from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_objects import CertificateSigningRequest, CsrCondition
from cli.cluster.lease_state import LeaseState
from cli.cluster.pods import Pod
from cli.explain.node.node_evidence import choose_report
from cli.explain.node.node_explanation import NodeExplanation, explain_node_evidence
from cli.explain.node.output import format_explanation
from cli.inside.flow_snapshot import FlowResult, FlowSnapshot, FlowUnavailable, StreamSnapshot
from libs.common.contract.events import Event
from libs.common.contract.machine import FaultKind, MachineFault
from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition, Taint
from services.lifecycle.core.decide import DeletionPolicy
from tests.builders import NOW, make_decided, make_facts, make_node, make_node_enriched, make_node_observed
from tests.cli_snapshots import (
    STREAM,
    hold_request,
    make_evidence,
    make_flow,
    make_kube_event,
    make_pod,
    make_running_pod,
    render_lines,
)
from tests.csr_actors import make_serving_request
from tests.node_plans import set_ownership_record

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
READY: Final = NodeCondition(type="Ready", status="True")
SILENT_KUBELET: Final = NodeCondition(type="Ready", status="Unknown", reason="NodeStatusUnknown")
WITHOUT_CNI: Final = NodeCondition(
    type="Ready", status="False", reason="KubeletNotReady", message="cni plugin not initialized"
)
BLOCKED: Final = NodeCondition(
    type=BLOCKED_CONDITION, status="True", reason="TalosTimeout", message="PlatformMetadata: no answer"
)
RULE_FAILS: Final = NodeCondition(
    type=BLOCKED_CONDITION, status="True", reason="ProviderIDRuleFailed", message="no field"
)
OURS: Final = "talos://metal/10.0.0.5"
OF_TEAM_A: Final = """
ownership:
  nodeSelector:
    - matchExpressions: [{key: team, operator: In, values: [a]}]
"""
FULL: Final = StreamSnapshot(created="1", bytes=995, max_bytes=1000)
OF_TALOS: Final = "ownership: {providerIDSchemes: [talos]}\n"


def registered(age: timedelta = 10 * MINUTE, *conditions: NodeCondition, **fields: Any) -> Node:
    """Return web-1, which waits for its initialization, with these fields."""
    return make_node(conditions=conditions or (READY,), created=NOW - age, **fields)


def initialized(*conditions: NodeCondition, age: timedelta = 10 * MINUTE, **fields: Any) -> Node:
    return registered(age, *conditions, **{"taints": (), "provider_id": OURS} | fields)


def still_tainted(ready_for: timedelta) -> Node:
    since = (NOW - ready_for).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = NodeCondition(type="Ready", status="True", last_transition_time=since)
    return initialized(ready, taints=(Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"),))


def flow(node: Node | None = None, *events: Event, stream: StreamSnapshot = STREAM) -> FlowSnapshot:
    """Return the flow of a leading watcher, with the messages about web-1."""
    if node is not None:
        observed = msgspec.structs.replace(make_node_observed(node), observed_at=NOW - MINUTE)
        events = (observed, *events)
    return make_flow("web-1", *events, stream=stream)


def filed(*conditions: str, age: timedelta = 2 * MINUTE) -> CertificateSigningRequest:
    request = make_serving_request("csr-1", node="web-1", age_seconds=int(age.total_seconds()))
    held = tuple(CsrCondition(type=kind, reason=kind, message=f"{kind} so") for kind in conditions)
    return hold_request(request, *held)


def pods(service: str, *ready: bool) -> tuple[Pod, ...]:
    waiting = ("" if is_ready else "CrashLoopBackOff" for is_ready in ready)
    return tuple(make_pod(service, number, waiting=why) for number, why in enumerate(waiting))


def event(reason: str, ago: timedelta = timedelta(), message: str = "x") -> KubeEvent:
    return make_kube_event(reason, message, NOW - ago)


def explained(node: Node, **known: Any) -> NodeExplanation:
    return explain_node_evidence(make_evidence(node, **known), DeletionPolicy())


def faults(explanation: NodeExplanation) -> list[str]:
    return [finding.fault for finding in explanation.verdict.findings]


class Case(NamedTuple):
    """A Node, what is known about it, and the faults that are found."""

    faults: tuple[str, ...]
    node: Node
    evidence: dict[str, Any]


def case(node: Node, *found: str, **known: Any) -> Case:
    return Case(found, node, known)


def unrouted(reason: str, status: str) -> Node:
    """Return a healthy Node with this NetworkUnavailable."""
    return initialized(
        READY, NodeCondition(type="NetworkUnavailable", status=status, reason=reason, message="why so")
    )


UNSERVED: Final = make_decided("ipam", uid="uid-1", outcome="unserved", reason="full")
WAITS, DONE, NEW = registered(), initialized(), make_node(created=NOW - 5 * SECOND)
NOT_OURS: Final = registered(provider_id="aws:///z/i-1")
OF_AWS: Final = set_ownership_record(initialized(provider_id="aws:///z/i-1"), '{"v":1}')
SILENT: Final = MachineFault(kind="timeout", step="PlatformMetadata", endpoint="cp-1", message="no answer")
FACTS: Final = make_facts(node_name="web-1")
ANSWERS: Final = FACTS
ENRICHED: Final = msgspec.structs.replace(make_node_enriched(WAITS, FACTS), enriched_at=NOW - MINUTE)
RELEASED: Final = LeaseState(holder="", renewed_at=NOW)
NO_RIGHT: Final = FlowUnavailable(reason="no right")
NO_NATS: Final = FlowUnavailable(reason="NATS does not answer: refused")
BARE: Final[dict[str, Any]] = {"ip": "", "taints": ()}
CASES: Final = {
    "no watcher leads": case(WAITS, "no-leader", machine=ANSWERS, lease=RELEASED),
    "a watcher leads according to its messages": case(
        WAITS, "watcher-silent", machine=ANSWERS, flow=flow(), lease=RELEASED
    ),
    "no stream": case(WAITS, "no-stream", flow=FlowSnapshot(at=NOW)),
    "a full stream": case(WAITS, "stream-full", flow=flow(WAITS, stream=FULL)),
    "NATS is silent": case(WAITS, "nats-silent", flow=NO_NATS),
    # What is wrong for every Node stands before what was published last.
    "no leader, and NATS is silent": case(
        registered(10 * MINUTE, READY, BLOCKED), "no-leader", "nats-silent", flow=NO_NATS, lease=RELEASED
    ),
    "metadata is silent": case(WAITS, "metadata-silent", flow=flow(WAITS)),
    "the labeler is silent": case(WAITS, "labeler-silent", machine=ANSWERS, flow=flow(WAITS, ENRICHED)),
    "only the Node itself says it": case(
        registered(10 * MINUTE, READY, BLOCKED), "talos-silent", flow=NO_RIGHT, not_queried_reason="none"
    ),
    "a rule of a file that is not here fails": case(
        registered(10 * MINUTE, READY, RULE_FAILS), "rule-fails", machine=ANSWERS
    ),
    "no service has published anything": case(
        WAITS, "cause-unknown", flow=NO_RIGHT, not_queried_reason="none"
    ),
    "a pod crashes": case(WAITS, "metadata-silent", flow=NO_RIGHT, pods=pods("metadata", False)),
    "a pod of the labeler crashes": case(
        WAITS, "labeler-silent", flow=NO_RIGHT, pods=pods("metadata", True) + pods("labeler", False)
    ),
    "one pod of metadata is replaced": case(
        WAITS, "cause-unknown", flow=NO_RIGHT, pods=pods("metadata", False, True) + pods("labeler", True)
    ),
    "one pod of NATS is replaced": case(
        registered(10 * MINUTE, READY, BLOCKED),
        "talos-silent",
        flow=NO_RIGHT,
        pods=pods("nats", False, True, True),
    ),
    "all pods of NATS are down": case(
        registered(10 * MINUTE, READY, BLOCKED), "nats-silent", flow=NO_RIGHT, pods=pods("nats", False, False)
    ),
    "it has just joined": case(registered(2 * SECOND), machine=ANSWERS, flow=flow()),
    "it waits for its CNI for two minutes": case(
        registered(2 * MINUTE, WITHOUT_CNI), "cause-unknown", "not-ready", machine=ANSWERS
    ),
    "its kubelet never reported": case(
        make_node(created=NOW - 2 * MINUTE), "cause-unknown", "not-ready", machine=ANSWERS
    ),
    "its kubelet falls silent soon": case(
        registered(50 * SECOND, SILENT_KUBELET), "cause-unknown", "kubelet-silent", machine=ANSWERS
    ),
    "silent, and once written by us": case(OF_AWS, "talos-silent", machine=SILENT),
    "silent, and never written by us": case(NOT_OURS, "owner-unknown", machine=SILENT),
    "another's by its providerID": case(NOT_OURS, "of-another-controller", machine=ANSWERS),
    "another's by the file": case(registered(**BARE), "of-another", file=OF_TEAM_A),
    "another's by its scheme": case(
        registered(**BARE, provider_id="aws:///z/i-1"), "of-another", file=OF_TALOS
    ),
    "a scheme decides nothing without a providerID": case(
        registered(**BARE), "kubelet-not-external", file=OF_TALOS
    ),
    "its kubelet is not external": case(registered(**BARE), "kubelet-not-external"),
    "being deleted": case(initialized(deleted_at=NOW - MINUTE), "being-deleted"),
    "a request that waits": case(DONE, "certificate-waits", requests=(filed(),)),
    "a request that was just filed": case(DONE, requests=(filed(age=3 * SECOND),)),
    "a request that is denied": case(DONE, "certificate-denied", requests=(filed("Denied"),)),
    "a request that is not signed": case(DONE, "certificate-not-signed", requests=(filed("Approved"),)),
    "a file with mistakes": case(DONE, "cloud-config-refused", events=(event("CloudConfigRejected"),)),
    "a file that was corrected": case(
        DONE, events=(event("CloudConfigAccepted"), event("CloudConfigRejected", MINUTE))
    ),
    "ready, and still with the taint": case(still_tainted(10 * MINUTE), "not-ready-taint"),
    "ready since a moment": case(still_tainted(SECOND)),
    "no route to its pods": case(unrouted("NoRouteCreated", "True"), "no-route"),
    "a route to its pods": case(unrouted("RouteCreated", "False")),
    "a CNI that has not started": case(unrouted("CiliumIsUp", "True")),
    "no pod CIDR, by its Event": case(DONE, "no-pod-cidr", node_events=(event("CIDRNotAvailable"),)),
    "no pod CIDR, by ipam's decision": case(DONE, "no-pod-cidr", flow=flow(DONE, ENRICHED, UNSERVED)),
}


@pytest.mark.parametrize("name", CASES)
def test_these_faults_are_found_and_no_others(name: str):
    found, node, evidence = CASES[name]
    assert faults(explained(node, **evidence)) == list(found)


@pytest.mark.parametrize(
    ("node", "evidence", "state", "status", "text"),
    [
        (DONE, {"machine": ANSWERS}, "well", 0, "healthy: initialized and ready"),
        (still_tainted(SECOND), {"machine": ANSWERS}, "moving", 0, "starting since "),
        (still_tainted(10 * MINUTE), {"machine": ANSWERS}, "stuck", 1, "not schedulable since "),
        (NEW, {"machine": ANSWERS}, "moving", 0, "being initialized since "),
        (registered(5 * SECOND, WITHOUT_CNI), {"machine": ANSWERS}, "moving", 0, "being initialized"),
        (initialized(WITHOUT_CNI, age=20 * SECOND), {"machine": ANSWERS}, "moving", 0, "starting"),
        # Without a providerID, it is not called initialized.
        (registered(HOUR, taints=()), {"machine": ANSWERS}, "moving", 0, "being initialized since "),
        (registered(**BARE), {"file": OF_TEAM_A, "is_query_skipped": True}, "another's", 0, "managed by an"),
        # A machine that was not to be queried does not fail.
        (NEW, {"is_query_skipped": True}, "moving", 2, "being initialized since "),
        (registered(5 * SECOND, ip=""), {"is_query_skipped": True}, "stuck", 1, "not initialized since "),
    ],
)
def test_a_node_that_may_still_become_ready_is_not_stuck(
    node: Node, evidence: dict[str, Any], state: str, status: int, text: str
):
    explanation = explained(node, **evidence)
    assert (explanation.verdict.state, explanation.exit_status) == (state, status)
    assert render_lines(format_explanation(explanation)).startswith(f"web-1 is {text}")


def test_a_rejected_file_is_corrected_where_helm_keeps_it_and_a_question_ends_its_sentence():
    rejected = event("CloudConfigRejected", message="no key nam; did you mean name?")
    (finding,) = explained(DONE, events=(rejected,)).verdict.findings
    assert finding.cause.endswith("did you mean name?")
    assert finding.fix.endswith("Correct config and transformations in the chart's values, then upgrade.")


def test_a_pod_that_is_not_ready_is_named_with_its_reason_and_one_that_lacks_too():
    running = pods("watcher", False) + pods("csr", True)
    down = explained(WAITS, lease=RELEASED, pods=running).verdict
    assert "pod ccm-watcher-0 is not ready: watcher: CrashLoopBackOff" in down.findings[0].cause
    silent = explained(WAITS, flow=flow(WAITS), pods=running).verdict
    assert "metadata has no pod" in silent.findings[0].cause


def test_the_pods_of_all_services_in_one_process_are_selected_without_a_component():
    one_process = FlowUnavailable(reason="one process", is_all_in_one=True)
    (finding,) = explained(WAITS, lease=RELEASED, flow=one_process, machine=ANSWERS).verdict.findings
    logs = "kubectl -n kube-system logs -l app.kubernetes.io/name=talos-cloud-controller-manager --tail=50."
    assert finding.fix.endswith(logs)


def test_no_command_that_is_told_holds_what_a_node_has_made_up():
    addresses = (NodeAddress(type="InternalIP", address="10.0.0.5; reboot"),)
    node = registered(10 * MINUTE, NodeCondition(type="Ready", status="False"), addresses=addresses)
    request = filed("Denied")
    named = msgspec.structs.replace(
        request, metadata=msgspec.structs.replace(request.metadata, name="csr $(reboot)")
    )
    verdict = explained(node, machine=ANSWERS, flow=flow(), requests=(named,)).verdict
    told = " ".join(finding.fix for finding in verdict.findings)
    assert "talosctl -n 10.0.0.5 service kubelet" in told
    assert "talos-ccm explain csr 'csr $(reboot)'. Then" in told


# ---- what the caller lacks is no fault of the machine or of metadata


def failed(kind: FaultKind, node: Node = DONE, known: FlowResult | None = None) -> NodeExplanation:
    """Return the explanation of a Node whose machine does not answer the caller.

    `known` is the flow; by default, metadata has queried the machine a minute ago.
    """
    fault = MachineFault(kind=kind, step="PlatformMetadata", endpoint="cp for 10.0.0.5", message="no way")
    evidence = make_evidence(node, machine=fault, flow=known or answered(node, MINUTE))
    return explain_node_evidence(choose_report(evidence), DeletionPolicy())


def answered(node: Node, ago: timedelta) -> FlowSnapshot:
    return flow(None, make_node_enriched(node, make_facts(node_name=node.name, queried_at=NOW - ago)))


@pytest.mark.parametrize("kind", ["certificate", "permission", "no_endpoint", "timeout", "refused"])
def test_a_machine_that_answers_metadata_is_well_whatever_the_caller_lacks(kind: FaultKind):
    known = failed(kind)
    assert (known.verdict.state, known.exit_status) == ("well", 0)
    if kind in ("timeout", "refused"):
        assert known.evidence.unavailable_parts == (
            "its machine, queried by this command: PlatformMetadata at cp for 10.0.0.5: no way",
        )
    else:
        unknown = failed(kind, known=FlowUnavailable(reason="one process", is_all_in_one=True))
        assert (faults(unknown), unknown.exit_status) == ([], 2)
        assert "no way" in next(check.text for check in unknown.checks if check.result == "unknown")


def test_what_metadata_heard_long_ago_or_of_a_kubelet_that_is_silent_proves_nothing():
    assert faults(failed("timeout", known=answered(DONE, 20 * MINUTE))) == ["talos-silent"]
    assert faults(failed("timeout", initialized(SILENT_KUBELET))) == ["talos-silent", "kubelet-silent"]


def routing_pod(*flags: str) -> Pod:
    ours = ("--controllers=node-route-controller", "--cloud-account=hcloud/prod")
    return make_running_pod("services.cloud", *ours, *flags)


@pytest.mark.parametrize(
    ("node", "flags", "shown"),
    [
        (unrouted("RouteCreated", "False"), (), "Route         why so"),
        (unrouted("NoRouteCreated", "True"), (), "Route         none: why so"),
        (DONE, (), ""),
        (DONE, ("--route-network=prod=4711",), "none: the Node has no pod CIDR"),
        (DONE, ("--route-network=prod=4711", "--route-dry-run"), ""),
        (
            initialized(pod_cidrs=("10.244.1.0/24",)),
            ("--route-network=prod=4711",),
            "none: no account with routes is at its cloud",
        ),
        (
            initialized(pod_cidrs=("10.244.1.0/24",), provider_id="hcloud://1"),
            ("--route-network=prod=4711",),
            "none: account prod has not reported on it",
        ),
        (
            initialized(pod_cidrs=("10.244.1.0/24",), provider_id=""),
            ("--route-network=prod=4711",),
            "none: the Node has no providerID",
        ),
    ],
)
def test_the_route_of_the_node_is_shown_or_why_there_is_none(node: Node, flags: tuple[str, ...], shown: str):
    text = render_lines(format_explanation(explained(node, pods=(routing_pod(*flags),))), 300)
    assert shown in text
    assert ("Route  " in text) == bool(shown)
