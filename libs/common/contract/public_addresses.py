"""Which of a machine's addresses others reach from everywhere: the reference's filter of links and ranges.

The labeler makes ExternalIPs of them; ipam takes a node's pod CIDR from the subnets that they are in.
"""

from functools import lru_cache
from typing import Final

from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node_ips import IP, is_global_unicast, is_private, parse_ip

EXTERNAL_LINK: Final = "external"  # Talos' pseudo link: public addresses that the cloud's metadata name
_FLAG_PERMANENT: Final = 128  # IFA_F_PERMANENT: not a temporary (privacy) address, not autoconfigured
_INSIDE_LINKS: Final = frozenset({"kubespan", "siderolink", "lo", "cilium_host"})
_SERVICE_LINKS: Final = frozenset({"kube-ipvs0", "nodelocaldns"})  # every node lists the same addresses there


def strip_prefix_length(status: AddressStatus) -> str:
    """Its address without the prefix length."""
    return status.address.partition("/")[0]


def is_internal_link(link: str) -> bool:
    """Whether the addresses of a link are the cluster's own affair, whatever their range."""
    return link in _INSIDE_LINKS or link.startswith("dummy")


def is_permanent(status: AddressStatus) -> bool:
    """Whether it is neither a temporary address nor one that the network may take back."""
    return bool(status.flags & _FLAG_PERMANENT)


def lacks_node_ips(ips: tuple[IP, ...], facts: MachineFacts) -> bool:
    """Whether the machine's own links lack an address that its kubelet uses: then the list is a partial one.

    A link is down, or an address is still being acquired. It must not take addresses from a Node that has
    them (each change makes the kubelet ask for another serving certificate), nor decide where its pods live.
    """
    listed = {
        parse_ip(strip_prefix_length(status)) for status in facts.addresses if status.link != EXTERNAL_LINK
    }
    return any(ip not in listed for ip in ips)


def list_machine_ips(facts: MachineFacts) -> frozenset[IP]:
    """The addresses of the machine: on a link to a network, named by its cloud, or where it answered.

    A virtual link, such as a dummy, takes any address: no packet needs to arrive there. So an address on one
    counts only if the machine answered at it.
    """
    listed = (strip_prefix_length(status) for status in facts.addresses if not _is_virtual(status.link))
    found = map(parse_ip, (*listed, facts.node_ip, *facts.answering_addresses))
    return frozenset(ip for ip in found if ip is not None)


def _is_virtual(link: str) -> bool:
    return is_internal_link(link) or link in _SERVICE_LINKS


@lru_cache(maxsize=4096)  # asked for each address of a machine, at each look at its Node
def parse_public_ip(text: str) -> IP | None:
    """The address in a text if others can reach it from everywhere."""
    ip = parse_ip(text)
    return ip if ip is not None and is_global_unicast(ip) and not is_private(ip) else None
