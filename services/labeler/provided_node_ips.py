"""Verifies that the machine has the addresses that its kubelet announces; only these are used.

The kubelet writes the annotation. An address of another machine would become an InternalIP, which the API
server dials, and part of a providerID, which is immutable.
"""

import msgspec

from libs.common.contract.ip_addresses import IP, parse_ip
from libs.common.contract.machine import ForeignNodeIP, MachineFacts
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION, Node
from libs.common.contract.public_addresses import list_machine_ips
from services.labeler.blocker import (
    Blocker,
    block_on_bad_node_ip,
    block_on_foreign_node_ip,
    block_on_missing_node_ip,
)
from services.labeler.notices import Notice


class ProvidedNodeIPs(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of one annotation in its order, split by whether the labeler may use them."""

    usable: tuple[IP, ...]
    unusable: tuple[IP, ...] = ()
    foreign_node_ips: tuple[ForeignNodeIP, ...] = ()  # announced addresses where another machine answered


def verify_provided_node_ips(node: Node, ips: tuple[IP, ...], facts: MachineFacts) -> ProvidedNodeIPs:
    """Split the announced addresses by the machine's facts.

    An initialized Node keeps an InternalIP that its machine does not list, unless another machine answers
    there: the list is incomplete while a link is down.
    """
    foreign = tuple(each for each in facts.foreign_node_ips if parse_ip(each.address) in ips)
    own = list_machine_ips(facts)
    kept = (
        _internal_ips(node) - {parse_ip(each.address) for each in foreign} if node.is_initialized else set()
    )
    usable = tuple(ip for ip in ips if ip in own or ip in kept)
    return ProvidedNodeIPs(
        usable=usable, unusable=tuple(ip for ip in ips if ip not in usable), foreign_node_ips=foreign
    )


def find_node_ip_blocker(node_ips: ProvidedNodeIPs, facts: MachineFacts) -> Blocker | None:
    """Return the blocker of a joining Node without a usable address or with a foreign one, or None."""
    if node_ips.foreign_node_ips:
        return block_on_foreign_node_ip(node_ips.foreign_node_ips, facts.node_name)
    if not node_ips.usable:
        addresses = " and ".join(map(str, node_ips.unusable))
        return block_on_bad_node_ip(f"machine {facts.node_name} does not have {addresses}")
    return None


def find_fallback_ip_blocker(node_ips: ProvidedNodeIPs, node_ip: IP, facts: MachineFacts) -> Blocker | None:
    """Return why the fallback providerID cannot contain this address; None if it can.

    No other address replaces it: the machine may have this one again a moment later.
    """
    return None if node_ip in node_ips.usable else block_on_missing_node_ip(str(node_ip), facts.node_name)


def build_unusable_ip_notices(node_ips: ProvidedNodeIPs, facts: MachineFacts) -> tuple[Notice, ...]:
    """Build the notice about announced addresses that the labeler does not use."""
    if not node_ips.unusable:
        return ()
    addresses = ", ".join(map(str, node_ips.unusable))
    others = "".join(
        f"; machine {each.node_name} answers at {each.address}" for each in node_ips.foreign_node_ips
    )
    text = (
        f"the kubelet announces {addresses} (annotation {PROVIDED_NODE_IP_ANNOTATION}), which machine "
        f"{facts.node_name} does not have: not used{others}; correct --node-ip of the kubelet"
    )
    return (Notice(reason="NodeIPNotUsed", message=text),)


def _internal_ips(node: Node) -> set[IP | None]:
    return {parse_ip(each.address) for each in node.status.addresses if each.type == "InternalIP"}
