"""Selects the addresses of a machine that are reachable from everywhere, by the reference's filters.

The labeler makes ExternalIPs of them. ipam takes a node's pod CIDR from their subnets.
"""

from functools import lru_cache
from typing import Final

from libs.common.contract.ip_addresses import (
    CACHE_SIZE,
    IP,
    is_global_unicast,
    is_private,
    parse_interface_ip,
)
from libs.common.contract.machine import AddressStatus, MachineFacts

EXTERNAL_LINK: Final = "external"  # Talos' pseudo link: public addresses from the cloud's metadata
_FLAG_PERMANENT: Final = 128  # IFA_F_PERMANENT: not a temporary (privacy) address, not autoconfigured
_INSIDE_LINKS: Final = frozenset({"kubespan", "siderolink", "lo", "cilium_host"})
_SERVICE_LINKS: Final = frozenset({"kube-ipvs0", "nodelocaldns"})  # every node lists the same addresses there


def is_internal_link(link: str) -> bool:
    """Whether the addresses of a link are internal to the cluster, whatever their range."""
    return link in _INSIDE_LINKS or link.startswith("dummy")


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
    """Return the machine's addresses: on a link to a network, named by its cloud, or where it answered.

    A virtual link, such as a dummy, accepts any address: no packet needs to arrive there. So an address on
    one counts only if the machine answered at it.
    """
    listed = (status.address for status in facts.addresses if not _is_virtual(status.link))
    found = map(parse_interface_ip, (*listed, facts.node_ip, *facts.answering_addresses))
    return frozenset(ip for ip in found if ip is not None)


def _is_virtual(link: str) -> bool:
    return is_internal_link(link) or link in _SERVICE_LINKS


@lru_cache(maxsize=CACHE_SIZE)  # called for each address of a machine at each reconcile of its Node
def parse_public_ip(text: str) -> IP | None:
    """Return the address of a text, with or without prefix length, if it is reachable from everywhere."""
    ip = parse_interface_ip(text)
    return ip if ip is not None and is_global_unicast(ip) and not is_private(ip) else None
