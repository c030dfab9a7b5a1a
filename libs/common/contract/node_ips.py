"""The IP addresses in the kubelet's provided-node-ip annotation; it is written by the node, hence hostile.

One verdict for whoever dials them (metadata) and whoever writes them on the Node (labeler). The kinds of
address are those of Go's net/netip, because the reference's choices were made with it.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

import msgspec

IP = IPv4Address | IPv6Address

_TEXT_LIMIT: Final = 128  # two IPv6 addresses and a comma need 79
_KEPT: Final = 4096  # texts: a joining node's are looked at by several services, several times in a second
_SHOWN: Final = 80  # characters of a refused text in a reason
_PRIVATE_V4: Final = tuple(IPv4Network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
_PRIVATE_V6: Final = IPv6Network("fc00::/7")
_BROADCAST: Final = IPv4Address("255.255.255.255")


class InvalidNodeIP(msgspec.Struct, frozen=True):
    """An annotation that no honest kubelet writes, and what is wrong with it, in printable words."""

    reason: str


def parse_node_ips(annotation: str) -> tuple[IP, ...] | InvalidNodeIP:
    """One address, or one of each family, in the annotation's own order.

    So does Kubernetes' ParseNodeIPAnnotation take it. Names, zones, loopback, link-local, multicast,
    unspecified and reserved addresses are refused: a Talos control plane would dial them for us, and the
    API server dials whatever is an InternalIP. One refused entry refuses the whole: no kubelet writes that.
    """
    if len(annotation) > _TEXT_LIMIT:
        return InvalidNodeIP(f"{_shown(annotation)} is longer than {_TEXT_LIMIT} characters")
    return _node_ips(annotation)


@lru_cache(maxsize=_KEPT)  # of short texts only: whoever writes an annotation may write 256 kB
def _node_ips(annotation: str) -> tuple[IP, ...] | InvalidNodeIP:
    ips: list[IP] = []
    for text in annotation.split(","):
        ip = parse_ip(text.strip())
        if ip is None or "%" in text:
            zone = ": it has a zone" if "%" in text else ""
            return InvalidNodeIP(f"{_shown(text.strip())} is not an IP address{zone}")
        why = _why_unreachable(ip)
        if why:
            return InvalidNodeIP(
                f"{_shown(text.strip())} is not a unicast address that others can reach: {why}"
            )
        ips.append(ip)
    if len({ip.version for ip in ips}) != len(ips):
        return InvalidNodeIP(f"{_shown(annotation)} is neither one address nor one of each family")
    return tuple(ips)


@lru_cache(maxsize=_KEPT)
def parse_ip(text: str) -> IP | None:
    """The address in a text, None if there is none: without its zone, and IPv4 where it is IPv4-mapped."""
    try:
        ip = ip_address(text)
    except ValueError:
        return None
    if isinstance(ip, IPv4Address):
        return ip
    return ip.ipv4_mapped or IPv6Address(int(ip))


def is_global_unicast(ip: IP) -> bool:
    """Go's Addr.IsGlobalUnicast: private and shared (100.64.0.0/10) addresses are, the broadcast is not."""
    special = ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip.is_link_local
    return not special and ip != _BROADCAST


def is_private(ip: IP) -> bool:
    """Go's Addr.IsPrivate: RFC 1918 and fc00::/7, and nothing else."""
    if isinstance(ip, IPv4Address):
        return any(ip in network for network in _PRIVATE_V4)
    return ip in _PRIVATE_V6


def pick_one_per_family(ips: tuple[IP, ...], *, prefer_ipv6: bool) -> tuple[IP, ...]:
    """At most one IPv4 and one IPv6 address: the first of each, the preferred family first."""
    families = (6, 4) if prefer_ipv6 else (4, 6)
    firsts = (next((ip for ip in ips if ip.version == family), None) for family in families)
    return tuple(ip for ip in firsts if ip is not None)


def _why_unreachable(ip: IP) -> str:
    # 240.0.0.0/4 with the broadcast; IPv6 blocks that embed IPv4 (compatible, NAT64) or are unassigned
    kinds = {
        "the unspecified address": ip.is_unspecified,
        "a loopback address": ip.is_loopback,
        "a link-local address": ip.is_link_local,
        "a multicast address": ip.is_multicast,
        "in a reserved range": ip.is_reserved,
        "in 0.0.0.0/8, which a host dials as itself": ip.version == 4 and int(ip) >> 24 == 0,
    }
    return next((f"it is {kind}" for kind, is_so in kinds.items() if is_so), "")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
