"""Selects the addresses of a machine that count, and those that are reachable from everywhere.

The labeler makes ExternalIPs of them, ipam takes a node's pod CIDR from their subnets, and csr approves
certificates for them.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from libs.common.contract.ip_addresses import (
    CACHE_SIZE,
    IP,
    canonical_ip,
    is_global_unicast,
    is_private,
    parse_interface_ip,
)
from libs.common.contract.machine import AddressStatus, MachineFacts

EXTERNAL_LINK: Final = "external"  # Talos' pseudo link: public addresses from the cloud's metadata
_FLAG_PERMANENT: Final = 128  # IFA_F_PERMANENT: not a temporary (privacy) address, not autoconfigured
_VIRTUAL_LINKS: Final = frozenset(
    {"kubespan", "siderolink", "lo", "cilium_host", "kube-ipvs0", "nodelocaldns"}
)


def counts(status: AddressStatus, facts: MachineFacts) -> bool:
    """Return whether the machine has this address for others: the one rule of labeler, csr and ipam.

    A virtual link, such as a dummy, accepts any address: no packet needs to arrive there. So an address on
    one counts only if the machine answered at it. Machines name their links, so this prevents mistakes, not
    lies.
    """
    return not _is_virtual(status.link) or canonical_ip(status.address) in _list_answered(facts)


def iterate_machine_addresses(facts: MachineFacts) -> Iterator[str]:
    """Yield the machine's addresses that count, some with prefix length; first those where it answered."""
    yield from _list_answered(facts)
    yield from (status.address for status in facts.addresses if not _is_virtual(status.link))


def is_permanent(status: AddressStatus) -> bool:
    """Whether the address is neither temporary nor one that the network may withdraw."""
    return bool(status.flags & _FLAG_PERMANENT)


def lacks_node_ips(ips: tuple[IP, ...], facts: MachineFacts) -> bool:
    """Whether the machine's links lack an address that its kubelet uses; then the list is incomplete.

    A link is down, or an address is still being acquired. An incomplete list must not remove addresses from
    a Node (each change makes the kubelet request another serving certificate), nor select its pod CIDR.
    """
    listed = {
        parse_interface_ip(status.address) for status in facts.addresses if status.link != EXTERNAL_LINK
    }
    return any(ip not in listed for ip in ips)


def list_machine_ips(facts: MachineFacts) -> frozenset[IP]:
    """Return the machine's addresses that count."""
    found = map(parse_interface_ip, iterate_machine_addresses(facts))
    return frozenset(ip for ip in found if ip is not None)


def _is_virtual(link: str) -> bool:
    return link in _VIRTUAL_LINKS or link.startswith("dummy")


def _list_answered(facts: MachineFacts) -> tuple[str, ...]:
    return (facts.node_ip, *facts.answering_addresses)


@lru_cache(maxsize=CACHE_SIZE)  # called for each address of a machine at each reconcile of its Node
def parse_public_ip(text: str) -> IP | None:
    """Return the address of a text, with or without prefix length, if it is reachable from everywhere."""
    ip = parse_interface_ip(text)
    return ip if ip is not None and is_global_unicast(ip) and not is_private(ip) else None
