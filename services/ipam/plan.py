"""Which block is claimed for which Node: many Nodes at once, from the pages as they were read."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

from services.ipam.ledger import Ledger
from services.ipam.pages import PAGE_BYTES, Page
from services.ipam.pools import Pool
from services.ipam.reserved import bounded
from services.ipam.spans import Spans, contains, network_of


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """A Node without podCIDRs: it gets a block of each family, out of the first pool that has one."""

    uid: str
    node: str
    pools: tuple[Pool, ...]  # pools of a family stand together; the families in the order of podCIDRs


class Occupied(msgspec.Struct, frozen=True, kw_only=True):
    """What no block may touch, in anybody's writing: what names no network is left out."""

    excluded: tuple[str, ...] = ()  # service CIDRs, addresses of nodes and of their gateways
    addresses: Mapping[str, tuple[str, ...]] = {}  # the same of each Node, by its name
    many: frozenset[str] = frozenset()  # Nodes with so many addresses that `excluded` does not hold them
    carried: Mapping[str, tuple[str, ...]] = {}  # uid -> podCIDRs of that Node
    names: Mapping[str, str] = {}  # uid -> that Node's name, for people


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    """These blocks are claimed for that uid: it, and nobody else, may be given them whenever it has none."""

    uid: str
    pod_cidrs: tuple[str, ...]


class Carries(msgspec.Struct, frozen=True, kw_only=True):
    """The Node has podCIDRs, and keeps them."""

    pod_cidrs: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """No block now, and why."""

    reason: str
    exhausted: bool = False  # every pool of a family is used up; False: a page stands in the way


Answer = Assigned | Carries | Refused


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Once `changed` is written, the answers are true; those that rest on no new claim are already."""

    changed: tuple[Page, ...]  # at the resourceVersion that they were read at
    answers: Mapping[str, Answer]  # by uid
    claimed: tuple[tuple[str, Pool], ...]  # the new blocks, each with its pool
    cursors: Mapping[tuple[str, int], str]  # (pool's cidr, mask) -> the block last given out of it
    tries: Mapping[str, int] = {}  # by new block, how many were looked at for it
    ignored: Mapping[str, str] = {}  # by Node, which of its many addresses do not count, in words


def plan_claims(
    pages: Mapping[str, Page],
    wants: Sequence[Want],
    occupied: Occupied,
    *,
    closed: Mapping[str, str],
    cursors: Mapping[tuple[str, int], str],
    page_bytes: int = PAGE_BYTES,
) -> Plan:
    """What to claim for whom.

    `pages` by range, those that are missing are not there yet; `closed` are names of pages in which nothing
    may be claimed now, with the reason. A claim that a uid has already is its answer, if its pools still
    give such blocks and nothing else has come to lie in it; if not, another is claimed and that one stays:
    the patch of somebody slow may still bring it to the Node.
    """
    many = {name: occupied.addresses[name] for name in sorted(occupied.many)}
    carried = Spans(cidr for cidrs in occupied.carried.values() for cidr in cidrs) if many else Spans()
    kept = bounded(many, (pool for want in wants for pool in want.pools), carried)
    ledger = Ledger(
        pages,
        carried=occupied.carried,
        names=occupied.names,
        excluded=(*occupied.excluded, *kept.kept),
        closed=closed,
        cursors=cursors,
        page_bytes=page_bytes,
    )
    answers = {want.uid: _answer(want, ledger, occupied) for want in wants}
    return Plan(
        changed=ledger.changed(),
        answers=answers,
        claimed=tuple(ledger.claimed),
        cursors=ledger.cursors,
        tries=ledger.tries,
        ignored=kept.ignored,
    )


def _answer(want: Want, ledger: Ledger, occupied: Occupied) -> Answer:
    if occupied.carried.get(want.uid):
        return Carries(pod_cidrs=occupied.carried[want.uid])
    if not want.pools:
        return Refused(reason="no pool is for this node")
    found: list[tuple[str, Pool | None]] = []  # without a pool: it was claimed before
    own = ledger.blocks_of(want.uid)
    for family, grouped in groupby(want.pools, key=lambda pool: pool.family):
        pools = tuple(grouped)
        one = _block_for(want, pools, own, ledger)
        if one is None:  # all families or none: the other's block goes back
            ledger.put_back(found)
            return _refused(family, pools, ledger, occupied)
        found.append(one)
    for block, pool in found:
        if pool is not None:
            ledger.claim(block, pool, want.uid, want.node)
    return Assigned(uid=want.uid, pod_cidrs=tuple(block for block, _ in found))


def _block_for(
    want: Want, pools: tuple[Pool, ...], own: Sequence[str], ledger: Ledger
) -> tuple[str, Pool | None] | None:
    """One that was claimed before, else a new one.

    Where there is no room for a new one, one of another mask will do that was claimed before: it would stand
    in this Node's own way for ever.
    """
    before = [(block, pool.mask) for pool in pools for block in own if _is_usable(block, pool, ledger)]
    for block, mask in before:
        if network_of(block).prefix == mask:
            return block, None
    fresh = ledger.next_free(pools, want.uid, want.node)
    return fresh or ((before[0][0], None) if before else None)


def _is_usable(block: str, pool: Pool, ledger: Ledger) -> bool:
    network = network_of(block)
    return contains(network_of(pool.cidr), network) and ledger.obstacle(network) is None


def _refused(family: int, pools: tuple[Pool, ...], ledger: Ledger, occupied: Occupied) -> Refused:
    takers = [ledger.whole(pool) or ledger.holders(pool, occupied.addresses) for pool in pools]
    where = " and ".join(
        f"/{pool.mask} in {pool.cidr} (pool {pool.name}){taker}"
        for pool, taker in zip(pools, takers, strict=True)
    )
    obstacles = sorted({why for pool in pools for why in ledger.obstacles(pool)})
    because = f": {'; '.join(obstacles)}" if obstacles else ""
    return Refused(reason=f"no free IPv{family} block of {where}{because}", exhausted=not obstacles)
