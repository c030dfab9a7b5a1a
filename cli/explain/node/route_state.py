"""What a cloud's network routes to the pods of a Node, or why it routes nothing. Pure."""

from cli.cluster.cloud_accounts import AccountProcess, list_container_accounts
from cli.cluster.unavailable import list_known
from cli.explain.node.node_evidence import NodeEvidence
from cli.lines import format_names
from libs.common.contract.events import InstanceReport
from libs.common.contract.instances import get_provider, read_instance_record
from libs.common.contract.machine_loss import find_machine_loss, select_own_reports
from libs.common.contract.node import NETWORK_UNAVAILABLE, NO_ROUTE_CREATED, NodeCondition


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
