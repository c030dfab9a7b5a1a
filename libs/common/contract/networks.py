"""Networks as numbers, which compare several times faster than those of `ipaddress`, and sets of them."""

import contextlib
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Literal

import msgspec

Family = Literal[4, 6]

_BITS: Final[dict[Family, int]] = {4: 32, 6: 128}
# No zone of an address, and no netmask: Kubernetes accepts neither.
_NOTATION: Final = re.compile(r"([0-9a-fA-F:.]+)(?:/([0-9]{1,3}))?")
_MAPPED: Final = 0xFFFF  # ::ffff:0:0/96: IPv4-mapped IPv6
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9a-fA-F])0+(?=[0-9a-fA-F])")  # of an octet, a group, a length
_MAX_TEXT_CHARS: Final = 80  # characters of a quoted invalid text
# characters; a Node may have a podCIDR with a million leading zeros, and be created again with others
_MAX_CACHED_CHARS: Final = 64


class Network(msgspec.Struct, frozen=True):
    """An aligned range of addresses."""

    family: Family
    first: int
    prefix: int

    @property
    def bits(self) -> int:
        return _BITS[self.family]

    @property
    def end(self) -> int:
        """The number after its last address."""
        return self.first + (1 << self.bits - self.prefix)

    def __str__(self) -> str:
        return f"{_format_address(self.family, self.first)}/{self.prefix}"


@lru_cache(maxsize=1 << 16)  # a plan needs the text of each block several times
def _format_address(family: Family, number: int) -> str:
    return str(IPv4Address(number) if family == 4 else IPv6Address(number))


def parse_network(text: str) -> Network:
    """Parse a network; an address alone is a network of one address.

    Other programs write podCIDRs, too: so host bits are cleared, and IPv4-mapped IPv6 becomes the IPv4
    network. Raises ValueError with the reason for any other text.
    """
    found = _NOTATION.fullmatch(text)
    if found is not None:
        with contextlib.suppress(ValueError):
            ip = IPv6Address(found[1]) if ":" in found[1] else IPv4Address(found[1])
            prefix = ip.max_prefixlen if found[2] is None else int(found[2])
            if prefix <= ip.max_prefixlen:
                return _align(ip.version, int(ip), prefix)
    shown = ascii(text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "...")
    raise ValueError(f"{shown} is not a network")


def _parse_like_kubernetes(text: str) -> Network | None:
    """Parse a podCIDR as Kubernetes does, which accepts "010.0.1.0/024": decimal ten, not octal.

    Its parser (`k8s.io/utils/net`, ParseCIDRSloppy) is that of Go before 1.17, where numbers may have leading
    zeros. None if the text is invalid there, too.
    """
    for written in (text, _LEADING_ZEROS.sub("", text)):
        with contextlib.suppress(ValueError):
            return parse_network(written)
    return None


# Each page and each plan contains the same blocks again.
parse_cached_network = lru_cache(maxsize=1 << 16)(parse_network)
_parse_cached_like_kubernetes = lru_cache(maxsize=1 << 16)(_parse_like_kubernetes)


def parse_foreign_network(cidr: str) -> Network | None:
    """Parse a podCIDR, network or address as Kubernetes does; None if it is invalid."""
    return (_parse_cached_like_kubernetes if len(cidr) <= _MAX_CACHED_CHARS else _parse_like_kubernetes)(cidr)


def overlaps(one: Network, other: Network) -> bool:
    """Whether they share an address."""
    return one.family == other.family and one.first < other.end and other.first < one.end


def contains(outer: Network, inner: Network) -> bool:
    """Whether every address of `inner` is in `outer`."""
    return outer.family == inner.family and outer.first <= inner.first and inner.end <= outer.end


def explain_no_blocks(network: Network, mask: int) -> str:
    """Return why a network contains no block of that mask; "" if it contains at least one."""
    if mask < network.prefix:
        return f"a block of /{mask} is larger than all of {network}"
    if mask > network.bits:
        return f"/{mask} is no mask of IPv{network.family}, which has {network.bits} bits"
    return ""


def find_free_block(
    pool: Network, mask: int, *, after: Network | None, find_taken: Callable[[Network], Network | None]
) -> tuple[Network, int] | None:
    """Return the next free block round robin, as Kubernetes and the reference do, and how many it examined.

    The search starts behind the block `after`, which is in the pool. `find_taken` returns a network that
    overlaps a block and so takes it, or None. Returns None if all blocks are taken.
    """
    host_bits = pool.bits - mask
    capacity = 1 << mask - pool.prefix
    index = ((after.end - 1 - pool.first) >> host_bits) + 1 if after is not None else 0
    examined = 0
    while examined < capacity:
        index %= capacity
        block = Network(pool.family, pool.first + (index << host_bits), mask)
        taken = find_taken(block)
        if taken is None:
            return block, examined + 1
        # Skip all blocks of a wide network at once, up to the end of the pool.
        behind = min(capacity, ((taken.end - 1 - pool.first) >> host_bits) + 1)
        examined += behind - index
        index = behind
    return None


class NetworkSet:
    """Networks, disjoint or not. Finding an overlap takes log(networks) per prefix length."""

    def __init__(self, cidrs: Iterable[str] = ()) -> None:
        """Invalid texts are ignored."""
        self._starts: dict[tuple[Family, int], list[int]] = {}  # by family and prefix length, ascending
        for network in {network for cidr in cidrs if (network := parse_foreign_network(cidr)) is not None}:
            self._starts.setdefault((network.family, network.prefix), []).append(network.first)
        self._starts = {key: sorted(starts) for key, starts in sorted(self._starts.items())}

    def add(self, network: Network) -> None:
        """Add a network; a second time has no effect."""
        key = (network.family, network.prefix)
        if key not in self._starts:
            self._starts = dict(sorted([*self._starts.items(), (key, [])]))
        insort(self._starts[key], network.first)

    def find_blocks(self, outer: Network, mask: int) -> set[int]:
        """Return the first address of each block of that mask inside `outer` that contains a network."""
        host_bits = outer.bits - mask
        found: set[int] = set()
        for (family, prefix), starts in self._starts.items():
            if family == outer.family and prefix >= mask:
                inside = starts[bisect_left(starts, outer.first) : bisect_left(starts, outer.end)]
                found.update([first >> host_bits << host_bits for first in inside])
        return found

    def count_blocks(self, outer: Network, mask: int) -> int:
        """Return the number of blocks of that mask inside `outer` that overlap a network."""
        wide, count = NetworkSet(), 0
        for (family, prefix), starts in self._starts.items():  # the widest first
            for network in (Network(family, first, prefix) for first in starts if prefix < mask):
                if overlaps(network, outer) and wide.find_overlap(network) is None:
                    wide.add(network)
                    count += 1 << mask - max(prefix, outer.prefix)
        narrow = (Network(outer.family, first, mask) for first in self.find_blocks(outer, mask))
        return count + sum(wide.find_overlap(block) is None for block in narrow)

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


def _align(family: Family, address: int, prefix: int) -> Network:
    if family == 6 and prefix >= 96 and address >> 32 == _MAPPED:
        return _align(4, address & 0xFFFFFFFF, prefix - 96)
    host_bits = _BITS[family] - prefix
    return Network(family, address >> host_bits << host_bits, prefix)
