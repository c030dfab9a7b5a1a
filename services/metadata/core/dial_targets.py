"""Selects the addresses at which a machine is dialled, and judges the answers at announced ones."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.contract.ip_addresses import InvalidNodeIP, parse_ip, parse_node_ips, pick_one_per_family
from libs.common.contract.machine import ForeignNodeIP, MachineFacts, MachineFault
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION
from libs.common.contract.public_addresses import list_machine_ips

STEP: Final = "provided-node-ip"


def order_dial_targets(provided_node_ip: str, *, prefer_ipv6: bool) -> tuple[str, ...] | MachineFault:
    """Return one address per family, IPv4 first unless `prefer_ipv6`; () for a Node without the annotation.

    Such a Node is not ours: its kubelet runs without --cloud-provider=external. metadata queries no machine
    for it, and the labeler reports the reason. An invalid annotation returns a fault.
    """
    if not provided_node_ip:
        return ()
    ips = parse_node_ips(provided_node_ip)
    if isinstance(ips, InvalidNodeIP):
        return MachineFault(
            kind="bad_node_ip",
            step=STEP,
            message=f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {ips.reason}; the node's kubelet writes it",
        )
    return tuple(map(str, pick_one_per_family(ips, prefer_ipv6=prefer_ipv6)))


def list_addresses_to_dial(facts: MachineFacts, addresses: Iterable[str]) -> tuple[str, ...]:
    """Return those addresses that the machine does not list on a link to a network.

    A kubelet may announce any address.
    """
    own = list_machine_ips(facts)
    return tuple(address for address in addresses if parse_ip(address) not in own)


def must_keep_waiting(facts: MachineFacts, addresses: tuple[str, ...]) -> bool:
    """Return whether a joining Node may wait because of the addresses, which are in the order of the dials.

    An answer of another machine blocks it. Without a first address, it gets no fallback providerID.
    """
    return bool(facts.foreign_node_ips or list_addresses_to_dial(facts, addresses[:1]))


def add_answers(facts: MachineFacts, answers: Iterable[MachineFacts]) -> MachineFacts:
    """Return the facts with the answers of machines at the Node's other announced addresses.

    A machine that does not know its node name yet proves nothing.
    """
    named = [each for each in answers if each.node_name]
    own = (each.node_ip for each in named if each.node_name == facts.node_name)
    foreign = (
        ForeignNodeIP(address=each.node_ip, node_name=each.node_name)
        for each in named
        if each.node_name != facts.node_name
    )
    return msgspec.structs.replace(facts, answering_addresses=tuple(own), foreign_node_ips=tuple(foreign))
