"""Measures what is in use and in quarantine, and finds blocks in use that a new configuration removes."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from libs.common.cloud_config.model import Pool as PoolSpec
from libs.common.contract.events import MAX_QUARANTINED_BLOCKS, Quarantine, QuarantinedBlock
from libs.common.contract.networks import (
    Network,
    NetworkSet,
    contains,
    parse_cached_network,
    parse_foreign_network,
    parse_network,
)
from libs.common.contract.subjects import is_publishable_name
from services.ipam.core.pages import Page
from services.ipam.core.pools import Pool

_MAX_NAMED_BLOCKS: Final = 10  # listed in one message; the others are only counted


class PoolUsage(msgspec.Struct, frozen=True):
    """The usage of one pool."""

    used: int  # blocks of its mask that overlap a claim, including claims in quarantine
    capacity: int


class UsageReport(msgspec.Struct, frozen=True):
    """The usage of all pools."""

    pools: Mapping[str, PoolUsage]  # by the pool's network
    quarantined: int  # claims of deleted Nodes


def measure_usage(pools: Iterable[Pool], pages: Iterable[Page]) -> UsageReport:
    """Measure pools that do not overlap; pools with the same network count as one."""
    claims = [claim for page in pages for claim in page.claims.values()]
    taken = NetworkSet(claim.block for claim in claims)
    used = {}
    for pool in pools:
        network = parse_cached_network(pool.cidr)
        used[pool.cidr] = PoolUsage(taken.count_blocks(network, pool.mask), 1 << pool.mask - network.prefix)
    return UsageReport(used, sum(claim.gone_since is not None for claim in claims))


def end_quarantine(since: datetime, period: timedelta) -> datetime:
    """Return when a block is allocated again at the earliest. A page may have any time."""
    return min(since, datetime.max.replace(tzinfo=UTC) - period) + period


def build_quarantine(pages: Iterable[Page], period: timedelta, read_at: datetime) -> Quarantine:
    """Return the number of blocks in quarantine, and those that end first. Its size is limited."""
    found = sorted(
        (since, claim.block, claim.node)
        for page in pages
        for claim in page.claims.values()
        if (since := claim.gone_since) is not None
    )
    blocks = (
        QuarantinedBlock(
            block=block,
            node=node if is_publishable_name(node) else "",
            since=since,
            until=end_quarantine(since, period),
        )
        for since, block, node in found[:MAX_QUARANTINED_BLOCKS]
    )
    return Quarantine(read_at=read_at, count=len(found), blocks=tuple(blocks))


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
