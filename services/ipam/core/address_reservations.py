"""Reserves the blocks of a pool that contain addresses of Nodes: a bounded number per Node.

Kubelets and machines report addresses of their own choice. No Node gets a block that contains an address.
So without a bound one machine could use up a pool.
"""

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Final

from libs.common.contract.networks import Network, contains, parse_cached_network, parse_foreign_network
from services.ipam.core.pools import Pool

# Per pool. An honest machine has no address in the blocks for pods, or only a few: its node networks,
# gateways and virtual IPs.
_MAX_BLOCKS_PER_NODE: Final = 16
_MAX_NAMED_NODES: Final = 3
_REPORT: Final = (
    "its addresses are in too many blocks of /{} in {} (pool {}): ipam reserves at most "
    f"{_MAX_BLOCKS_PER_NODE}, and only one while other Nodes find no free block; pods may get addresses in "
    "the others"
)


class Reservations:
    """The reserved blocks of one pool in one plan, each by its first address.

    A Node reserves its first blocks in the order of its addresses. It keeps one block, and yields the others
    once no block is free. A block that another Node keeps counts for that one only: honest Nodes share their
    networks and gateways. So K Nodes keep at most K blocks.
    """

    def __init__(
        self, pool: Pool, addresses_by_node: Mapping[str, Collection[str]], contested: set[int]
    ) -> None:
        """`contested`: the blocks that contain an address and are not in use anyway."""
        self._pool = pool
        self._network = parse_cached_network(pool.cidr)
        self._addresses_by_node = addresses_by_node
        self._contested = contested
        self._kept = contested
        self._yielding: list[tuple[int, str, list[int]]] = []  # the Node with most blocks last
        self.reports: dict[str, str] = {}  # by Node with ignored addresses, in words
        # Almost always, no Node has two: a plan for a thousand Nodes must stay cheap.
        if len(contested) > 1:
            self._limit()
        self._reserved = self._collect()

    def find_overlap(self, block: Network) -> Network | None:
        """Return a reserved block that overlaps that one; None if there is none."""
        if block.prefix == self._pool.mask:  # the usual case
            return block if block.first in self._reserved else None
        reserved = (Network(block.family, first, self._pool.mask) for first in self._reserved)
        return next((one for one in reserved if one.first < block.end and block.first < one.end), None)

    @property
    def next_to_yield(self) -> tuple[int, str]:
        """The number of blocks that the next Node would yield, and its name; 0 if there is none."""
        return self._yielding[-1][:2] if self._yielding else (0, "")

    def yield_next(self) -> None:
        """Let the Node with most of them yield its blocks: a machine with an address in every block."""
        _, name, _ = self._yielding.pop()
        self.reports[name] = _REPORT.format(self._pool.mask, self._pool.cidr, self._pool.name)
        self._reserved = self._collect()

    def describe_holders(self, is_taken: Callable[[Network], bool]) -> str:
        """Return in words which Nodes' addresses reserve blocks that are not taken; "" if none do."""
        found = {
            name: count
            for name, blocks in self._blocks_by_node.items()
            if (
                count := sum(
                    first in self._reserved
                    and not is_taken(Network(self._network.family, first, self._pool.mask))
                    for first in blocks
                )
            )
        }
        if not found:
            return ""
        most = sorted(found, key=lambda name: (-found[name], name))
        named = ", ".join(f"{name} (in {found[name]})" for name in most[:_MAX_NAMED_NODES])
        more = f" and of {len(most) - _MAX_NAMED_NODES} more" if len(most) > _MAX_NAMED_NODES else ""
        return f", whose blocks contain addresses of node {named}{more}"

    @cached_property
    def _blocks_by_node(self) -> Mapping[str, Collection[int]]:
        """By Node its contested blocks, in the order of its addresses."""
        host_bits = self._network.bits - self._pool.mask
        found: dict[str, dict[int, None]] = {}
        for name, texts in self._addresses_by_node.items():
            for address in map(parse_foreign_network, texts):
                if address is not None and contains(self._network, address):
                    first = address.first >> host_bits << host_bits
                    if first in self._contested:
                        found.setdefault(name, {})[first] = None
        return found

    def _limit(self) -> None:
        if all(len(blocks) == 1 for blocks in self._blocks_by_node.values()):
            return
        self._kept = set()
        for _, blocks in sorted(self._blocks_by_node.items()):
            self._kept.update([first for first in blocks if first not in self._kept][:1])
        for name, blocks in self._blocks_by_node.items():
            others = [first for first in blocks if first not in self._kept]
            if len(others) >= _MAX_BLOCKS_PER_NODE:
                self.reports[name] = _REPORT.format(self._pool.mask, self._pool.cidr, self._pool.name)
                del others[_MAX_BLOCKS_PER_NODE - 1 :]
            if others:
                self._yielding.append((len(others), name, others))
        self._yielding.sort()

    def _collect(self) -> set[int]:
        return self._kept.union(*(blocks for _, _, blocks in self._yielding))
