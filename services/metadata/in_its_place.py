"""Who answers where a Node's machine should: whether that says that another machine has taken its place.

Nothing is concluded from silence, an error, half an answer, or a discovery that may know nobody yet.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from libs.common.machine import AnotherMachine, MachineFacts, MachineFault
from libs.common.node import Node
from libs.common.node_ips import parse_ip
from services.metadata.links import dial_order

MOST_ADDRESSES: Final = 8  # of one Node: others may write them, and each is dialled


class NotProven(msgspec.Struct, frozen=True):
    """Nothing follows from what was seen, and why."""

    reason: str


def addresses_of(node: Node) -> tuple[str, ...] | NotProven:
    """Where the Node's machine should answer: its provided node IPs, then what else is an InternalIP.

    ExternalIPs are left out: a cloud may translate them, and no Talos need be behind them.
    """
    provided = dial_order(node.provided_node_ip, prefer_ipv6=False)
    if isinstance(provided, MachineFault) or not provided:
        return NotProven("the Node has no node IP that is dialled")
    found = dict.fromkeys(provided)
    for written in node.status.addresses:
        if written.type != "InternalIP":
            continue
        ip = parse_ip(written.address)
        dialled = dial_order(str(ip), prefer_ipv6=False) if ip is not None else ()
        if isinstance(dialled, MachineFault) or not dialled:
            return NotProven(f"its InternalIP {written.address[:80]!a} is none that is dialled")
        found.update(dict.fromkeys(dialled))
    if len(found) > MOST_ADDRESSES:
        return NotProven(f"the Node has more than {MOST_ADDRESSES} addresses")
    return tuple(found)


def still_to_ask(node: Node, answered: Sequence[MachineFacts]) -> tuple[str, ...] | NotProven:
    """The Node's other addresses, once all that were dialled so far were answered by other machines."""
    addresses = addresses_of(node)
    if isinstance(addresses, NotProven):
        return addresses
    at = {facts.node_ip for facts in answered}
    provided = dial_order(node.provided_node_ip, prefer_ipv6=False)
    if not set(provided if isinstance(provided, tuple) else ()) <= at:
        return NotProven("not all of its node IPs are answered")
    if why := _why_no_other(node, answered):
        return NotProven(why)
    return tuple(address for address in addresses if address not in at)


def who_answers(
    node: Node,
    answers: Mapping[str, MachineFacts | MachineFault],
    *,
    members: AbstractSet[str],
    reached: AbstractSet[str],
) -> tuple[AnotherMachine, ...] | NotProven:
    """One machine for each of the Node's addresses. `answers`: what was said there. `members`: the node names
    that discovery knows. `reached`: of the Nodes whose machines say what they are.

    Where machines lost their addresses to one another, as after a power cut without DHCP leases, they answer
    in each other's place: one that is not found where its own Node says proves nothing. And a control plane
    that has just started knows few members, or none: its list counts only if it names the machines that
    answered, and most of those that are within reach.
    """
    addresses = addresses_of(node)
    if isinstance(addresses, NotProven):
        return addresses
    found = []
    for address in addresses:
        facts = answers.get(address)
        if not isinstance(facts, MachineFacts):
            return NotProven(f"at {address}: {facts.message if facts is not None else 'nobody was asked'}")
        found.append(facts)
    why = _why_no_other(node, found) or _why_discovery_says_nothing(node, found, members, reached)
    why = why or _why_out_of_place(found, reached)
    return NotProven(why) if why else tuple(map(_another, addresses, found))


def _why_no_other(node: Node, answered: Sequence[MachineFacts]) -> str:
    for facts in answered:
        if not facts.node_name:
            return f"the machine at {facts.node_ip} does not know its node name yet"
        if facts.node_name == node.name:
            return f"the machine at {facts.node_ip} bears the node's name"
    return ""


def _why_discovery_says_nothing(
    node: Node, answered: Sequence[MachineFacts], members: AbstractSet[str], reached: AbstractSet[str]
) -> str:
    if node.name in members:
        return f"discovery still knows a member {node.name}"
    for facts in answered:
        if facts.node_name not in members:
            return f"discovery does not know {facts.node_name} either, which answers at {facts.node_ip}"
    known = len(reached & members)
    if reached and 2 * known <= len(reached):
        return f"discovery knows only {known} of {len(reached)} machines that are within reach"
    return ""


def _why_out_of_place(answered: Sequence[MachineFacts], reached: AbstractSet[str]) -> str:
    for facts in answered:
        if facts.node_name not in reached:
            return f"the machine at {facts.node_ip} does not answer as Node {facts.node_name} itself"
    return ""


def _another(address: str, facts: MachineFacts) -> AnotherMachine:
    return AnotherMachine(
        address=address,
        node_name=facts.node_name,
        uuid=facts.system.uuid if facts.system is not None else "",
        looked_at=facts.looked_at,
    )
