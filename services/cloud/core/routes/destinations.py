"""Compares destinations of routes: CIDRs as Kubernetes and clouds write them."""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def to_canonical(cidr: str) -> str:
    """Return the CIDR in the form of clouds: without host bits. Raises ValueError."""
    return str(ipaddress.ip_network(cidr, strict=False))


def is_network(text: str) -> bool:
    """Whether the text is a network without host bits, and not everything."""
    network = _parse(text)
    return network is not None and network.prefixlen > 0 and str(network) == text


def is_inside_any(destination: str, networks: Iterable[str]) -> bool:
    """Whether one of the networks contains the whole destination."""
    inner = _parse(destination)
    return inner is not None and any(_contains(_parse(each), inner) for each in networks)


def is_in_the_way(destination: str, of: str) -> bool:
    """Whether a route to `destination` shares addresses with one to `of`. A default route does not count."""
    first, second = _parse(destination), _parse(of)
    if first is None or second is None or first.version != second.version or not first.prefixlen:
        return False
    return first.overlaps(second)


def _contains(outer: _Network | None, inner: _Network) -> bool:
    if isinstance(outer, ipaddress.IPv4Network) and isinstance(inner, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    if isinstance(outer, ipaddress.IPv6Network) and isinstance(inner, ipaddress.IPv6Network):
        return inner.subnet_of(outer)
    return False


@lru_cache(maxsize=16_384)
def _parse(cidr: str) -> _Network | None:
    """Return the network; None for a text of a cloud that is none."""
    try:
        return ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return None
