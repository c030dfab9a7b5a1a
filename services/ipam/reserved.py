"""Which blocks the addresses of Nodes keep from use: of one Node a bounded number, and whose they are.

Kubelets and machines report addresses of their own choice. A block that holds an address is given to nobody,
so without a bound one machine could leave a pool without blocks for all others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from services.ipam.networks import Network
from services.ipam.pools import Pool
from services.ipam.spans import Spans, contains, network_of, readable

# Of one pool by one Node: a sixteenth of a /16 with blocks of /24. An honest machine has addresses in none of
# the blocks for pods, or in the few of its node networks, gateways and virtual addresses.
MOST_BLOCKS: Final = 16
_MOST_NAMED: Final = 3


class Bounded(msgspec.Struct, frozen=True, kw_only=True):
    """What Nodes with many addresses reserve."""

    kept: tuple[str, ...] = ()  # addresses that no block may hold
    ignored: Mapping[str, str] = {}  # by Node, which of its addresses do not count, in words


def bounded(many: Mapping[str, Sequence[str]], pools: Iterable[Pool], carried: Spans) -> Bounded:
    """Of each Node the addresses in the first blocks of each pool.

    Addresses in pod CIDRs that Nodes carry reserve nothing: those blocks are taken anyway.
    """
    kept: dict[str, None] = {}
    ignored: dict[str, str] = {}
    if not many:
        return Bounded()
    for pool in dict.fromkeys(pools):
        network = network_of(pool.cidr)
        for name, addresses in many.items():
            blocks: dict[int, list[str]] = {}
            for text, address in _inside(addresses, network):
                if carried.hit(address) is None:
                    blocks.setdefault(_block(address, pool), []).append(text)
            for texts in list(blocks.values())[:MOST_BLOCKS]:
                kept.update(dict.fromkeys(texts))
            if len(blocks) > MOST_BLOCKS:
                ignored[name] = (
                    f"its addresses are in more than {MOST_BLOCKS} blocks of /{pool.mask} in {pool.cidr} "
                    f"(pool {pool.name}); only the first of these are kept from use, and pods may get "
                    "addresses of the others"
                )
    return Bounded(kept=tuple(kept), ignored=ignored)


def holders(pool: Pool, addresses: Mapping[str, Sequence[str]], is_taken: Callable[[Network], bool]) -> str:
    """Which Nodes' addresses keep blocks of that pool from use, in words; "" if none do.

    `is_taken`: whether an address is in a block that is claimed or carried, as that of a CNI's interface is.
    """
    network = network_of(pool.cidr)
    found: dict[str, set[int]] = {}
    for name, of_node in addresses.items():
        inside = (address for _, address in _inside(of_node, network))
        blocks = {_block(address, pool) for address in inside if not is_taken(address)}
        if blocks:
            found[name] = blocks
    if not found:
        return ""
    most = sorted(found, key=lambda name: (-len(found[name]), name))
    named = ", ".join(f"{name} (in {min(len(found[name]), MOST_BLOCKS)})" for name in most[:_MOST_NAMED])
    more = f" and of {len(most) - _MOST_NAMED} more" if len(most) > _MOST_NAMED else ""
    return f", blocks of which hold addresses of node {named}{more}"


def _inside(addresses: Iterable[str], network: Network) -> Iterable[tuple[str, Network]]:
    for text in addresses:
        address = readable(text)
        if address is not None and contains(network, address):
            yield text, address


def _block(address: Network, pool: Pool) -> int:
    return address.first >> (address.bits - pool.mask)
