"""IPAM status: pools, podCIDRs of Nodes, quarantined blocks and conflicts. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from cli.status.ipam.claim_conflicts import ClaimConflict, find_conflicts
from cli.status.ipam.pod_cidr_status import PodCidrStatus, list_pod_cidrs, mark_foreign, why_invalid
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.node import Node
from services.ipam.network_set import NetworkSet, parse_cached_network, parse_foreign_network
from services.ipam.pages import (
    Claim,
    Page,
    StoredPage,
    UnreadablePage,
    decode_page,
    page_name,
    page_range_of,
)
from services.ipam.pool_selection import Pool
from services.ipam.pool_usage import measure_usage

_DEFAULT_OWNERSHIP: Final = Ownership()


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one network of a pool; outside all pools, the blocks of one size in one page."""

    name: str  # "" = outside all pools
    cidr: str
    mask: int
    capacity: int | None = None  # None = unknown
    in_use: int  # blocks of existing Nodes
    quarantined: int  # blocks of deleted Nodes
    free: int | None = None


class QuarantinedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block that ipam does not allocate before `until`."""

    claim: Claim
    since: datetime
    until: datetime


class IpamStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Pools, podCIDRs, quarantined blocks and conflicts at one moment."""

    at: datetime
    pages: tuple[str, ...]  # names of the ConfigMaps, including unreadable ones
    claims: int
    nodes: int
    waiting: int  # Nodes without podCIDRs, except those of other controllers
    pools: tuple[PoolStatus, ...]
    are_pools_known: bool
    pod_cidrs: tuple[PodCidrStatus, ...]
    quarantined: tuple[QuarantinedBlock, ...]
    conflicts: tuple[ClaimConflict, ...]

    @property
    def exit_status(self) -> int:
        return 1 if self.conflicts else 0


class ParsedPages(msgspec.Struct, frozen=True):
    """The parsed ConfigMaps: pages and unreadable pages."""

    pages: tuple[Page, ...]
    unreadable: tuple[UnreadablePage, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all ConfigMaps, sorted."""
        readable_ones = (page_name(page.range) for page in self.pages)
        return tuple(sorted([*readable_ones, *(page.name for page in self.unreadable)]))


def parse_pages(stored: Iterable[StoredPage]) -> ParsedPages:
    """Parse the ConfigMaps as ipam does."""
    found = [decode_page(page) for page in stored]
    return ParsedPages(
        tuple(page for page in found if isinstance(page, Page)),
        tuple(page for page in found if isinstance(page, UnreadablePage)),
    )


def build_ipam_status(
    current_pages: ParsedPages,
    earlier_pages: ParsedPages,
    nodes: Sequence[Node],
    pools: Sequence[Pool],
    *,
    at: datetime,
    quarantine: timedelta,
    ownership: Ownership = _DEFAULT_OWNERSHIP,
) -> IpamStatus:
    """Return the status at one moment.

    `earlier_pages` were read before the Nodes were listed, `current_pages` after that. `quarantine` is ipam's
    quarantine period.
    """
    foreign = {node.uid for node in nodes if why_not_owned(ownership, node)}
    claims = {claim.block: claim for page in current_pages.pages for claim in page.claims.values()}
    present = {node.uid for node in nodes}
    gone = [claim for claim in claims.values() if claim.uid not in present]
    resting = [claim for claim in gone if claim.gone_since is not None]
    known_before = {
        (claim.block, claim.uid) for page in earlier_pages.pages for claim in page.claims.values()
    }
    # A claim that is younger than the Node list may have a Node that is younger, too.
    orphans = [c for c in gone if c.gone_since is None and (c.block, c.uid) in known_before]
    unreadable = {page.name for page in current_pages.unreadable}
    held = tuple(mark_foreign(list_pod_cidrs(nodes, claims, unreadable), foreign))
    carried = [str(network) for one in held if (network := parse_foreign_network(one.pod_cidr)) is not None]
    rests = {claim.block for claim in resting}
    return IpamStatus(
        at=at,
        pages=current_pages.names,
        claims=len(claims),
        nodes=len(nodes),
        waiting=sum(not node.spec.pod_cidrs and node.uid not in foreign for node in nodes),
        pools=tuple(_count_pools(pools, {*(claims.keys() - rests), *carried}, rests)),
        are_pools_known=bool(pools),
        pod_cidrs=held,
        quarantined=tuple(
            sorted(_list_quarantined(resting, quarantine), key=lambda one: (one.until, one.claim.block))
        ),
        conflicts=find_conflicts(
            held, orphans, current_pages.unreadable, took_over=bool(current_pages.names)
        ),
    )


def _list_quarantined(claims: Iterable[Claim], rest: timedelta) -> Iterator[QuarantinedBlock]:
    latest = datetime.max.replace(tzinfo=UTC) - rest
    for claim in claims:
        if claim.gone_since is not None:
            until = min(claim.gone_since, latest) + rest
            yield QuarantinedBlock(claim=claim, since=claim.gone_since, until=until)


def _count_pools(
    pools: Sequence[Pool], in_use: Iterable[str], resting: Iterable[str]
) -> Iterator[PoolStatus]:
    """Yield the usage of each pool. Blocks in use and in quarantine are counted separately.

    A block with both counts twice: in use, and in quarantine.
    """
    live, rests = _make_counting_page(in_use), _make_counting_page(resting)
    of_live, of_resting, of_all = (
        measure_usage(pools, each).pools for each in ([live], [rests], [live, rests])
    )
    for pool in pools:
        capacity = of_all[pool.cidr].capacity
        yield PoolStatus(
            name=pool.name,
            cidr=pool.cidr,
            mask=pool.mask,
            capacity=capacity,
            in_use=of_live[pool.cidr].used,
            quarantined=of_resting[pool.cidr].used,
            free=capacity - of_all[pool.cidr].used,
        )
    yield from _count_outside_pools(live, rests, NetworkSet(pool.cidr for pool in pools))


def _make_counting_page(blocks: Iterable[str]) -> Page:
    """Return a page with these blocks, because `measure_usage` counts pages."""
    return Page(range="", claims={block: Claim(block=block, uid="", node="") for block in blocks})


def _count_outside_pools(live: Page, rests: Page, pools: NetworkSet) -> Iterator[PoolStatus]:
    """Yield the blocks outside all pools, by page and size."""
    counts: dict[tuple[int, str, int], list[int]] = {}
    for which, page in enumerate((live, rests)):
        for block in map(parse_cached_network, page.claims):
            if not why_invalid(block) and pools.find_overlap(block) is None:
                key = (block.family, page_range_of(str(block)), block.prefix)
                counts.setdefault(key, [0, 0])[which] += 1
    for (_, where, prefix), (in_use, quarantined) in sorted(counts.items()):
        yield PoolStatus(name="", cidr=where, mask=prefix, in_use=in_use, quarantined=quarantined)
