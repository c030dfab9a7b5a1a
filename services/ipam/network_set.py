"""A set of networks that finds an overlap with a block."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from functools import lru_cache

from services.ipam.networks import Network, parse_network, parse_network_like_kubernetes

# Each page and each plan contains the same blocks again.
parse_cached_network = lru_cache(maxsize=1 << 16)(parse_network)
_read = lru_cache(maxsize=1 << 16)(parse_network_like_kubernetes)
# characters; a Node may have a podCIDR with a million leading zeros, and be created again with others
_MAX_CACHED_CHARS = 64


def parse_foreign_network(cidr: str) -> Network | None:
    """Parse a podCIDR, network or address as Kubernetes does; None if it is invalid."""
    try:
        return _read(cidr) if len(cidr) <= _MAX_CACHED_CHARS else parse_network_like_kubernetes(cidr)
    except ValueError:
        return None


def overlaps(one: Network, other: Network) -> bool:
    """Whether they share an address."""
    return one.family == other.family and one.first < other.end and other.first < one.end


def contains(outer: Network, inner: Network) -> bool:
    """Whether every address of `inner` is in `outer`."""
    return outer.family == inner.family and outer.first <= inner.first and inner.end <= outer.end


class NetworkSet:
    """Networks, disjoint or not. Finding an overlap takes log(networks) per prefix length."""

    def __init__(self, cidrs: Iterable[str] = ()) -> None:
        """Invalid texts are ignored."""
        self._starts: dict[tuple[int, int], list[int]] = {}  # by family and prefix length, ascending
        for network in {network for cidr in cidrs if (network := parse_foreign_network(cidr)) is not None}:
            self._starts.setdefault((network.family, network.prefix), []).append(network.first)
        self._starts = {key: sorted(starts) for key, starts in sorted(self._starts.items())}

    def add(self, network: Network) -> None:
        """Add a network; a second time has no effect."""
        key = (network.family, network.prefix)
        if key not in self._starts:
            self._starts = dict(sorted([*self._starts.items(), (key, [])]))
        insort(self._starts[key], network.first)

    def discard(self, network: Network) -> None:
        """Remove exactly this network, if it is in the set."""
        starts = self._starts.get((network.family, network.prefix), [])
        at = bisect_left(starts, network.first)
        if at < len(starts) and starts[at] == network.first:
            del starts[at]

    def find_blocks(self, outer: Network, mask: int) -> set[int]:
        """Return the first address of each block of that mask inside `outer` that contains a network."""
        host_bits = outer.bits - mask
        found: set[int] = set()
        for (family, prefix), starts in self._starts.items():
            if family == outer.family and prefix >= mask:
                inside = starts[bisect_left(starts, outer.first) : bisect_left(starts, outer.end)]
                found.update([first >> host_bits << host_bits for first in inside])
        return found

    def find_overlap(self, block: Network) -> Network | None:
        """Return the widest network that overlaps the block; None if there is none."""
        for (family, prefix), starts in self._starts.items():
            if family != block.family:
                continue
            cut = block.bits - min(prefix, block.prefix)
            at = bisect_left(starts, block.first >> cut << cut)
            if at < len(starts) and starts[at] < block.end:
                return Network(block.family, starts[at], prefix)
        return None
