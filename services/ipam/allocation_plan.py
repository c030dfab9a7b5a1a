"""Which block is claimed for which Node: many Nodes at once, from the pages as they were read."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from services.ipam.address_reservations import limit_reservations
from services.ipam.ledger import Ledger
from services.ipam.network_set import NetworkSet, contains, parse_cached_network
from services.ipam.pages import PAGE_BYTES, Page
from services.ipam.pool_selection import Pool


class AllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A Node without podCIDRs: it gets a block of each family, out of the first pool that has one."""

    uid: str
    node: str
    pools: tuple[Pool, ...]  # pools of a family stand together; the families in the order of podCIDRs


class Exclusions(msgspec.Struct, frozen=True, kw_only=True):
    """What no block may touch, in anybody's writing: what names no network is left out."""

    networks: tuple[str, ...] = ()  # service CIDRs, addresses of nodes and of their gateways
    addresses_by_node: Mapping[str, tuple[str, ...]] = {}  # the same of each Node, by its name
    nodes_with_many_addresses: frozenset[str] = (
        frozenset()
    )  # Nodes with so many addresses that `excluded` does not hold them
    pod_cidrs_by_uid: Mapping[str, tuple[str, ...]] = {}  # uid -> podCIDRs of that Node
    node_names_by_uid: Mapping[str, str] = {}  # uid -> that Node's name, for people


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """These blocks are claimed for that uid: it, and nobody else, may be given them whenever it has none."""

    uid: str
    pod_cidrs: tuple[str, ...]


class ExistingAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The Node has podCIDRs, and keeps them."""

    pod_cidrs: tuple[str, ...]


class NoBlock(msgspec.Struct, frozen=True, kw_only=True):
    """No block now, and why."""

    reason: str
    is_exhausted: bool = False  # every pool of a family is used up; False: a page stands in the way


AllocationResult = Assignment | ExistingAssignment | NoBlock


class AllocationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Once `changed` is written, the answers are true; those that rest on no new claim are already."""

    changed_pages: tuple[Page, ...]  # at the resourceVersion that they were read at
    results: Mapping[str, AllocationResult]  # by uid
    new_blocks: tuple[tuple[str, Pool], ...]  # the new blocks, each with its pool
    cursors: Mapping[tuple[str, int], str]  # (pool's cidr, mask) -> the block last given out of it
    attempts: Mapping[str, int] = {}  # by new block, how many were looked at for it
    ignored_addresses: Mapping[str, str] = {}  # by Node, which of its many addresses do not count, in words


def plan_claims(
    pages: Mapping[str, Page],
    requests: Sequence[AllocationRequest],
    exclusions: Exclusions,
    *,
    closed_pages: Mapping[str, str],
    cursors: Mapping[tuple[str, int], str],
    page_bytes: int = PAGE_BYTES,
) -> AllocationPlan:
    """What to claim for whom.

    `pages` by range, those that are missing are not there yet; `closed` are names of pages in which nothing
    may be claimed now, with the reason. A claim that a uid has already is its answer, if its pools still
    give such blocks and nothing else has come to lie in it; if not, another is claimed and that one stays:
    the patch of somebody slow may still bring it to the Node.
    """
    many = {name: exclusions.addresses_by_node[name] for name in sorted(exclusions.nodes_with_many_addresses)}
    carried = (
        NetworkSet(cidr for cidrs in exclusions.pod_cidrs_by_uid.values() for cidr in cidrs)
        if many
        else NetworkSet()
    )
    kept = limit_reservations(many, (pool for want in requests for pool in want.pools), carried)
    ledger = Ledger(
        pages,
        pod_cidrs_by_uid=exclusions.pod_cidrs_by_uid,
        node_names_by_uid=exclusions.node_names_by_uid,
        excluded=(*exclusions.networks, *kept.kept),
        closed_pages=closed_pages,
        cursors=cursors,
        page_bytes=page_bytes,
    )
    answers = {want.uid: _allocate(want, ledger, exclusions) for want in requests}
    return AllocationPlan(
        changed_pages=ledger.build_changed_pages(),
        results=answers,
        new_blocks=tuple(ledger.new_blocks),
        cursors=ledger.cursors,
        attempts=ledger.attempts,
        ignored_addresses=kept.ignored,
    )


def _allocate(request: AllocationRequest, ledger: Ledger, exclusions: Exclusions) -> AllocationResult:
    if exclusions.pod_cidrs_by_uid.get(request.uid):
        return ExistingAssignment(pod_cidrs=exclusions.pod_cidrs_by_uid[request.uid])
    if not request.pools:
        return NoBlock(reason="no pool is for this node")
    found: list[tuple[str, Pool | None]] = []  # without a pool: it was claimed before
    own = ledger.get_blocks(request.uid)
    for family, grouped in groupby(request.pools, key=lambda pool: pool.family):
        pools = tuple(grouped)
        one = _find_block(request, pools, own, ledger)
        if one is None:  # all families or none: the other's block goes back
            ledger.return_unused(found)
            return _explain_no_block(family, pools, ledger, exclusions)
        found.append(one)
    for block, pool in found:
        if pool is not None:
            ledger.claim(block, pool, request.uid, request.node)
    return Assignment(uid=request.uid, pod_cidrs=tuple(block for block, _ in found))


def _find_block(
    request: AllocationRequest, pools: tuple[Pool, ...], claimed_blocks: Sequence[str], ledger: Ledger
) -> tuple[str, Pool | None] | None:
    """One that was claimed before, else a new one.

    Where there is no room for a new one, one of another mask will do that was claimed before: it would stand
    in this Node's own way for ever.
    """
    before = [
        (block, pool.mask) for pool in pools for block in claimed_blocks if _is_usable(block, pool, ledger)
    ]
    for block, mask in before:
        if parse_cached_network(block).prefix == mask:
            return block, None
    fresh = ledger.next_free(pools, request.uid, request.node)
    return fresh or ((before[0][0], None) if before else None)


def _is_usable(block: str, pool: Pool, ledger: Ledger) -> bool:
    network = parse_cached_network(block)
    return contains(parse_cached_network(pool.cidr), network) and ledger.find_obstacle(network) is None


def _explain_no_block(
    family: int, pools: tuple[Pool, ...], ledger: Ledger, exclusions: Exclusions
) -> NoBlock:
    takers = [
        ledger.explain_blocked_pool(pool) or ledger.describe_holders(pool, exclusions.addresses_by_node)
        for pool in pools
    ]
    where = " and ".join(
        f"/{pool.mask} in {pool.cidr} (pool {pool.name}){taker}"
        for pool, taker in zip(pools, takers, strict=True)
    )
    obstacles = sorted({why for pool in pools for why in ledger.list_obstacles(pool)})
    because = f": {'; '.join(obstacles)}" if obstacles else ""
    return NoBlock(reason=f"no free IPv{family} block of {where}{because}", is_exhausted=not obstacles)
