"""What the accounts of its cloud say of a Node: of its server, and of the routes to its pods. Pure."""

from collections.abc import Mapping
from typing import Final

from cli.cluster.cloud_accounts import AccountProcess, list_container_accounts
from cli.cluster.unavailable import list_known
from cli.explain.node.deletion_forecast import build_deletion_case
from cli.explain.node.finding import NodeCase, NodeFinding, make_finding
from cli.explain.node.node_evidence import NodeEvidence
from cli.lines import format_names
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE_TEXT
from libs.common.contract.controllers import NODE_LIFECYCLE
from libs.common.contract.events import (
    InstanceExists,
    InstanceGone,
    InstanceReport,
    InstanceShutDown,
    InstanceUnknown,
    NodeEnriched,
)
from libs.common.contract.instances import InstanceRecord, get_provider, read_instance_record
from libs.common.contract.machine_loss import find_machine_loss, select_own_reports
from libs.common.contract.node import NETWORK_UNAVAILABLE, NO_ROUTE_CREATED, NodeCondition
from libs.common.contract.services import LIFECYCLE
from libs.common.contract.timestamp import parse_time
from services.cloud.core.judge_round import NEVER_SEEN
from services.lifecycle.core import instance_evidence as clauses
from services.lifecycle.core.decide import INSTANCES_NAME, explain_exclusion
from services.lifecycle.core.deletion_limit import BUT
from services.lifecycle.core.node_index import DeletionCase

_IF_GONE: Final = "If the cloud's console does not show its server: kubectl delete node {node}."
_LOG_OF_CLOUD: Final = "kubectl -n {namespace} logs -l app.kubernetes.io/component=cloud-{account} --tail=50."
_LOG_OF_METADATA: Final = "kubectl -n {namespace} logs -l app.kubernetes.io/component=metadata --tail=50."
_REBUILT: Final = (
    "If the server was created again: kubectl delete node {node}, then talosctl -n {ip} service kubelet "
    "restart, so that the Node gets the new providerID."
)
# What lets lifecycle delete a Node that a clause keeps, in the order of the clauses.
RELEASES: Final[Mapping[clauses.Clause, str]] = {
    clauses.needs_same_machine: f"Find out which machine joined by this name. {_IF_GONE}",
    clauses.needs_no_other_provider_id: _REBUILT,
    clauses.needs_this_instance: f"Wait a minute for the next round of the account. {_IF_GONE}",
    clauses.needs_sound_round: f"Wait a minute for the next round. If it fails, too: {_LOG_OF_CLOUD}",
    clauses.needs_past_times: "Correct the clock of the machine on which cloud-{account} runs.",
    clauses.needs_witness: (
        "Restore the object of the project that the record names, if it was deleted: kubectl get node {node} "
        f"-o yaml. {_IF_GONE}"
    ),
    clauses.needs_no_account_that_sees_it: (
        "The server may have moved to the project of that account. Once that account lacks it, too, "
        "lifecycle deletes the Node."
    ),
    clauses.needs_answer_of_each_account: (
        "Repair that account, see talos-ccm status; or remove it from clouds of the chart, and wait "
        f"{MAX_MESSAGE_AGE_TEXT}."
    ),
    clauses.needs_no_namesake: _REBUILT,
    clauses.needs_silent_machine: (
        "Compare the machine that answers with the server: talosctl -n {ip} get platformmetadata -o yaml. "
        f"{_IF_GONE}"
    ),
    clauses.needs_machine_report: (
        "Wait a minute. If nothing changes, metadata does not reach the control planes, or the Node "
        f"announces no address: {_LOG_OF_METADATA} {_IF_GONE}"
    ),
    clauses.needs_no_machine_with_its_name: f"Find out whether that machine is the Node's. {_IF_GONE}",
    clauses.needs_own_uuid: f"Find out to which of the two Nodes the machine belongs. {_IF_GONE}",
}
_SILENCING: Final = ("instance-gone", "instance-gone-kept", "instance-shut-down")


def explains_fault(finding: NodeFinding, other: NodeFinding) -> bool:
    """Whether it explains the other one, about which nothing else can be done then."""
    return finding.fault in _SILENCING and other.fault in ("talos-silent", "kubelet-silent")


def find_instance_fault(case: NodeCase) -> NodeFinding | None:
    """Return the fault of the server of a Node that is not Ready; None if no account reports one."""
    evidence = case.evidence
    deletion = build_deletion_case(evidence)
    node, record = evidence.node, deletion.record
    views = (view.last for view in deletion.instances.values())
    reports = select_own_reports(views, node.uid, node.spec.provider_id)
    loss = find_machine_loss(reports, record, answers=isinstance(deletion.report, NodeEnriched))
    if loss is not None and loss.kind == "off":
        return _make_finding(case, "instance-shut-down", loss.account)
    if any(isinstance(each, InstanceShutDown) for each in reports):
        return None  # its machine answers
    if record is not None:
        return _find_fault_of_recorded(case, deletion, record)
    if not reports or any(isinstance(each, InstanceExists) for each in reports):
        return None
    reasons = {each.account: each.reason for each in reports if isinstance(each, InstanceUnknown)}
    unsure = next((account for account, reason in reasons.items() if reason != NEVER_SEEN), None)
    if unsure is not None:
        return _make_finding(case, "instance-unknown", unsure, reasons[unsure])
    return _make_finding(case, "instance-never-seen", " and ".join(reasons)) if reasons else None


def _find_fault_of_recorded(
    case: NodeCase, deletion: DeletionCase, record: InstanceRecord
) -> NodeFinding | None:
    """Return the fault by the account that has shown the server alive."""
    evidence, account = case.evidence, record.account
    view = deletion.instances.get(account)
    if view is None:
        is_known = not evidence.messages_problem
        why = f"it has reported nothing for {MAX_MESSAGE_AGE_TEXT}, or since the start of NATS"
        return _make_finding(case, "instance-unknown", account, why) if is_known else None
    if isinstance(view.last, InstanceGone) or view.last.namesake:
        return _explain_gone(case, deletion, record)
    if isinstance(view.last, InstanceUnknown):
        return _make_finding(case, "instance-unknown", account, view.last.reason)
    return None


def _explain_gone(case: NodeCase, deletion: DeletionCase, record: InstanceRecord) -> NodeFinding:
    """Return which clause keeps the Node, else what lifecycle waits for."""
    evidence, account = case.evidence, record.account
    if foreign := explain_exclusion(evidence.ownership.for_controller(NODE_LIFECYCLE), evidence.node):
        return _make_finding(case, "instance-gone-kept", account, foreign, release=_IF_GONE)
    for clause, release in RELEASES.items():
        if why := clause(deletion, record):
            return _make_finding(case, "instance-gone-kept", account, why, release=release)
    return _make_finding(case, "instance-gone", account, _describe_wait(evidence))


def _describe_wait(evidence: NodeEvidence) -> str:
    """Return why lifecycle has not deleted the Node yet, by its last decision."""
    decided = evidence.find_decision(LIFECYCLE)
    if decided is None:
        return "lifecycle has not decided on it"
    if decided.outcome == "would-delete":
        return "a dry run would delete it"
    of_cloud = decided.reason.partition(f"For {INSTANCES_NAME}: ")[2]
    return of_cloud or decided.reason.rpartition(BUT)[2]


def _make_finding(
    case: NodeCase, fault: str, account: str, detail: str = "", *, release: str = ""
) -> NodeFinding:
    node = case.evidence.node
    ready = node.find_condition("Ready")
    since = parse_time(ready.last_transition_time) if ready is not None else None
    return make_finding(
        case, fault, detail, since, account=account, server=node.spec.provider_id, release=release
    )


# ---- routes


def find_missing_route(evidence: NodeEvidence) -> NodeCondition | None:
    """Return the condition by which a route controller reports that routes are missing."""
    condition = evidence.node.find_condition(NETWORK_UNAVAILABLE)
    is_missing = condition is not None and (condition.status, condition.reason) == ("True", NO_ROUTE_CREATED)
    return condition if is_missing else None


def describe_route(evidence: NodeEvidence) -> str:
    """Return the route, or why there is none; "" where no controller makes routes, as far as known."""
    condition = evidence.node.find_condition(NETWORK_UNAVAILABLE)
    if condition is not None:
        missing = "none: " if condition.status == "True" else ""
        return f"{missing}{condition.message or condition.reason}{_describe_server(evidence)}"
    pods = list_known(evidence.snapshot.pods)
    running = (
        each for pod in pods for c in pod.spec.containers for each in list_container_accounts(pod.name, c)
    )
    accounts = tuple(each for each in running if each.network)
    return f"none: {_explain_absence(evidence, accounts)}" if accounts else ""


def _describe_server(evidence: NodeEvidence) -> str:
    """Return why the route reaches no server. The account writes the condition when its route changes."""
    node, reports = evidence.node, evidence.messages.list_events(InstanceReport)
    loss = find_machine_loss(
        select_own_reports(reports, node.uid, node.spec.provider_id), read_instance_record(node), answers=None
    )
    return f", but its server is {loss.kind}" if loss is not None else ""


def _explain_absence(evidence: NodeEvidence, accounts: tuple[AccountProcess, ...]) -> str:
    spec = evidence.node.spec
    if not spec.pod_cidrs:
        return "the Node has no pod CIDR"
    if not spec.provider_id:
        return "the Node has no providerID, so its cloud is unknown"
    names = {each.account.name for each in accounts if each.provider == get_provider(spec.provider_id)}
    if not names:
        return "no account with routes is at its cloud"
    return (
        f"account {format_names(names)} has not reported on it: it does not list the instance, or the pod "
        "CIDRs are of a family that its network cannot route, or it does not run"
    )
