"""Reserves the blocks that contain addresses of Nodes: a bounded number per Node.

Kubelets and machines report addresses of their own choice. No Node gets a block that contains an address.
So without a bound one machine could use up a pool.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from services.ipam.network_set import NetworkSet, contains, parse_cached_network, parse_foreign_network
from services.ipam.networks import Network
from services.ipam.pool_selection import Pool

# Per pool and Node: a sixteenth of a /16 with blocks of /24. An honest machine has no address in the blocks
# for pods, or only a few: its node networks, gateways and virtual IPs.
MAX_BLOCKS_PER_NODE: Final = 16
_MAX_NAMED_NODES: Final = 3


class AddressReservations(msgspec.Struct, frozen=True, kw_only=True):
    """The reservations of Nodes with many addresses."""

    kept: tuple[str, ...] = ()  # addresses that no block may contain
    ignored: Mapping[str, str] = {}  # by Node, which of its addresses are ignored, in words


def limit_reservations(
    nodes_with_many_addresses: Mapping[str, Sequence[str]],
    pools: Iterable[Pool],
    pod_cidrs_by_uid: NetworkSet,
) -> AddressReservations:
    """Keep each Node's addresses in its first MAX_BLOCKS_PER_NODE blocks of each pool.

    Addresses in pod CIDRs of Nodes reserve nothing, because those blocks are in use anyway.
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
                    f"{pool.cidr} (pool {pool.name}); ipam reserves only the first ones, and pods may get "
                    "addresses in the others"
                )
    return AddressReservations(kept=tuple(kept), ignored=ignored)


def describe_holders(
    pool: Pool, addresses: Mapping[str, Sequence[str]], is_taken: Callable[[Network], bool]
) -> str:
    """Return in words which Nodes' addresses reserve blocks of that pool; "" if none do.

    `is_taken`: whether an address is in a claimed block or in a podCIDR, such as the address of a CNI
    interface.
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
    return f", whose blocks contain addresses of node {named}{more}"


def _addresses_inside(addresses: Iterable[str], network: Network) -> Iterable[tuple[str, Network]]:
    for text in addresses:
        address = parse_foreign_network(text)
        if address is not None and contains(network, address):
            yield text, address


def _block_index(address: Network, pool: Pool) -> int:
    return address.first >> (address.bits - pool.mask)
