"""Plans which blocks to claim for many Nodes at once, by the pages as last read."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from libs.common.contract.networks import contains, parse_cached_network
from services.ipam.core.ledger import Cursors, Exclusions, Ledger
from services.ipam.core.pages import PAGE_BYTES, Page
from services.ipam.core.pools import Pool


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A Node without podCIDRs: it gets a block of each family, from the first pool that has one."""

    uid: str
    node: str
    pools: tuple[Pool, ...]  # grouped by family, in the order of the families in podCIDRs


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks claimed for that uid: only that Node may get them, at any time while it has none."""

    uid: str
    pod_cidrs: tuple[str, ...]
    is_new: bool = False  # False: all are claimed already, and another replica may be about to write them


class ExistingAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The Node has podCIDRs, and keeps them."""

    pod_cidrs: tuple[str, ...]


class NoBlock(msgspec.Struct, frozen=True, kw_only=True):
    """No block is available now, with the reason."""

    reason: str
    is_exhausted: bool = False  # all pools of a family are exhausted; False: a page prevents a claim


AllocationResult = Assignment | ExistingAssignment | NoBlock


class AllocationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The results become true once `changed_pages` are written; results without a new claim already are."""

    changed_pages: tuple[Page, ...]  # at the resourceVersion at which they were read
    results: Mapping[str, AllocationResult]  # by uid
    new_blocks: tuple[tuple[str, Pool], ...]  # each with its pool
    cursors: Cursors
    tries: Mapping[str, int] = {}  # by new block, number of candidate blocks examined
    ignored_addresses: Mapping[str, str] = {}  # by Node, which of its many addresses are ignored, in words

    def complete(self, new_blocks: Sequence[tuple[str, Pool]], tries: Mapping[str, int]) -> "AllocationPlan":
        """Return the plan once its pages are written, with the new blocks of this and earlier attempts."""
        blocks = {block for block, _ in new_blocks}
        results = {
            uid: msgspec.structs.replace(result, is_new=True)
            if isinstance(result, Assignment) and not blocks.isdisjoint(result.pod_cidrs)
            else result
            for uid, result in self.results.items()
        }
        return msgspec.structs.replace(self, results=results, new_blocks=tuple(new_blocks), tries=tries)


def plan_claims(
    pages: Mapping[str, Page],
    requests: Sequence[AllocationRequest],
    exclusions: Exclusions,
    *,
    closed_pages: Mapping[str, str],
    cursors: Cursors,
    page_bytes: int = PAGE_BYTES,
) -> AllocationPlan:
    """Plan the claims of all requests.

    `pages` by range; missing ones do not exist yet. `closed_pages`: names of pages that accept no claim now,
    with the reason. A uid keeps an existing claim if its pools still provide such blocks and nothing else
    overlaps it. Otherwise another block is claimed, and the old claim stays: the delayed patch of another
    replica may still write it to the Node.
    """
    ledger = Ledger(
        pages,
        exclusions,
        closed_pages=closed_pages,
        cursors=cursors,
        page_bytes=page_bytes,
    )
    results = {request.uid: _allocate(request, ledger, exclusions) for request in requests}
    return AllocationPlan(
        changed_pages=ledger.build_changed_pages(),
        results=results,
        new_blocks=tuple(ledger.new_blocks),
        cursors=ledger.cursors,
        tries=ledger.tries,
        ignored_addresses=ledger.ignored_addresses,
    )


def _allocate(request: AllocationRequest, ledger: Ledger, exclusions: Exclusions) -> AllocationResult:
    if pod_cidrs := exclusions.pod_cidrs_by_uid.get(request.uid):
        return ExistingAssignment(pod_cidrs=pod_cidrs)
    found: list[tuple[str, Pool | None]] = []  # pool None: claimed earlier
    for family, grouped in groupby(request.pools, key=lambda pool: pool.family):
        pools = tuple(grouped)
        one = _find_block(request, pools, ledger)
        if one is None:  # all families or none
            return _explain_no_block(family, pools, ledger)
        found.append(one)
    for block, pool in found:
        if pool is not None:
            ledger.claim(block, pool, request.uid, request.node)
    return Assignment(uid=request.uid, pod_cidrs=tuple(block for block, _ in found))


def _find_block(
    request: AllocationRequest, pools: tuple[Pool, ...], ledger: Ledger
) -> tuple[str, Pool | None] | None:
    """Find a block claimed earlier for this Node, else a free one, else one that a Node reserves and yields.

    If no block is free, an earlier claim with another mask is reused. Otherwise it would block its own Node
    permanently.
    """
    while True:
        before = [
            (block, pool.mask)
            for pool in pools
            for block in ledger.get_blocks(request.uid)
            if _is_usable(block, pool, ledger)
        ]
        for block, mask in before:
            if parse_cached_network(block).prefix == mask:
                return block, None
        found = ledger.next_free(pools, request.uid, request.node) or (
            (before[0][0], None) if before else None
        )
        if found or not ledger.yield_reservation(pools):
            return found


def _is_usable(block: str, pool: Pool, ledger: Ledger) -> bool:
    network = parse_cached_network(block)
    return contains(parse_cached_network(pool.cidr), network) and ledger.find_obstacle(network, pool) is None


def _explain_no_block(family: int, pools: tuple[Pool, ...], ledger: Ledger) -> NoBlock:
    takers = [ledger.describe_takers(pool) for pool in pools]
    where = " and ".join(
        f"/{pool.mask} in {pool.cidr} (pool {pool.name}){taker}"
        for pool, taker in zip(pools, takers, strict=True)
    )
    obstacles = sorted({why for pool in pools for why in ledger.list_obstacles(pool)})
    because = f": {'; '.join(obstacles)}" if obstacles else ""
    return NoBlock(reason=f"no free IPv{family} block of {where}{because}", is_exhausted=not obstacles)
