"""Checks whether a new configuration removes networks of pools from which Nodes have blocks."""

from collections.abc import Mapping, Sequence
from typing import Final

from libs.common.cloud_config.model import Pool as PoolSpec
from services.ipam.network_set import contains, parse_foreign_network
from services.ipam.networks import Network, parse_network

_MAX_NAMED_BLOCKS: Final = 10  # listed in one message; the others are only counted


def find_refused_shrinks(
    old: Sequence[PoolSpec], new: Sequence[PoolSpec], in_use: Mapping[str, str]
) -> tuple[str, ...]:
    """Return a message per pool that would lose blocks in use; () if the new configuration is acceptable.

    `in_use`: block -> name of its Node. A network may move to another pool. Blocks from elsewhere (the
    cluster's CIDRs, node subnets, another allocator) belong to no pool and do not count.
    """
    kept = _networks(new)
    blocks = [(block, node) for block, node in in_use.items() if not _lies_in(block, kept)]
    sentences = []
    for pool in old:
        gone = _networks([pool])
        nodes = [f"{node} ({block})" for block, node in blocks if _lies_in(block, gone)]
        if nodes:
            sentences.append(f"pool {pool.name} would lose {_describe_blocks(sorted(nodes))}")
    return tuple(sentences)


def _networks(pools: Sequence[PoolSpec]) -> list[Network]:
    return [parse_network(cidr) for pool in pools for cidr in pool.cidrs]


def _lies_in(block: str, networks: Sequence[Network]) -> bool:
    network = parse_foreign_network(block)  # another allocator may write invalid podCIDRs
    return network is not None and any(contains(outer, network) for outer in networks)


def _describe_blocks(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _MAX_NAMED_BLOCKS} more" if len(nodes) > _MAX_NAMED_BLOCKS else ""
    what = "blocks that nodes have" if len(nodes) > 1 else "block that a node has"
    return f"{len(nodes)} {what}: {', '.join(nodes[:_MAX_NAMED_BLOCKS])}{more}"
