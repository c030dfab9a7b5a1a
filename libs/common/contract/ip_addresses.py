"""IP addresses from text: parsing, the one canonical form, and the kinds of address of Go's net/netip."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

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
_BROADCAST: Final = IPv4Address("255.255.255.255")


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


def is_global_unicast(ip: IP) -> bool:
    """Go's Addr.IsGlobalUnicast: true for private and shared (100.64.0.0/10) addresses, not for broadcast."""
    special = ip.is_unspecified or ip.is_loopback or ip.is_multicast or ip.is_link_local
    return not special and ip != _BROADCAST


def is_private(ip: IP) -> bool:
    """Go's Addr.IsPrivate: RFC 1918 and fc00::/7, and nothing else."""
    if isinstance(ip, IPv4Address):
        return any(ip in network for network in _PRIVATE_V4)
    return ip in _PRIVATE_V6


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
