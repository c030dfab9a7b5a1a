"""Verifies that a machine belongs to a Node: facts of another machine must never be written to the Node.

The Nodename of Talos decides. If it differs (kubelet's hostname-override), the systemUUID decides, unless
another Node claims the machine. Without a Nodename metadata waits: the kubelet writes the address, so the
address alone proves nothing.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from libs.common.contract.ip_addresses import canonical_ip, list_node_ips
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid

STEP: Final = "Nodename"


class MachineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Proof that the queried machine belongs to the Node, by method and reason."""

    method: Literal["nodename", "system-uuid"]
    reason: str


def verify(
    node: Node, facts: MachineFacts, all_nodes: Iterable[Node] | None
) -> MachineIdentity | MachineFault:
    """Return the proof that these facts belong to the Node, or a fault.

    `all_nodes` may contain this Node; None if not all Nodes are known. It is iterated only if names differ.
    """
    if not facts.node_name:
        return MachineFault(
            kind="not_found",
            step=STEP,
            message=f"the machine at {facts.node_ip} has no node name yet; metadata polls it again",
        )
    if facts.node_name == node.name:
        return MachineIdentity(
            method="nodename", reason=f"Talos at {facts.node_ip} reports node name {node.name}"
        )
    mismatch = _explain_uuid_mismatch(node, facts, all_nodes)
    if mismatch:
        return _wrong_machine_fault(node, facts, mismatch)
    return MachineIdentity(
        method="system-uuid",
        reason=f"the machine at {facts.node_ip} has node name {facts.node_name} (hostname-override?), "
        f"but the systemUUID of Node {node.name}, and no other Node claims it",
    )


def _explain_uuid_mismatch(node: Node, facts: MachineFacts, all_nodes: Iterable[Node] | None) -> str:
    uuid = normalize_uuid(facts.system.uuid) if facts.system else ""
    if not uuid:
        return "it has no unique systemUUID"
    if normalize_uuid(node.status.node_info.system_uuid) != uuid:
        return "its systemUUID differs too"
    if all_nodes is None:
        return "another Node may claim it: not all Nodes are known yet"
    addresses = _list_machine_addresses(facts)
    for other in all_nodes:
        if other.name != node.name and (claim := _describe_claim(other, facts.node_name, uuid, addresses)):
            return f"Node {other.name} has its {claim} too"
    return ""


def _describe_claim(other: Node, node_name: str, uuid: str, addresses: frozenset[str]) -> str:
    if other.name == node_name:
        return "node name"
    if normalize_uuid(other.status.node_info.system_uuid) == uuid:
        return "systemUUID"
    claimed = {canonical_ip(address.address) for address in other.status.addresses}
    claimed.update(map(str, list_node_ips(other.provided_node_ip)))
    shared = sorted(claimed & addresses)
    return f"address {shared[0]}" if shared else ""


def _list_machine_addresses(facts: MachineFacts) -> frozenset[str]:
    listed = (facts.node_ip, *(status.address for status in facts.addresses))
    return frozenset(ip for ip in map(canonical_ip, listed) if ip)


def _wrong_machine_fault(node: Node, facts: MachineFacts, why: str) -> MachineFault:
    return MachineFault(
        kind="wrong_machine",
        step=STEP,
        message=f"the machine at {facts.node_ip} has node name {facts.node_name}, not {node.name}, and {why}",
    )
