"""Networks as numbers, parsed and formatted several times faster than by `ipaddress`, and sets of them."""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import ip_network
from typing import Final, Literal

import msgspec

Family = Literal[4, 6]

_BITS: Final[dict[Family, int]] = {4: 32, 6: 128}
_HEXTETS: Final = tuple(range(112, -1, -16))  # bits by which each group of an IPv6 address is shifted
# The notation that Kubernetes and ipam write; `ipaddress` parses and validates every other one.
_PLAIN_IPV4: Final = re.compile(
    r"(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})\.(0|[1-9][0-9]{0,2})/([0-9]{1,2})"
)
_PLAIN_IPV6: Final = re.compile(r"((?:[0-9a-f]{1,4}:){1,7}):/([0-9]{1,3})")
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
        text = _format_ipv4(self.first) if self.family == 4 else _format_ipv6(self.first)
        return f"{text}/{self.prefix}"


def parse_network(text: str) -> Network:
    """Parse a network; an address alone is a network of one address.

    Other programs write podCIDRs, too: so host bits are cleared, and IPv4-mapped IPv6 becomes the IPv4
    network. Raises ValueError with the reason for any other text.
    """
    read = _parse_plain_ipv6(text) if ":" in text else _parse_plain_ipv4(text)
    return read or _parse_any(text)


def parse_network_like_kubernetes(text: str) -> Network:
    """Parse a podCIDR as Kubernetes does, which accepts "010.0.1.0/024": decimal ten, not octal.

    Its parser (`k8s.io/utils/net`, ParseCIDRSloppy) is that of Go before 1.17, where numbers may have leading
    zeros. Raises ValueError for text that is invalid there, too.
    """
    try:
        return parse_network(text)
    except ValueError:
        return parse_network(_LEADING_ZEROS.sub("", text))


# Each page and each plan contains the same blocks again.
parse_cached_network = lru_cache(maxsize=1 << 16)(parse_network)
_parse_cached_like_kubernetes = lru_cache(maxsize=1 << 16)(parse_network_like_kubernetes)


def parse_foreign_network(cidr: str) -> Network | None:
    """Parse a podCIDR, network or address as Kubernetes does; None if it is invalid."""
    try:
        is_short = len(cidr) <= _MAX_CACHED_CHARS
        return _parse_cached_like_kubernetes(cidr) if is_short else parse_network_like_kubernetes(cidr)
    except ValueError:
        return None


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


def _parse_plain_ipv4(text: str) -> Network | None:
    plain = _PLAIN_IPV4.fullmatch(text)
    if plain is None:
        return None
    a, b, c, d, prefix = map(int, plain.groups())
    if a > 255 or b > 255 or c > 255 or d > 255 or prefix > 32:
        return None
    return _align(4, a << 24 | b << 16 | c << 8 | d, prefix)


def _parse_plain_ipv6(text: str) -> Network | None:
    plain = _PLAIN_IPV6.fullmatch(text)
    if plain is None or int(plain[2]) > 128:
        return None
    return _align(6, _parse_hextets(plain[1]), int(plain[2]))


def _parse_any(text: str) -> Network:
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        shown = ascii(text if len(text) <= _MAX_TEXT_CHARS else text[:_MAX_TEXT_CHARS] + "...")
        raise ValueError(f"{shown} is not a network") from None
    return _align(network.version, int(network.network_address), network.prefixlen)


def _align(family: Family, address: int, prefix: int) -> Network:
    if family == 6 and prefix >= 96 and address >> 32 == _MAPPED:
        return _align(4, address & 0xFFFFFFFF, prefix - 96)
    host_bits = _BITS[family] - prefix
    return Network(family, address >> host_bits << host_bits, prefix)


def _parse_hextets(text: str) -> int:
    """The address whose text is these groups, each with its colon, and zeros from there on."""
    groups = text[:-1].split(":")
    number = 0
    for group in groups:
        number = number << 16 | int(group, 16)
    return number << 16 * (8 - len(groups))


def _format_ipv4(address: int) -> str:
    return f"{address >> 24}.{address >> 16 & 255}.{address >> 8 & 255}.{address & 255}"


def _format_ipv6(address: int) -> str:
    """RFC 5952: lower case, and the first of the longest runs of two zero groups or more left out."""
    groups = [address >> shift & 0xFFFF for shift in _HEXTETS]
    start, length, run = 0, 1, 0
    for index, group in enumerate(groups):
        run = 0 if group else run + 1
        if run > length:
            start, length = index + 1 - run, run
    texts = [f"{group:x}" for group in groups]
    if length == 1:
        return ":".join(texts)
    return ":".join(texts[:start]) + "::" + ":".join(texts[start + length :])
