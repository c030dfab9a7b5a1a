"""Compares destinations of routes: CIDRs as Kubernetes and clouds write them."""

import ipaddress
from bisect import bisect_right
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate

from libs.clouds.routes import Route

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Range = tuple[int, int, Route]  # first and last address
_CACHED = 16_384  # a plan compares all Nodes, and parsing is most of it


class RouteIndex:
    """The routes of a network by destination. Without it, each Node is compared with each route."""

    def __init__(self, routes: Iterable[Route]) -> None:
        found: dict[int, list[_Range]] = {}
        for route in routes:
            network = _parse(route.destination)
            if network is not None and network.prefixlen:  # a default route is in no one's way
                found.setdefault(network.version, []).append((*_get_range(network), route))
        self._by_version = {version: _Ranges(sorted(ranges)) for version, ranges in found.items()}

    def find_overlapping(self, destination: str) -> Route | None:
        """Return a route that shares addresses with the destination; a default route does not count."""
        network = _parse(destination)
        ranges = self._by_version.get(network.version) if network is not None else None
        return ranges.find(*_get_range(network)) if network is not None and ranges is not None else None


class _Ranges:
    """Ranges of addresses, sorted by their first one."""

    def __init__(self, ranges: list[_Range]) -> None:
        self._firsts = [first for first, _, _ in ranges]
        # of all ranges up to each: the one that reaches furthest
        self._furthest = list(accumulate(ranges, _choose_furthest))

    def find(self, first: int, last: int) -> Route | None:
        count = bisect_right(self._firsts, last)
        if not count or self._furthest[count - 1][1] < first:
            return None
        return self._furthest[count - 1][2]


def _choose_furthest(one: _Range, other: _Range) -> _Range:
    return other if other[1] > one[1] else one


@lru_cache(maxsize=4)
def index_routes(routes: frozenset[Route]) -> RouteIndex:
    """Return the index; a table of routes stays the same for many plans."""
    return RouteIndex(routes)


@lru_cache(maxsize=_CACHED)
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


def _contains(outer: _Network | None, inner: _Network) -> bool:
    if outer is None or outer.version != inner.version:
        return False
    (outer_first, outer_last), (first, last) = _get_range(outer), _get_range(inner)
    return outer_first <= first and last <= outer_last


def _get_range(network: _Network) -> tuple[int, int]:
    return int(network.network_address), int(network.broadcast_address)


@lru_cache(maxsize=_CACHED)
def _parse(cidr: str) -> _Network | None:
    """Return the network; None for a text of a cloud that is none."""
    try:
        return ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return None
