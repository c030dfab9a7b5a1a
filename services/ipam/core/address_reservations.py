"""Reserves the blocks that contain addresses of Nodes: a bounded number per Node.

Kubelets and machines report addresses of their own choice. No Node gets a block that contains an address.
So without a bound one machine could use up a pool.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from services.ipam.core.networks import (
    Network,
    NetworkSet,
    contains,
    parse_cached_network,
    parse_foreign_network,
)
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


class Reservation(msgspec.Struct, frozen=True):
    """Blocks of one pool that one Node reserves, and yields once no other block is free."""

    pool: Pool
    node: str
    addresses: Mapping[int, Collection[str]]  # its addresses, by the first address of their block

    @property
    def report(self) -> str:
        """Tell in words that its addresses are ignored."""
        return _REPORT.format(self.pool.mask, self.pool.cidr, self.pool.name)


class Reservations(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that reserve no block, or not always; all others reserve their block."""

    ignored: Collection[str] = ()
    reports: Mapping[str, str] = {}  # by Node with ignored addresses, in words
    yielding: Collection[Reservation] = ()


def limit_reservations(
    addresses_by_node: Mapping[str, Collection[str]],
    addresses: NetworkSet,
    pools: Iterable[Pool],
    pod_cidrs: NetworkSet,
) -> Reservations:
    """Limit each Node to its first blocks of each pool, in the order of its addresses.

    It keeps one block, and yields the others once no block is free. A block that another Node keeps counts
    for that one only: honest Nodes share their networks and gateways. So K Nodes keep at most K blocks.
    Addresses in `pod_cidrs` reserve nothing, because those blocks are in use anyway. `addresses` has the
    addresses of all Nodes.
    """
    reserved: set[str] = set()
    ignored: set[str] = set()
    reports: dict[str, str] = {}
    yielding: list[Reservation] = []
    for pool in dict.fromkeys(pools):
        contested = _find_contested_blocks(pool, addresses, pod_cidrs)
        # Almost always, no Node has two: a plan for a thousand Nodes must stay cheap.
        found = _group_by_block(addresses_by_node, pool, contested) if len(contested) > 1 else {}
        if all(len(blocks) == 1 for blocks in found.values()):
            continue
        kept: set[int] = set()
        for _, blocks in sorted(found.items()):
            kept.update([block for block in blocks if block not in kept][:1])
        for name, blocks in found.items():
            reserved.update(text for block in kept & blocks.keys() for text in blocks[block])
            others = [block for block in blocks if block not in kept]
            reservation = Reservation(
                pool, name, {block: blocks[block] for block in others[: _MAX_BLOCKS_PER_NODE - 1]}
            )
            reserved.update(text for texts in reservation.addresses.values() for text in texts)
            ignored.update(text for block in others[_MAX_BLOCKS_PER_NODE - 1 :] for text in blocks[block])
            if reservation.addresses:
                yielding.append(reservation)
            if len(others) >= _MAX_BLOCKS_PER_NODE:
                reports[name] = reservation.report
    return Reservations(ignored=ignored - reserved, reports=reports, yielding=yielding)


def describe_holders(
    pool: Pool, addresses: Mapping[str, Collection[str]], is_taken: Callable[[Network], bool]
) -> str:
    """Return in words which Nodes' addresses reserve blocks of that pool; "" if none do.

    `is_taken`: whether an address reserves nothing: it is ignored, or in a claimed block or in a podCIDR,
    such as the address of a CNI interface.
    """
    network = parse_cached_network(pool.cidr)
    found: dict[str, set[int]] = {}
    for name, of_node in addresses.items():
        inside = (address for _, address in _addresses_inside(of_node, network))
        blocks = {_block_start(address, pool) for address in inside if not is_taken(address)}
        if blocks:
            found[name] = blocks
    if not found:
        return ""
    most = sorted(found, key=lambda name: (-len(found[name]), name))
    named = ", ".join(f"{name} (in {len(found[name])})" for name in most[:_MAX_NAMED_NODES])
    more = f" and of {len(most) - _MAX_NAMED_NODES} more" if len(most) > _MAX_NAMED_NODES else ""
    return f", whose blocks contain addresses of node {named}{more}"


def _find_contested_blocks(pool: Pool, addresses: NetworkSet, pod_cidrs: NetworkSet) -> set[int]:
    """Return the first address of each block that contains an address and overlaps no podCIDR."""
    network = parse_cached_network(pool.cidr)
    blocks = addresses.find_blocks(network, pool.mask) - pod_cidrs.find_blocks(network, pool.mask)
    return {
        first
        for first in blocks
        if pod_cidrs.find_overlap(Network(pool.family, first, pool.mask)) is None  # a wider one
    }


def _group_by_block(
    addresses_by_node: Mapping[str, Collection[str]], pool: Pool, contested: Collection[int]
) -> dict[str, dict[int, list[str]]]:
    """Return by Node its addresses, by the first address of their block, if that block is contested."""
    network = parse_cached_network(pool.cidr)
    found: dict[str, dict[int, list[str]]] = {}
    for name, addresses in addresses_by_node.items():
        for text, address in _addresses_inside(addresses, network):
            if (block := _block_start(address, pool)) in contested:
                found.setdefault(name, {}).setdefault(block, []).append(text)
    return found


def _addresses_inside(addresses: Iterable[str], network: Network) -> Iterable[tuple[str, Network]]:
    for text in addresses:
        address = parse_foreign_network(text)
        if address is not None and contains(network, address):
            yield text, address


def _block_start(address: Network, pool: Pool) -> int:
    host_bits = address.bits - pool.mask
    return address.first >> host_bits << host_bits
