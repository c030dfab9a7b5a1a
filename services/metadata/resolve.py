"""Which machine bears a Node: facts of another machine must never be written to it.

Talos's Nodename decides. Where it differs (kubelet's hostname-override), systemUUID may stand in, if nothing
else lays claim to the machine. Without a Nodename we wait: an address alone, node-written, proves nothing.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from libs.common.machine import MachineFacts, MachineFault
from libs.common.node import Node
from libs.common.system_uuid import canonical_uuid
from services.metadata.links import dial_order

STEP: Final = "Nodename"


class Recognized(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that was asked bears this Node, and by what we know."""

    by: Literal["nodename", "system-uuid"]
    reason: str


def recognize(node: Node, facts: MachineFacts, others: Iterable[Node] | None) -> Recognized | MachineFault:
    """Whether these facts are the Node's own. `others`: all Nodes (this one may be among them), None if not
    all are known; it is walked only where names differ.
    """
    if not facts.node_name:
        return MachineFault(
            kind="not_found",
            step=STEP,
            message=f"the machine at {facts.node_ip} does not know its node name yet; waiting for it",
        )
    if facts.node_name == node.name:
        return Recognized(by="nodename", reason=f"Talos at {facts.node_ip} says that it bears {node.name}")
    why_not = _why_not_by_uuid(node, facts, others)
    if why_not:
        return _wrong_machine(node, facts, why_not)
    return Recognized(
        by="system-uuid",
        reason=f"the machine at {facts.node_ip} calls itself {facts.node_name} (hostname-override?) "
        f"but has the systemUUID of Node {node.name}, and no other Node claims it",
    )


def _why_not_by_uuid(node: Node, facts: MachineFacts, others: Iterable[Node] | None) -> str:
    uuid = canonical_uuid(facts.system.uuid) if facts.system else ""
    if not uuid:
        return "it has no systemUUID that could tell it from others"
    if canonical_uuid(node.status.node_info.system_uuid) != uuid:
        return "its systemUUID is not this Node's either"
    if others is None:
        return "whether another Node claims it is not known yet"
    addresses = _addresses_of_machine(facts)
    for other in others:
        if other.name != node.name and (claim := _claim(other, facts.node_name, uuid, addresses)):
            return f"Node {other.name} has its {claim} too"
    return ""


def _claim(other: Node, node_name: str, uuid: str, addresses: frozenset[str]) -> str:
    if other.name == node_name:
        return "node name"
    if canonical_uuid(other.status.node_info.system_uuid) == uuid:
        return "systemUUID"
    provided = dial_order(other.provided_node_ip, prefer_ipv6=False)
    claimed = {_plain(address.address) for address in other.status.addresses}
    if isinstance(provided, tuple):
        claimed.update(provided)
    shared = sorted(claimed & addresses)
    return f"address {shared[0]}" if shared else ""


def _addresses_of_machine(facts: MachineFacts) -> frozenset[str]:
    return frozenset(_plain(status.address) for status in facts.addresses) | {_plain(facts.node_ip)}


def _plain(text: str) -> str:
    """One spelling per address, without prefix length; a host name stays what it is."""
    try:
        return str(ipaddress.ip_interface(text).ip)
    except ValueError:
        return text


def _wrong_machine(node: Node, facts: MachineFacts, why: str) -> MachineFault:
    return MachineFault(
        kind="wrong_machine",
        step=STEP,
        message=f"the machine at {facts.node_ip} bears node {facts.node_name}, not {node.name}, and {why}",
    )
