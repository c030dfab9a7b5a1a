"""Judges whether other machines have replaced a Node's machine, by the answers at its addresses.

A timeout, an error, a partial answer, or a discovery that may list no members yet proves nothing.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from libs.common.contract.ip_addresses import list_node_ips, parse_ip
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node
from services.metadata.core.dial_targets import order_dial_targets

MAX_ADDRESSES: Final = 8  # per Node: other clients may write them, and each is dialled


class Inconclusive(msgspec.Struct, frozen=True):
    """The reason why the answers prove no replacement."""

    reason: str


def list_expected_addresses(node: Node) -> tuple[str, ...] | Inconclusive:
    """Return where the Node's machine should answer: its provided node IPs, then its other InternalIPs.

    ExternalIPs are ignored: a cloud may translate them, so another host than Talos may answer there.
    """
    provided = order_dial_targets(node.provided_node_ip, prefer_ipv6=False)
    if isinstance(provided, MachineFault) or not provided:
        return Inconclusive("the Node has no node IP that metadata dials")
    found = dict.fromkeys(provided)
    for written in node.status.addresses:
        if written.type != "InternalIP":
            continue
        ip = parse_ip(written.address)
        if ip is None or not list_node_ips(str(ip)):
            return Inconclusive(f"metadata does not dial its InternalIP {written.address[:80]!a}")
        found[str(ip)] = None
    if len(found) > MAX_ADDRESSES:
        return Inconclusive(f"the Node has more than {MAX_ADDRESSES} addresses")
    return tuple(found)


def list_remaining_addresses(
    node: Node, wrong_machines: Sequence[MachineFacts]
) -> tuple[str, ...] | Inconclusive:
    """Return the Node's other addresses, once other machines have answered at all dialled ones."""
    addresses = list_expected_addresses(node)
    if isinstance(addresses, Inconclusive):
        return addresses
    at = {facts.node_ip for facts in wrong_machines}
    if not at.issuperset(map(str, list_node_ips(node.provided_node_ip))):
        return Inconclusive("no machine answers at some of its node IPs")
    if why := _explain_no_other(node, wrong_machines):
        return Inconclusive(why)
    return tuple(address for address in addresses if address not in at)


def judge_replacement(
    node: Node,
    answers: Mapping[str, MachineFacts | MachineFault],
    *,
    members: AbstractSet[str],
    reachable_nodes: AbstractSet[str],
) -> tuple[ForeignMachine, ...] | Inconclusive:
    """Return the foreign machine at each of the Node's addresses, or why these answers prove no replacement.

    `answers`: the result per address. `members`: the node names that discovery lists. `reachable_nodes`: the
    Nodes whose machines were verified by node name.

    After a power cut without DHCP leases, machines may swap addresses and answer in each other's place. So a
    machine that does not answer at the address of its own Node proves nothing. A control plane that has just
    started lists few members or none. Its list counts only if it has the machines that answered, and most of
    the reachable ones.
    """
    addresses = list_expected_addresses(node)
    if isinstance(addresses, Inconclusive):
        return addresses
    found = []
    for address in addresses:
        facts = answers.get(address)
        if not isinstance(facts, MachineFacts):
            return Inconclusive(f"at {address}: {facts.message if facts is not None else 'not queried'}")
        found.append(facts)
    why = _explain_no_other(node, found) or _explain_discovery(node, found, members, reachable_nodes)
    why = why or _explain_out_of_place(found, reachable_nodes)
    return Inconclusive(why) if why else tuple(map(_make_another_machine, addresses, found))


def _explain_no_other(node: Node, answered: Sequence[MachineFacts]) -> str:
    for facts in answered:
        if not facts.node_name:
            return f"the machine at {facts.node_ip} has no node name yet"
        if facts.node_name == node.name:
            return f"the machine at {facts.node_ip} has the Node's name"
    return ""


def _explain_discovery(
    node: Node, answered: Sequence[MachineFacts], members: AbstractSet[str], reached: AbstractSet[str]
) -> str:
    if node.name in members:
        return f"discovery still lists a member {node.name}"
    for facts in answered:
        if facts.node_name not in members:
            return f"discovery does not list {facts.node_name}, which answers at {facts.node_ip}"
    known = len(reached & members)
    if reached and 2 * known <= len(reached):
        return f"discovery lists only {known} of {len(reached)} reachable machines"
    return ""


def _explain_out_of_place(answered: Sequence[MachineFacts], reached: AbstractSet[str]) -> str:
    for facts in answered:
        if facts.node_name not in reached:
            return f"the machine at {facts.node_ip} does not answer at its own Node {facts.node_name}"
    return ""


def _make_another_machine(address: str, facts: MachineFacts) -> ForeignMachine:
    return ForeignMachine(
        address=address,
        node_name=facts.node_name,
        uuid=facts.system.uuid if facts.system is not None else "",
        queried_at=facts.queried_at,
    )
