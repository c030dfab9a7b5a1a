"""The blocks in use while one allocation plan is computed, including those that the plan claims."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from libs.common.contract.networks import (
    Network,
    NetworkSet,
    find_free_block,
    parse_cached_network,
    parse_foreign_network,
)
from services.ipam.core.address_reservations import Reservations
from services.ipam.core.pages import Claim, Page, claim_size, page_name, page_range_of
from services.ipam.core.pools import Pool

_PAGE_FULL: Final = "the page of claims {} is full"
_PREFIX_PADDING: Final = "x" * 20  # the text of a block may be this much longer than that of its pool

Cursors = Mapping[tuple[str, int], str]  # (pool's cidr, mask) -> last block allocated from it


class Exclusions(msgspec.Struct, frozen=True, kw_only=True):
    """Networks that no block may overlap, in any notation; invalid texts are ignored."""

    networks: tuple[str, ...] = ()  # service CIDRs
    # by Node name, its addresses and gateways, the most important ones first
    addresses_by_node: Mapping[str, tuple[str, ...]] = {}
    pod_cidrs_by_uid: Mapping[str, tuple[str, ...]] = {}  # uid -> podCIDRs of that Node
    node_names_by_uid: Mapping[str, str] = {}  # uid -> name of that Node, for messages


class Ledger:
    """Used for one plan only."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        exclusions: Exclusions,
        *,
        closed_pages: Mapping[str, str],
        cursors: Cursors,
        page_bytes: int,
    ) -> None:
        self._pages = pages
        self._exclusions = exclusions
        self._claims = NetworkSet(block for page in pages.values() for block in page.claims)
        self._assigned_networks = NetworkSet(
            cidr for cidrs in exclusions.pod_cidrs_by_uid.values() for cidr in cidrs
        )
        self._services = NetworkSet(exclusions.networks)
        self._addresses = NetworkSet(set().union(*exclusions.addresses_by_node.values()))
        self._reservations: dict[Pool, Reservations] = {}
        self._closed_pages = closed_pages
        self._page_bytes = page_bytes
        self._blocks_by_uid: dict[str, list[str]] = {}
        for page in pages.values():
            for claim in page.claims.values():
                self._blocks_by_uid.setdefault(claim.uid, []).append(claim.block)
        self._new: dict[str, dict[str, Claim]] = {}  # by range and block
        self._room: dict[str, int] = {}  # bytes left in a page
        self._exhausted: set[Pool] = set()
        self._found: dict[Pool, Network] = {}  # the last block that was free, claimed since or not
        self._takers: dict[Pool, str] = {}
        # why free blocks of a pool cannot be claimed now
        self._obstacles: dict[Pool, set[str]] = {}
        self.cursors = dict(cursors)
        self.new_blocks: list[tuple[str, Pool]] = []
        self.tries: dict[str, int] = {}  # by claimed block, number of candidate blocks examined

    def get_blocks(self, uid: str) -> Sequence[str]:
        """Return the blocks that are claimed for that uid."""
        return self._blocks_by_uid.get(uid, ())

    def find_obstacle(self, block: Network, pool: Pool) -> Network | None:
        """Return a network other than a claim that overlaps that block of a pool; None if there is none."""
        return (
            self._services.find_overlap(block)
            or self._assigned_networks.find_overlap(block)
            or self._get_reservations(pool).find_overlap(block)
        )

    def list_obstacles(self, pool: Pool) -> set[str]:
        """Return why blocks of that pool cannot be claimed now, although they may be free."""
        return self._obstacles.get(pool, set())

    def describe_takers(self, pool: Pool) -> str:
        """Return in words what has the blocks of a pool: one network that overlaps all of it, or else Nodes.

        Many Nodes may wait because of it, so the text names it. "" if claims alone have them.
        """
        if pool not in self._takers:
            holders = self._get_reservations(pool).describe_holders(
                lambda block: self._claims.find_overlap(block) is not None
            )
            self._takers[pool] = self._describe_whole(pool) or holders
        return self._takers[pool]

    def _describe_whole(self, pool: Pool) -> str:
        network = parse_cached_network(pool.cidr)
        if network.prefix == pool.mask:
            return ""  # a pool of a single block, which a Node may have
        for networks, describe in (
            (self._assigned_networks, self._describe_assigned),
            (self._claims, self._describe_claimed),
            (self._services, lambda _: "a service network"),
        ):
            hit = networks.find_overlap(network)
            if hit is not None and hit.prefix <= network.prefix:
                return f", all of which is in {hit}, {describe(hit)}"
        return ""

    def yield_reservation(self, pools: Sequence[Pool]) -> bool:
        """Let blocks be claimed that one Node reserves in these pools; return whether there were any."""
        pool = max(pools, key=lambda pool: self._get_reservations(pool).next_to_yield)
        reservations = self._get_reservations(pool)
        if not reservations.next_to_yield[0] or any(self.list_obstacles(pool) for pool in pools):
            return False
        reservations.yield_next()
        self._exhausted.discard(pool)
        return True

    @property
    def ignored_addresses(self) -> Mapping[str, str]:
        """By Node, which of its many addresses are ignored, in words."""
        return {name: report for each in self._reservations.values() for name, report in each.reports.items()}

    def _get_reservations(self, pool: Pool) -> Reservations:
        if pool not in self._reservations:
            network = parse_cached_network(pool.cidr)
            contested = self._addresses.find_blocks(network, pool.mask)
            contested -= self._assigned_networks.find_blocks(network, pool.mask)
            contested = {
                first
                for first in contested
                if self._assigned_networks.find_overlap(Network(pool.family, first, pool.mask)) is None
            }
            self._reservations[pool] = Reservations(pool, self._exclusions.addresses_by_node, contested)
        return self._reservations[pool]

    def _describe_assigned(self, network: Network) -> str:
        uids = (
            uid
            for uid, cidrs in self._exclusions.pod_cidrs_by_uid.items()
            if network in map(parse_foreign_network, cidrs)
        )
        named = sorted(self._exclusions.node_names_by_uid.get(uid) or f"of uid {uid}" for uid in uids)
        return (
            f"the pod CIDR of node {named[0]}: Kubernetes does not let it change, so delete this Node and "
            "let its kubelet register without it, or add another network for pods"
        )

    def _describe_claimed(self, network: Network) -> str:
        claims = (page.claims.get(str(network)) for page in self._pages.values())
        found = [claim for claim in claims if claim is not None]
        return f"which is claimed for node {found[0].node}" if found else "which was claimed a moment ago"

    def next_free(self, pools: Sequence[Pool], uid: str, node: str) -> tuple[str, Pool] | None:
        """Return a free block of the first of these pools that has one, without claiming it."""
        for pool in pools:
            block = self._next_in_pool(
                pool, claim_size(Claim(block=pool.cidr + _PREFIX_PADDING, uid=uid, node=node))
            )
            if block is not None:
                return block, pool
        return None

    def claim(self, block: str, pool: Pool, uid: str, node: str) -> None:
        """Claim a found block for that uid."""
        page = page_range_of(block)
        claim = Claim(block=block, uid=uid, node=node)
        self._new.setdefault(page, {})[block] = claim
        self._room[page] -= claim_size(claim)
        self._claims.add(parse_cached_network(block))
        self._blocks_by_uid.setdefault(uid, []).append(block)
        self.cursors[pool.cidr, pool.mask] = block
        self.new_blocks.append((block, pool))

    def build_changed_pages(self) -> tuple[Page, ...]:
        """Return the pages with new claims, as they should be written."""
        return tuple(
            msgspec.structs.replace(page, claims={**page.claims, **self._new[page.range]})
            for page in map(self._page, self._new)
        )

    def _next_in_pool(self, pool: Pool, size: int) -> str | None:
        if pool in self._exhausted:
            return None

        def find_taken(block: Network) -> Network | None:
            taken = self.find_obstacle(block, pool) or self._claims.find_overlap(block)
            if taken is not None:
                return taken
            page = page_range_of(str(block))
            why = self._closed_pages.get(page_name(page)) or self._explain_full_page(page, size)
            if why:
                self._obstacles.setdefault(pool, set()).add(why)
            return parse_cached_network(page) if why else None

        # Each plan searches from where the last search ended: a Node that lacks a block of the other family
        # claims none here, and thousands of such Nodes would search the same claimed blocks again.
        found = self._found.get(pool)
        if found is None or find_taken(found) is not None:
            last = self.cursors.get((pool.cidr, pool.mask))
            after = found or (parse_cached_network(last) if last else None)
            search = find_free_block(
                parse_cached_network(pool.cidr), pool.mask, after=after, find_taken=find_taken
            )
            if search is None:
                self._exhausted.add(pool)
                return None
            found, tries = search
            self._found[pool], self.tries[str(found)] = found, tries
        return str(found)

    def _explain_full_page(self, page: str, size: int) -> str:
        if page not in self._room:
            self._room[page] = self._page_bytes - self._page(page).size
        return "" if self._room[page] >= size else _PAGE_FULL.format(page)

    def _page(self, page: str) -> Page:
        return self._pages.get(page) or Page(range=page)
