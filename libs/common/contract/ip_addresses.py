"""IP addresses from text: parsing, the one canonical form, the kinds of Go's net/netip, provided node IPs."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

import msgspec

IP = IPv4Address | IPv6Address

# Nodes write such texts. A longer text is no address, and the cache would keep it. An IPv6 address with a
# zone has at most 61 characters.
_MAX_LENGTH: Final = 64
# A third of csr's CPU time was parsing the same addresses in each message. A Node has about eight such texts.
# A burst uses those of all its Nodes in turn, so a smaller cache loses each text before its next use.
CACHE_SIZE: Final = 65_536
_PRIVATE_V4: Final = tuple(IPv4Network(n) for n in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
_PRIVATE_V6: Final = IPv6Network("fc00::/7")
_SHARED: Final = IPv4Network("100.64.0.0/10")  # RFC 6598: carrier-grade NAT and VPNs such as Tailscale
_UNSPECIFIED_AND_BROADCAST: Final = frozenset({0, 0xFFFFFFFF})


def parse_ip(text: str) -> IP | None:
    """Return the address without its zone, None if invalid. An IPv4-mapped address becomes IPv4."""
    return _parse(text) if len(text) <= _MAX_LENGTH else None


def parse_interface_ip(text: str) -> IP | None:
    """Return the address of a text such as "10.0.0.5/24" or "10.0.0.5", by the rules of `parse_ip`."""
    return parse_ip(text.partition("/")[0])


def canonical_ip(text: str) -> str:
    """Return the text of `parse_interface_ip`, by which addresses are compared; "" if invalid."""
    return _format(text) if len(text) <= _MAX_LENGTH else ""


def format_ip(ip: IP) -> str:
    """Return the text of an address, the same on every version of Python.

    An IPv4-mapped address has the form ::ffff:a00:5. Since Python 3.13, `str` returns ::ffff:10.0.0.5.
    """
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return str(ip) if mapped is None else f"::ffff:{int(mapped) >> 16:x}:{int(mapped) & 0xFFFF:x}"


# Each message of a Node asks these of each of its addresses, so they compare the prefixes as numbers.


def is_global_unicast(ip: IP) -> bool:
    """Go's Addr.IsGlobalUnicast: true for private and shared (100.64.0.0/10) addresses, not for broadcast."""
    value = int(ip)
    if ip.version == 6:
        return value > 1 and value >> 120 != 0xFF and value >> 118 != 0xFE80 >> 6
    special = value in _UNSPECIFIED_AND_BROADCAST or value >> 24 == 127 or value >> 16 == 0xA9FE
    return not special and value >> 28 != 0xE


def is_private(ip: IP) -> bool:
    """Go's Addr.IsPrivate: RFC 1918 and fc00::/7, and nothing else."""
    value = int(ip)
    if ip.version == 6:
        return value >> 121 == 0xFC >> 1
    return value >> 24 == 10 or value >> 20 == 0xAC1 or value >> 16 == 0xC0A8


def find_local_range(ip: IP) -> IPv4Network | IPv6Network | None:
    """Return the private or shared (100.64.0.0/10) range of the address, None if it is public."""
    local = (_PRIVATE_V6,) if isinstance(ip, IPv6Address) else (*_PRIVATE_V4, _SHARED)
    return next((network for network in local if ip in network), None)


@lru_cache(maxsize=CACHE_SIZE)
def _parse(text: str) -> IP | None:
    try:
        ip = ip_address(text)
    except ValueError:
        return None
    return ip if isinstance(ip, IPv4Address) else ip.ipv4_mapped or IPv6Address(int(ip))


@lru_cache(maxsize=CACHE_SIZE)
def _format(text: str) -> str:
    ip = parse_interface_ip(text)
    if ip is None:
        return ""
    canonical = str(ip)
    return text if text == canonical else canonical  # the cache has the text anyway


# ---- the kubelet's provided-node-ip annotation, which the node writes and may forge. metadata dials these
# addresses and the labeler writes them to the Node, so both use this one parser.

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


def list_node_ips(annotation: str) -> tuple[IP, ...]:
    """Return the addresses of `parse_node_ips`: none if the annotation is missing or invalid."""
    ips = parse_node_ips(annotation) if annotation else ()
    return () if isinstance(ips, InvalidNodeIP) else ips


@lru_cache(maxsize=CACHE_SIZE)  # of short texts only: an annotation may have 256 kB
def _node_ips(annotation: str) -> tuple[IP, ...] | InvalidNodeIP:
    ips: list[IP] = []
    for text in annotation.split(","):
        ip = parse_ip(text.strip())
        if ip is None or "%" in text:
            zone = ": it has a zone" if "%" in text else ""
            return InvalidNodeIP(f"{_shown(text.strip())} is not an IP address{zone}")
        why = explain_unreachable(ip)
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


def explain_unreachable(ip: IP) -> str:
    """Return why no other machine can reach the address; "" if one may."""
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
