"""Decides whether another Node keeps a Node from getting a providerID, which is immutable. Pure."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple, Self

import msgspec

from libs.common.contract.events import Event, NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import InvalidNodeIP, parse_ip, parse_node_ips
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid
from libs.common.contract.timestamp import parse_time

# A machine that restarts is silent for some minutes, and returns.
_RESTART_PERIOD: Final = timedelta(minutes=10)


class ProviderIDConflict(msgspec.Struct, frozen=True, kw_only=True):
    """Another Node with the same providerID."""

    other: str  # its name
    why_withheld: str  # why this Node must not get the providerID; "" if the other Node is stale


class Claim(NamedTuple):
    """A joining Node; of several that will have the same providerID, the least gets it."""

    created_at: float  # Unix time, in seconds
    uid: str
    name: str

    @classmethod
    def of(cls, node: Node) -> Self:
        """Return the claim of that Node."""
        created = node.metadata.creation_timestamp
        return cls(created.timestamp() if created is not None else 0.0, node.uid, node.name)


# (Node without a providerID, facts of its machine, future providerID) -> a conflict, or None
FindProviderIDConflict = Callable[[Node, MachineFacts, str], ProviderIDConflict | None]


def find_no_conflict(node: Node, facts: MachineFacts, provider_id: str) -> ProviderIDConflict | None:
    """Return None, where the other Nodes are not known."""
    return None


def judge_holder(node: Node, facts: MachineFacts, holder: Node, report: Event | None) -> str:
    """Return why the Node must not get the providerID that `holder` has; "" if `holder` is stale.

    `report` is metadata's last event about `holder`. Stale means that its machine no longer answers, or is
    the machine of `node`, which was reinstalled under a new name.
    """
    if isinstance(report, NodeEnriched) and report.node.uid == holder.uid:
        theirs = report.facts.node_name
        return "" if theirs == facts.node_name else f"machine {theirs} answers as that Node"
    fault = report.fault.kind if isinstance(report, NodeUnreachable) and report.node.uid == holder.uid else ""
    uuid, other_uuid = (normalize_uuid(each.status.node_info.system_uuid) for each in (node, holder))
    is_same_machine = bool(uuid) and uuid == other_uuid
    # Kubernetes notices only after 40 s or more that the former kubelet is gone. The systemUUID alone is no
    # proof, because each kubelet writes its own.
    if is_same_machine and fault == "wrong_machine" and _has_address(holder, facts.node_ip):
        return ""
    ready = holder.find_condition("Ready")
    if ready is not None and ready.status == "True":
        return "the kubelet of that Node is Ready"
    if is_same_machine:
        return ""
    if not fault and holder.provided_node_ip:
        return "metadata has not reported on the machine of that Node yet"
    since = parse_time(ready.last_transition_time) if ready is not None else None
    if since is not None and facts.queried_at - since < _RESTART_PERIOD:
        return "the machine of that Node may only be restarting"
    return ""


def _has_address(node: Node, address: str) -> bool:
    provided = parse_node_ips(node.provided_node_ip or "")
    return not isinstance(provided, InvalidNodeIP) and parse_ip(address) in provided
