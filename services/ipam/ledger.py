"""All that is known to be taken while one plan is made, and what the plan takes itself."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from services.ipam.cidr_set import CidrSet
from services.ipam.networks import Network
from services.ipam.pages import Claim, Page, claim_size, page_name, page_of
from services.ipam.pools import Pool
from services.ipam.reserved import holders
from services.ipam.spans import Spans, network_of, readable

_FULL: Final = "the page of claims {} is full"
_LONGER: Final = "x" * 20  # by so much the text of a block may exceed that of its pool

Cursors = dict[tuple[str, int], str]


class Ledger:
    """Lives as long as the making of one plan."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        *,
        carried: Mapping[str, tuple[str, ...]],
        names: Mapping[str, str],
        excluded: Iterable[str],
        closed: Mapping[str, str],
        cursors: Mapping[tuple[str, int], str],
        page_bytes: int,
    ) -> None:
        self._pages = pages
        self._claims = Spans(block for page in pages.values() for block in page.claims)
        self._carried = Spans(cidr for cidrs in carried.values() for cidr in cidrs)
        self._carried_by = carried
        self._names = names
        self._whole: dict[str, str] = {}  # by pool's cidr, what takes all of it, in words
        self._holders: dict[Pool, str] = {}
        self._excluded = Spans(excluded)
        self._closed = dict(closed)
        self._page_bytes = page_bytes
        self._own: dict[str, list[str]] = {}
        for page in pages.values():
            for claim in page.claims.values():
                self._own.setdefault(claim.uid, []).append(claim.block)
        self._new: dict[str, dict[str, Claim]] = {}  # by range and block
        self._room: dict[str, int] = {}  # bytes left in a page
        self._sets: dict[tuple[str, int], CidrSet] = {}
        self._met: dict[tuple[str, int], set[str]] = {}  # why blocks of a pool could not be had, but for use
        self.cursors: Cursors = dict(cursors)
        self.claimed: list[tuple[str, Pool]] = []
        self.tries: dict[str, int] = {}  # by block that was found: how many were looked at for it

    def blocks_of(self, uid: str) -> Sequence[str]:
        """What is claimed for that uid already."""
        return self._own.get(uid, ())

    def obstacle(self, block: Network) -> Network | None:
        """What, other than claims, lies in that block; None if nothing does."""
        return self._excluded.hit(block) or self._carried.hit(block)

    def obstacles(self, pool: Pool) -> set[str]:
        """Why blocks of that pool could not be had, though they may be free."""
        return self._met.get((pool.cidr, pool.mask), set())

    def whole(self, pool: Pool) -> str:
        """What takes all of a pool by itself, and what to do; "" if nothing does.

        Many Nodes wait for one mistake then: it is to be found by its name.
        """
        network = network_of(pool.cidr)
        if network.prefix == pool.mask:
            return ""  # a pool of one block, which one Node has
        if pool.cidr not in self._whole:
            self._whole[pool.cidr] = self._why_whole(network)
        return self._whole[pool.cidr]

    def holders(self, pool: Pool, addresses: Mapping[str, Sequence[str]]) -> str:
        """Which Nodes' addresses keep blocks of a pool from use, in words; "" if none do."""
        if pool not in self._holders:
            self._holders[pool] = holders(pool, addresses, self._is_taken)
        return self._holders[pool]

    def _is_taken(self, address: Network) -> bool:
        return self._carried.hit(address) is not None or self._claims.hit(address) is not None

    def _why_whole(self, pool: Network) -> str:
        for spans, words in ((self._carried, self._carrier), (self._claims, self._claimant)):
            if (hit := spans.hit(pool)) is not None and hit.prefix <= pool.prefix:
                return f", all of which is in {hit}, {words(hit)}"
        hit = self._excluded.hit(pool)
        is_whole = hit is not None and hit.prefix <= pool.prefix
        return f", all of which is in {hit}, a service network" if is_whole else ""

    def _carrier(self, network: Network) -> str:
        uids = (uid for uid, cidrs in self._carried_by.items() if network in map(readable, cidrs))
        named = sorted(self._names.get(uid) or f"of uid {uid}" for uid in uids)
        return (
            f"the pod CIDR of node {named[0]}: that of a Node cannot be changed, so delete this Node and let "
            "it join anew without it, or add another network for pods"
        )

    def _claimant(self, network: Network) -> str:
        claims = (page.claims.get(str(network)) for page in self._pages.values())
        found = [claim for claim in claims if claim is not None]
        return f"which is claimed for node {found[0].node}" if found else "which was claimed just now"

    def next_free(self, pools: Sequence[Pool], uid: str, node: str) -> tuple[str, Pool] | None:
        """A block that nobody has, out of the first of these pools that has one; not claimed yet."""
        for pool in pools:
            block = self._next_of(pool, claim_size(Claim(block=pool.cidr + _LONGER, uid=uid, node=node)))
            if block is not None:
                return block, pool
        return None

    def put_back(self, unused: Iterable[tuple[str, Pool | None]]) -> None:
        """These were found and are not claimed; None stands for a block that was claimed before."""
        for block, pool in unused:
            if pool is not None:
                self._set_of(pool).release(block)

    def claim(self, block: str, pool: Pool, uid: str, node: str) -> None:
        """Write a block down for that uid."""
        page = page_of(block)
        claim = Claim(block=block, uid=uid, node=node)
        self._new.setdefault(page, {})[block] = claim
        self._room[page] -= claim_size(claim)
        self._claims.add(network_of(block))
        self._own.setdefault(uid, []).append(block)
        self.cursors[pool.cidr, pool.mask] = block
        self.claimed.append((block, pool))

    def changed(self) -> tuple[Page, ...]:
        """The pages that hold new claims, as they should become."""
        return tuple(
            msgspec.structs.replace(page, claims={**page.claims, **self._new[page.range]})
            for page in map(self._page, self._new)
        )

    def _next_of(self, pool: Pool, size: int) -> str | None:
        blocks = self._set_of(pool)
        tries = 0
        while (block := blocks.next_free()) is not None:
            tries += 1 + blocks.passed_over
            network = network_of(block)
            taken = self.obstacle(network) or self._claims.hit(network)
            if taken is not None:
                if taken.prefix < network.prefix:  # of a wide one, all blocks at once
                    blocks.occupy(str(taken))
                continue
            page = page_of(block)
            why = self._closed.get(page_name(page)) or self._full(page, size)
            if not why:
                self.tries[block] = tries
                return block
            self._met.setdefault((pool.cidr, pool.mask), set()).add(why)
            blocks.occupy(page)
        return None

    def _full(self, page: str, size: int) -> str:
        if page not in self._room:
            self._room[page] = self._page_bytes - self._page(page).size
        return "" if self._room[page] >= size else _FULL.format(page)

    def _page(self, page: str) -> Page:
        return self._pages.get(page) or Page(range=page)

    def _set_of(self, pool: Pool) -> CidrSet:
        key = (pool.cidr, pool.mask)
        if key not in self._sets:
            self._sets[key] = CidrSet(pool.cidr, pool.mask)
            if key in self.cursors:
                self._sets[key].reset_cursor(after=self.cursors[key])
        return self._sets[key]
