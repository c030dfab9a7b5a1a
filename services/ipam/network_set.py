"""Many networks, and which of them overlaps a block: what the claims are compared by."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import lru_cache

from services.ipam.networks import Network, parse_network, parse_network_like_kubernetes

# The same blocks are read again with each page and each plan.
parse_cached_network = lru_cache(maxsize=1 << 16)(parse_network)
_read = lru_cache(maxsize=1 << 16)(parse_network_like_kubernetes)
_MIN_KEPT = 64  # characters: a Node may carry a podCIDR of a million zeros, and be made anew with others


def parse_foreign_network(cidr: str) -> Network | None:
    """The network that others' text names to Kubernetes, None if none: a podCIDR, a network, an address."""
    try:
        return _read(cidr) if len(cidr) <= _MIN_KEPT else parse_network_like_kubernetes(cidr)
    except ValueError:
        return None


def overlaps(one: Network, other: Network) -> bool:
    """Whether they share an address."""
    return one.family == other.family and one.first < other.end and other.first < one.end


def contains(outer: Network, inner: Network) -> bool:
    """Whether every address of `inner` is in `outer`."""
    return outer.family == inner.family and outer.first <= inner.first and inner.end <= outer.end


class NetworkSet:
    """Networks, disjoint or not; one that overlaps a block is found in log(networks) per prefix length."""

    def __init__(self, cidrs: Iterable[str] = ()) -> None:
        """What names no network is left out."""
        self._starts: dict[tuple[int, int], list[int]] = {}  # by family and prefix length, ascending
        for network in {network for cidr in cidrs if (network := parse_foreign_network(cidr)) is not None}:
            self._starts.setdefault((network.family, network.prefix), []).append(network.first)
        self._starts = {key: sorted(starts) for key, starts in sorted(self._starts.items())}

    def add(self, network: Network) -> None:
        """Put one more in; twice is no harm."""
        key = (network.family, network.prefix)
        if key not in self._starts:
            self._starts = dict(sorted([*self._starts.items(), (key, [])]))
        insort(self._starts[key], network.first)

    def find_overlap(self, block: Network) -> Network | None:
        """The widest that overlaps the block, None if the block is free of them."""
        for (family, prefix), starts in self._starts.items():
            if family != block.family:
                continue
            cut = block.bits - min(prefix, block.prefix)
            at = bisect_left(starts, block.first >> cut << cut)
            if at < len(starts) and starts[at] < block.end:
                return Network(block.family, starts[at], prefix)
        return None
