"""Judges answers at announced addresses that the Node's machine does not list."""

from collections.abc import Iterable

import msgspec

from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.machine import ForeignNodeIP, MachineFacts
from libs.common.contract.public_addresses import list_machine_ips


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
