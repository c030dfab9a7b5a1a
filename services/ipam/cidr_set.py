"""The blocks of one mask inside one CIDR: which ones are in use, and which one is next."""

from collections.abc import Iterable
from typing import TypeVar

from services.ipam.interval_set import IntervalSet
from services.ipam.networks import Network, explain_no_blocks, parse_network

_KeyT = TypeVar("_KeyT")


class CidrSet:
    """Allocates the next free block after the last one, round robin, as Kubernetes and the reference do.

    Free blocks cost no memory: a CIDR may be any number of bits wider than its blocks.
    """

    __slots__ = (
        "_by_block", "_by_narrower", "_by_wider", "_cursor", "_inside", "_mask", "_network", "_shift",
        "_taken", "capacity", "skipped_count",
    )  # fmt: skip

    def __init__(self, cidr: str, mask: int) -> None:
        """Raises ValueError with the reason if `cidr` is not a network or contains no block of that mask."""
        network = parse_network(cidr)
        why = explain_no_blocks(network, mask)
        if why:
            raise ValueError(why)
        self._network = network
        self._mask = mask
        self._shift = network.bits - mask
        self._taken = IntervalSet()
        self._cursor = 0  # where the next search begins
        self._by_block: dict[int, int] = {}  # block -> number of occupations by exactly this block
        self._by_narrower: dict[Network, int] = {}
        self._inside: dict[int, int] = {}  # block -> number of narrower networks that occupy it
        self._by_wider: dict[Network, int] = {}
        self.capacity = 1 << mask - network.prefix
        self.skipped_count = 0  # occupied blocks between the last two allocated ones

    @property
    def used_count(self) -> int:
        """Number of occupied blocks; a block that was occupied several times counts once."""
        return self._taken.size

    def occupy(self, cidr: str) -> None:
        """Occupy every block that overlaps a network. Raises ValueError if `cidr` is not a network."""
        network = parse_network(cidr)
        span = self._span(network)
        if span is None:
            return
        if network.prefix == self._mask:
            _count(self._by_block, span[0])
        elif network.prefix < self._mask:
            _count(self._by_wider, network)
        else:
            if network not in self._by_narrower:
                _count(self._inside, span[0])
            _count(self._by_narrower, network)
        self._taken.add(*span)

    def release(self, cidr: str) -> None:
        """Undo one occupation by exactly this network; its blocks are free if no other occupation is left.

        Does nothing without such an occupation: a mistaken release must not free another Node's block.
        """
        network = parse_network(cidr)
        span = self._span(network)
        if span is None:
            return
        if network.prefix == self._mask:
            is_last = _uncount(self._by_block, span[0])
        elif network.prefix < self._mask:
            is_last = _uncount(self._by_wider, network)
        else:
            is_last = _uncount(self._by_narrower, network) and _uncount(self._inside, span[0])
        if not is_last:
            return
        if network.prefix == self._mask and not self._by_wider and span[0] not in self._inside:
            self._taken.remove(*span)  # the usual case
        else:
            for gap in self._occupied_runs(*span).iter_gaps(*span):
                self._taken.remove(*gap)

    def next_free(self) -> str | None:
        """Occupy and return the first free block after the last one; None if all blocks are occupied."""
        if self.used_count == self.capacity:
            return None
        block = self._taken.find_first_free(self._cursor)
        if block >= self.capacity:
            block = self._taken.find_first_free(0)
        self.skipped_count = (block - self._cursor) % self.capacity
        self._cursor = (block + 1) % self.capacity
        self._by_block[block] = 1
        self._taken.add(block, block + 1)
        return str(Network(self._network.family, self._network.first + (block << self._shift), self._mask))

    def reset_cursor(self, after: str) -> None:
        """Start the next search after that network, or at the first block if it is outside this CIDR."""
        span = self._span(parse_network(after))
        self._cursor = span[1] % self.capacity if span is not None else 0

    def _span(self, network: Network) -> tuple[int, int] | None:
        """Return the range [begin, end) of blocks that overlap a network; None if no block does."""
        ours = self._network
        if network.family != ours.family or network.first >= ours.end or network.end <= ours.first:
            return None
        if network.prefix <= ours.prefix:
            return 0, self.capacity
        return (network.first - ours.first) >> self._shift, (
            (network.end - 1 - ours.first) >> self._shift
        ) + 1

    def _occupied_runs(self, begin: int, end: int) -> IntervalSet:
        """Return the blocks between `begin` and `end` that the remaining occupations use."""
        held = IntervalSet()
        for network in self._by_wider:
            span = self._span(network)
            if span is not None:
                held.add(*span)
        for counts in (self._by_block, self._inside):
            # Iterate the smaller collection: a wide network has more blocks than were ever occupied.
            few: Iterable[int] = range(begin, end) if end - begin <= len(counts) else sorted(counts)
            for block in few:
                if block in counts and begin <= block < end:
                    held.add(block, block + 1)
        return held


def _count(counts: dict[_KeyT, int], key: _KeyT) -> None:
    counts[key] = counts.get(key, 0) + 1


def _uncount(counts: dict[_KeyT, int], key: _KeyT) -> bool:
    """Decrement a count; return whether it reached zero. A missing key returns False."""
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    elif left == 0:
        del counts[key]
    return left == 0
