"""The blocks in use while one allocation plan is computed, including those that the plan claims."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from services.ipam.address_reservations import describe_holders, limit_reservations
from services.ipam.cidr_set import CidrSet
from services.ipam.network_set import NetworkSet, parse_cached_network, parse_foreign_network
from services.ipam.networks import Network
from services.ipam.pages import Claim, Page, claim_size, page_name, page_range_of
from services.ipam.pool_selection import Pool

_PAGE_FULL: Final = "the page of claims {} is full"
_PREFIX_PADDING: Final = "x" * 20  # the text of a block may be this much longer than that of its pool

Cursors = dict[tuple[str, int], str]


class Ledger:
    """Used for one plan only."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        *,
        pod_cidrs_by_uid: Mapping[str, tuple[str, ...]],
        node_names_by_uid: Mapping[str, str],
        service_networks: Sequence[str],
        addresses_by_node: Mapping[str, Sequence[str]],
        pools: Iterable[Pool],
        closed_pages: Mapping[str, str],
        cursors: Mapping[tuple[str, int], str],
        page_bytes: int,
    ) -> None:
        self._pages = pages
        self._claims = NetworkSet(block for page in pages.values() for block in page.claims)
        self._assigned_networks = NetworkSet(cidr for cidrs in pod_cidrs_by_uid.values() for cidr in cidrs)
        self._pod_cidrs_by_uid = pod_cidrs_by_uid
        self._node_names_by_uid = node_names_by_uid
        self._blocked_pools: dict[str, str] = {}  # by pool's cidr, what overlaps all of it, in words
        self._holders: dict[Pool, str] = {}
        self._services = NetworkSet(service_networks)
        self._addresses_by_node = addresses_by_node
        addresses = set().union(*addresses_by_node.values())
        self._addresses = NetworkSet(addresses)
        reservations = limit_reservations(addresses_by_node, self._addresses, pools, self._assigned_networks)
        for address in reservations.ignored:
            self._addresses.discard(parse_cached_network(address))
        self._yielding = list(reservations.yielding)
        # number of Nodes that reserve a block by that address
        self._holders_by_address = Counter(
            text for each in self._yielding for texts in each.addresses.values() for text in texts
        )
        self.ignored_addresses = dict(reservations.reports)
        self.has_yielded = False
        self._closed_pages = dict(closed_pages)
        self._page_bytes = page_bytes
        self._blocks_by_uid: dict[str, list[str]] = {}
        for page in pages.values():
            for claim in page.claims.values():
                self._blocks_by_uid.setdefault(claim.uid, []).append(claim.block)
        self._new: dict[str, dict[str, Claim]] = {}  # by range and block
        self._room: dict[str, int] = {}  # bytes left in a page
        self._sets: dict[tuple[str, int], CidrSet] = {}
        # why free blocks of a pool cannot be claimed now
        self._obstacles: dict[tuple[str, int], set[str]] = {}
        self.cursors: Cursors = dict(cursors)
        self.new_blocks: list[tuple[str, Pool]] = []
        self.attempts: dict[str, int] = {}  # by found block, number of candidate blocks examined

    def get_blocks(self, uid: str) -> Sequence[str]:
        """Return the blocks that are claimed for that uid."""
        return self._blocks_by_uid.get(uid, ())

    def find_obstacle(self, block: Network) -> Network | None:
        """Return a network other than a claim that overlaps that block; None if there is none."""
        return (
            self._services.find_overlap(block)
            or self._addresses.find_overlap(block)
            or self._assigned_networks.find_overlap(block)
        )

    def list_obstacles(self, pool: Pool) -> set[str]:
        """Return why blocks of that pool cannot be claimed now, although they may be free."""
        return self._obstacles.get((pool.cidr, pool.mask), set())

    def explain_blocked_pool(self, pool: Pool) -> str:
        """Return the one network that overlaps all of a pool, and what to do; "" if there is none.

        Many Nodes may wait because of it, so the text names it.
        """
        network = parse_cached_network(pool.cidr)
        if network.prefix == pool.mask:
            return ""  # a pool of a single block, which a Node may have
        if pool.cidr not in self._blocked_pools:
            self._blocked_pools[pool.cidr] = self._explain_blocked_pool(network)
        return self._blocked_pools[pool.cidr]

    def describe_holders(self, pool: Pool) -> str:
        """Return in words which Nodes' addresses reserve blocks of a pool; "" if none do."""
        if pool not in self._holders:
            self._holders[pool] = describe_holders(pool, self._addresses_by_node, self._is_taken)
        return self._holders[pool]

    def yield_reservation(self, pools: Sequence[Pool]) -> bool:
        """Let blocks be claimed that one Node reserves in these pools; return whether there were any.

        The Node with most of them comes first: a machine that reports an address in every block.
        """
        found = [each for each in self._yielding if each.pool in pools]
        if not found or any(self.list_obstacles(pool) for pool in pools):
            return False
        reservation = max(found, key=lambda each: (len(each.addresses), each.node))
        self._yielding.remove(reservation)
        blocks = self._get_cidr_set(reservation.pool)
        for first, texts in reservation.addresses.items():
            self._holders_by_address.subtract(texts)
            for text in texts:
                if not self._holders_by_address[text]:
                    self._addresses.discard(parse_cached_network(text))
            blocks.release(str(Network(reservation.pool.family, first, reservation.pool.mask)))
        self.ignored_addresses[reservation.node] = reservation.report
        self.has_yielded = True
        return True

    def _is_taken(self, address: Network) -> bool:
        return (
            self._addresses.find_overlap(address) is None
            or self._assigned_networks.find_overlap(address) is not None
            or self._claims.find_overlap(address) is not None
        )

    def _explain_blocked_pool(self, pool: Network) -> str:
        for spans, words in (
            (self._assigned_networks, self._describe_assigned),
            (self._claims, self._describe_claimed),
        ):
            if (hit := spans.find_overlap(pool)) is not None and hit.prefix <= pool.prefix:
                return f", all of which is in {hit}, {words(hit)}"
        hit = self._services.find_overlap(pool)
        is_whole = hit is not None and hit.prefix <= pool.prefix
        return f", all of which is in {hit}, a service network" if is_whole else ""

    def _describe_assigned(self, network: Network) -> str:
        uids = (
            uid
            for uid, cidrs in self._pod_cidrs_by_uid.items()
            if network in map(parse_foreign_network, cidrs)
        )
        named = sorted(self._node_names_by_uid.get(uid) or f"of uid {uid}" for uid in uids)
        return (
            f"the pod CIDR of node {named[0]}: that of a Node cannot be changed, so delete this Node and let "
            "it join anew without it, or add another network for pods"
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

    def return_unused(self, unused: Iterable[tuple[str, Pool | None]]) -> None:
        """Return found blocks that are not claimed after all; pool None means a block claimed earlier."""
        for block, pool in unused:
            if pool is not None:
                self._get_cidr_set(pool).release(block)

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
        blocks = self._get_cidr_set(pool)
        tries = 0
        while (block := blocks.next_free()) is not None:
            tries += 1 + blocks.skipped_count
            network = parse_cached_network(block)
            taken = self.find_obstacle(network) or self._claims.find_overlap(network)
            if taken is not None:
                if taken.prefix < network.prefix:  # skip all blocks of a wide network at once
                    blocks.occupy(str(taken))
                continue
            page = page_range_of(block)
            why = self._closed_pages.get(page_name(page)) or self._explain_full_page(page, size)
            if not why:
                self.attempts[block] = tries
                return block
            self._obstacles.setdefault((pool.cidr, pool.mask), set()).add(why)
            blocks.occupy(page)
        return None

    def _explain_full_page(self, page: str, size: int) -> str:
        if page not in self._room:
            self._room[page] = self._page_bytes - self._page(page).size
        return "" if self._room[page] >= size else _PAGE_FULL.format(page)

    def _page(self, page: str) -> Page:
        return self._pages.get(page) or Page(range=page)

    def _get_cidr_set(self, pool: Pool) -> CidrSet:
        key = (pool.cidr, pool.mask)
        if key not in self._sets:
            self._sets[key] = CidrSet(pool.cidr, pool.mask)
            if key in self.cursors:
                self._sets[key].reset_cursor(after=self.cursors[key])
        return self._sets[key]
