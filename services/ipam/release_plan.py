"""Which claims of a page end, begin to wait for their end, or are taken over from Nodes as they are.

Rests on one order: the page was read, and only then the list of all Nodes begun. A uid that this list lacks
is gone for ever, because a claim is made only for a Node that exists; else it could be too young for it.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from services.ipam.network_set import (
    NetworkSet,
    contains,
    overlaps,
    parse_cached_network,
    parse_foreign_network,
)
from services.ipam.networks import Network
from services.ipam.pages import PAGE_LENGTHS, Claim, Page, claim_size, page_range_of

_JOIN_TOLERANCE: Final = timedelta(
    minutes=1
)  # two API servers' clocks may differ, and both tell whole seconds
_MAX_CIDR_CHARS: Final = 80  # characters of a podCIDR
_MAX_CLOCK_SKEW: Final = timedelta(
    days=1
)  # by so much no clock is wrong for long: else a block would rest for years


class PresentNode(msgspec.Struct, frozen=True):
    """A Node of the list: its name and what podCIDRs it carries, as anybody wrote them."""

    name: str
    pod_cidrs: tuple[str, ...]
    created: datetime | None = None
    is_foreign: bool = False  # another's: nothing is taken over from it, and nothing told of it


class InvalidPodCidr(msgspec.Struct, frozen=True):
    """A podCIDR that cannot stand in a page as its Node's, and why. It is given to nobody all the same."""

    node: str
    uid: str
    cidr: str
    reason: str


class ReleasePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one page."""

    page: Page  # the same as before when nothing changes
    freed: tuple[Claim, ...] = ()  # gone for as long as the quarantine
    dropped: tuple[Claim, ...] = ()  # of Nodes that carry something else
    adopted: tuple[Claim, ...] = ()  # Nodes carry them, and no claim said so: somebody else gave them
    unexpected: tuple[
        Claim, ...
    ] = ()  # those of the adopted whose Nodes joined when the page was there already
    invalid: tuple[InvalidPodCidr, ...] = ()


def plan_release(
    page: Page,
    present: Mapping[str, PresentNode],
    *,
    list_began: datetime,
    list_ended: datetime,
    quarantine: timedelta,
    page_bytes: int,
) -> ReleasePlan:
    """The page after a list of all Nodes that was begun after the page had been read.

    A claim ends when two such lists lack its uid, the second begun a quarantine after the first had ended;
    and when its Node carries podCIDRs that do not touch it, which is for ever. Nothing else ends one: not a
    deletionTimestamp, not another configuration. A time more than a day ahead is a broken clock's: the claim
    is gone since this list.
    """
    kept: dict[str, Claim] = {}
    freed: list[Claim] = []
    dropped: list[Claim] = []
    for block, claim in page.claims.items():
        node = present.get(claim.uid)
        if node is None:
            if claim.gone_since is not None and list_began - claim.gone_since >= quarantine:
                freed.append(claim)
            else:
                since = _gone_since(claim, list_ended)
                kept[block] = msgspec.structs.replace(claim, gone_since=since)
        elif _has_other_pod_cidrs(node, parse_cached_network(block)):
            dropped.append(claim)
        else:
            kept[block] = msgspec.structs.replace(claim, gone_since=None)
    adopted, odd = _adopt(page, kept, present, page_bytes)
    after = {**kept, **{claim.block: claim for claim in adopted}}
    if after != page.claims:
        page = msgspec.structs.replace(page, claims=after)
    late = tuple(claim for claim in adopted if _joined_after_page(present[claim.uid], page))
    return ReleasePlan(
        page=page,
        freed=tuple(freed),
        dropped=tuple(dropped),
        adopted=tuple(adopted),
        unexpected=late,
        invalid=tuple(odd),
    )


def find_invalid_pod_cidrs(present: Mapping[str, PresentNode]) -> tuple[InvalidPodCidr, ...]:
    """Those podCIDRs that can stand in no page: malformed, or wider than a page is."""
    found = []
    for uid, node in _list_own_pod_cidrs(present):
        for cidr in node.pod_cidrs:
            network = parse_foreign_network(cidr)
            if network is None:
                found.append(InvalidPodCidr(node.name, uid, _shorten_cidr(cidr), "it is no network"))
            elif network.prefix < PAGE_LENGTHS[network.family]:
                found.append(
                    InvalidPodCidr(
                        node.name,
                        uid,
                        _shorten_cidr(cidr),
                        f"it is wider than /{PAGE_LENGTHS[network.family]}",
                    )
                )
    return tuple(found)


def list_page_ranges(present: Mapping[str, PresentNode]) -> set[str]:
    """The pages that podCIDRs of these Nodes belong to."""
    networks = [
        parse_foreign_network(cidr) for _, node in _list_own_pod_cidrs(present) for cidr in node.pod_cidrs
    ]
    return {
        page_range_of(str(network))
        for network in networks
        if network is not None and network.prefix >= PAGE_LENGTHS[network.family]
    }


def _list_own_pod_cidrs(present: Mapping[str, PresentNode]) -> list[tuple[str, PresentNode]]:
    return [(uid, node) for uid, node in present.items() if not node.is_foreign]


def _joined_after_page(node: PresentNode, page: Page) -> bool:
    """What it carries is not from before ipam came: we claim first, and the page was there to claim in."""
    return (
        node.created is not None
        and page.created is not None
        and node.created - page.created > _JOIN_TOLERANCE
    )


def _shorten_cidr(cidr: str) -> str:
    """Zeros before a number may be as many as an object holds, and an Event is short."""
    return cidr[:_MAX_CIDR_CHARS]


def _gone_since(claim: Claim, list_ended: datetime) -> datetime:
    since = claim.gone_since
    return list_ended if since is None or since - list_ended > _MAX_CLOCK_SKEW else since


def _has_other_pod_cidrs(node: PresentNode, block: Network) -> bool:
    """For ever: podCIDRs are immutable. What cannot be read is no network to Kubernetes either."""
    carried = [network for cidr in node.pod_cidrs if (network := parse_foreign_network(cidr)) is not None]
    return bool(node.pod_cidrs) and not any(overlaps(network, block) for network in carried)


def _adopt(
    page: Page, kept: Mapping[str, Claim], present: Mapping[str, PresentNode], page_bytes: int
) -> tuple[list[Claim], list[InvalidPodCidr]]:
    whole = parse_cached_network(page.range)
    claims = NetworkSet(kept)
    room = page_bytes - msgspec.structs.replace(page, claims=kept).size
    adopted: list[Claim] = []
    odd: list[InvalidPodCidr] = []
    for uid, node in _list_own_pod_cidrs(present):
        for cidr in node.pod_cidrs:
            network = parse_foreign_network(cidr)
            if network is None or not contains(whole, network):
                continue
            claim = Claim(block=str(network), uid=uid, node=node.name)
            if claim.block in kept and kept[claim.block].uid == uid:
                continue
            other = claims.find_overlap(network)
            if other is not None:
                odd.append(
                    InvalidPodCidr(
                        node.name, uid, _shorten_cidr(cidr), f"{other} is another's, or was claimed for it"
                    )
                )
            elif room >= claim_size(claim):
                room -= claim_size(claim)
                claims.add(network)
                adopted.append(claim)
    return adopted, odd
