"""Which blocks the addresses of Nodes keep from use: of one Node a bounded number, and whose they are.

Kubelets and machines report addresses of their own choice. A block that holds an address is given to nobody,
so without a bound one machine could leave a pool without blocks for all others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from services.ipam.network_set import NetworkSet, contains, parse_cached_network, parse_foreign_network
from services.ipam.networks import Network
from services.ipam.pool_selection import Pool

# Of one pool by one Node: a sixteenth of a /16 with blocks of /24. An honest machine has addresses in none of
# the blocks for pods, or in the few of its node networks, gateways and virtual addresses.
MAX_BLOCKS_PER_NODE: Final = 16
_MAX_NAMED_NODES: Final = 3


class AddressReservations(msgspec.Struct, frozen=True, kw_only=True):
    """What Nodes with many addresses reserve."""

    kept: tuple[str, ...] = ()  # addresses that no block may hold
    ignored: Mapping[str, str] = {}  # by Node, which of its addresses do not count, in words


def limit_reservations(
    nodes_with_many_addresses: Mapping[str, Sequence[str]],
    pools: Iterable[Pool],
    pod_cidrs_by_uid: NetworkSet,
) -> AddressReservations:
    """Of each Node the addresses in the first blocks of each pool.

    Addresses in pod CIDRs that Nodes carry reserve nothing: those blocks are taken anyway.
    """
    kept: dict[str, None] = {}
    ignored: dict[str, str] = {}
    if not nodes_with_many_addresses:
        return AddressReservations()
    for pool in dict.fromkeys(pools):
        network = parse_cached_network(pool.cidr)
        for name, addresses in nodes_with_many_addresses.items():
            blocks: dict[int, list[str]] = {}
            for text, address in _addresses_inside(addresses, network):
                if pod_cidrs_by_uid.find_overlap(address) is None:
                    blocks.setdefault(_block_index(address, pool), []).append(text)
            for texts in list(blocks.values())[:MAX_BLOCKS_PER_NODE]:
                kept.update(dict.fromkeys(texts))
            if len(blocks) > MAX_BLOCKS_PER_NODE:
                ignored[name] = (
                    f"its addresses are in more than {MAX_BLOCKS_PER_NODE} blocks of /{pool.mask} in "
                    f"{pool.cidr} "
                    f"(pool {pool.name}); only the first of these are kept from use, and pods may get "
                    "addresses of the others"
                )
    return AddressReservations(kept=tuple(kept), ignored=ignored)


def describe_holders(
    pool: Pool, addresses: Mapping[str, Sequence[str]], is_taken: Callable[[Network], bool]
) -> str:
    """Which Nodes' addresses keep blocks of that pool from use, in words; "" if none do.

    `is_taken`: whether an address is in a block that is claimed or carried, as that of a CNI's interface is.
    """
    network = parse_cached_network(pool.cidr)
    found: dict[str, set[int]] = {}
    for name, of_node in addresses.items():
        inside = (address for _, address in _addresses_inside(of_node, network))
        blocks = {_block_index(address, pool) for address in inside if not is_taken(address)}
        if blocks:
            found[name] = blocks
    if not found:
        return ""
    most = sorted(found, key=lambda name: (-len(found[name]), name))
    named = ", ".join(
        f"{name} (in {min(len(found[name]), MAX_BLOCKS_PER_NODE)})" for name in most[:_MAX_NAMED_NODES]
    )
    more = f" and of {len(most) - _MAX_NAMED_NODES} more" if len(most) > _MAX_NAMED_NODES else ""
    return f", blocks of which hold addresses of node {named}{more}"


def _addresses_inside(addresses: Iterable[str], network: Network) -> Iterable[tuple[str, Network]]:
    for text in addresses:
        address = parse_foreign_network(text)
        if address is not None and contains(network, address):
            yield text, address


def _block_index(address: Network, pool: Pool) -> int:
    return address.first >> (address.bits - pool.mask)
