"""Which of the addresses that a kubelet announces may be used: those that its machine has.

The annotation is written by the node. An address of another machine would become an InternalIP, which the API
server dials, and part of a providerID, which nobody can change.
"""

import msgspec

from libs.common.machine import ForeignAnswer, MachineFacts
from libs.common.node import PROVIDED_NODE_IP, Node
from libs.common.node_ips import IP, parse_ip
from libs.common.public_addresses import ips_on_machine
from services.labeler.blocked import Blocked, by_bad_node_ip, by_foreign_answer, by_missing_node_ip
from services.labeler.notices import Notice


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of one annotation, in its order."""

    usable: tuple[IP, ...]
    unusable: tuple[IP, ...] = ()
    foreign: tuple[ForeignAnswer, ...] = ()  # announced addresses at which another machine answered


def announced(node: Node, ips: tuple[IP, ...], facts: MachineFacts) -> Announced:
    """What the machine's own word makes of the announced addresses.

    A Node in use keeps an InternalIP that its machine does not list, unless another machine answers there: a
    link may be down, and the list is partial then.
    """
    foreign = tuple(each for each in facts.foreign_answers if parse_ip(each.address) in ips)
    own = ips_on_machine(facts)
    kept = _in_use(node) - {parse_ip(each.address) for each in foreign} if node.initialized else set()
    usable = tuple(ip for ip in ips if ip in own or ip in kept)
    return Announced(usable=usable, unusable=tuple(ip for ip in ips if ip not in usable), foreign=foreign)


def why_it_waits(found: Announced, facts: MachineFacts) -> Blocked | None:
    """Why the announced addresses keep a joining Node waiting; None if they do not."""
    if found.foreign:
        return by_foreign_answer(found.foreign, facts.node_name)
    if not found.usable:
        addresses = " and ".join(map(str, found.unusable))
        return by_bad_node_ip(f"machine {facts.node_name} does not have {addresses}")
    return None


def unusable_fallback(found: Announced, node_ip: IP, facts: MachineFacts) -> Blocked | None:
    """Why the fallback providerID of this address cannot be written; None if it can.

    Another address does not stand in: the machine may have this one again a moment later.
    """
    return None if node_ip in found.usable else by_missing_node_ip(str(node_ip), facts.node_name)


def of_unusable(found: Announced, facts: MachineFacts) -> tuple[Notice, ...]:
    """What to tell of it on the Node."""
    if not found.unusable:
        return ()
    addresses = ", ".join(map(str, found.unusable))
    others = "".join(f"; machine {each.node_name} answers at {each.address}" for each in found.foreign)
    text = (
        f"the kubelet announces {addresses} (annotation {PROVIDED_NODE_IP}), which machine "
        f"{facts.node_name} does not have: not used{others}; correct --node-ip of the kubelet"
    )
    return (Notice(reason="NodeIPNotUsed", message=text),)


def _in_use(node: Node) -> set[IP | None]:
    return {parse_ip(each.address) for each in node.status.addresses if each.type == "InternalIP"}
