"""Parses the kubelet's provided-node-ip annotation, which the node writes and may forge.

metadata dials these addresses and the labeler writes them to the Node, so both use this one parser.
"""

from functools import lru_cache
from typing import Final

import msgspec

from libs.common.contract.ip_addresses import CACHE_SIZE, IP, parse_ip

_TEXT_LIMIT: Final = 128  # two IPv6 addresses and a comma need 79
_SHOWN: Final = 80  # characters of an invalid text in a reason


class InvalidNodeIP(msgspec.Struct, frozen=True):
    """An annotation that no honest kubelet writes, and the reason as printable text."""

    reason: str


def parse_node_ips(annotation: str) -> tuple[IP, ...] | InvalidNodeIP:
    """Return one address, or one of each family, in the order of the annotation.

    Kubernetes' ParseNodeIPAnnotation has the same form. Names, zones, loopback, link-local, multicast,
    unspecified and reserved addresses are invalid: a Talos control plane would dial them for metadata, and
    the API server dials each InternalIP. One invalid entry makes all invalid: no kubelet writes that.
    """
    if len(annotation) > _TEXT_LIMIT:
        return InvalidNodeIP(f"{_shown(annotation)} is longer than {_TEXT_LIMIT} characters")
    return _node_ips(annotation)


@lru_cache(maxsize=CACHE_SIZE)  # of short texts only: an annotation may have 256 kB
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


def pick_one_per_family(ips: tuple[IP, ...], *, prefer_ipv6: bool) -> tuple[IP, ...]:
    """Return the first IPv4 and the first IPv6 address, the preferred family first."""
    if len(ips) == 1:  # nearly always, several times for each message
        return ips
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
