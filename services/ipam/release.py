"""Which claims of a page end, begin to wait for their end, or are taken over from Nodes as they are.

Rests on one order: the page was read, and only then the list of all Nodes begun. A uid that this list lacks
is gone for ever, because a claim is made only for a Node that exists; else it could be too young for it.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from services.ipam.networks import Network
from services.ipam.pages import PAGE_LENGTHS, Claim, Page, claim_size, page_of
from services.ipam.spans import Spans, contains, network_of, overlap, readable

_YOUNGER: Final = timedelta(minutes=1)  # two API servers' clocks may differ, and both tell whole seconds
_SHOWN: Final = 80  # characters of a podCIDR
_AHEAD: Final = timedelta(days=1)  # by so much no clock is wrong for long: else a block would rest for years


class Present(msgspec.Struct, frozen=True):
    """A Node of the list: its name and what podCIDRs it carries, as anybody wrote them."""

    name: str
    pod_cidrs: tuple[str, ...]
    created: datetime | None = None
    is_foreign: bool = False  # another's: nothing is taken over from it, and nothing told of it


class Odd(msgspec.Struct, frozen=True):
    """A podCIDR that cannot stand in a page as its Node's, and why. It is given to nobody all the same."""

    node: str
    uid: str
    cidr: str
    reason: str


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one page."""

    page: Page  # the same as before when nothing changes
    freed: tuple[Claim, ...] = ()  # gone for as long as the quarantine
    dropped: tuple[Claim, ...] = ()  # of Nodes that carry something else
    adopted: tuple[Claim, ...] = ()  # Nodes carry them, and no claim said so: somebody else gave them
    late: tuple[Claim, ...] = ()  # those of the adopted whose Nodes joined when the page was there already
    odd: tuple[Odd, ...] = ()


def release_plan(
    page: Page,
    present: Mapping[str, Present],
    *,
    list_began: datetime,
    list_ended: datetime,
    quarantine: timedelta,
    page_bytes: int,
) -> Released:
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
        elif _carries_another(node, network_of(block)):
            dropped.append(claim)
        else:
            kept[block] = msgspec.structs.replace(claim, gone_since=None)
    adopted, odd = _adopted(page, kept, present, page_bytes)
    after = {**kept, **{claim.block: claim for claim in adopted}}
    if after != page.claims:
        page = msgspec.structs.replace(page, claims=after)
    late = tuple(claim for claim in adopted if _is_younger(present[claim.uid], page))
    return Released(
        page=page,
        freed=tuple(freed),
        dropped=tuple(dropped),
        adopted=tuple(adopted),
        late=late,
        odd=tuple(odd),
    )


def odd_in_themselves(present: Mapping[str, Present]) -> tuple[Odd, ...]:
    """Those podCIDRs that can stand in no page: malformed, or wider than a page is."""
    found = []
    for uid, node in _ours(present):
        for cidr in node.pod_cidrs:
            network = readable(cidr)
            if network is None:
                found.append(Odd(node.name, uid, _shown(cidr), "it is no network"))
            elif network.prefix < PAGE_LENGTHS[network.family]:
                found.append(
                    Odd(node.name, uid, _shown(cidr), f"it is wider than /{PAGE_LENGTHS[network.family]}")
                )
    return tuple(found)


def ranges_of(present: Mapping[str, Present]) -> set[str]:
    """The pages that podCIDRs of these Nodes belong to."""
    networks = [readable(cidr) for _, node in _ours(present) for cidr in node.pod_cidrs]
    return {
        page_of(str(network))
        for network in networks
        if network is not None and network.prefix >= PAGE_LENGTHS[network.family]
    }


def _ours(present: Mapping[str, Present]) -> list[tuple[str, Present]]:
    return [(uid, node) for uid, node in present.items() if not node.is_foreign]


def _is_younger(node: Present, page: Page) -> bool:
    """What it carries is not from before ipam came: we claim first, and the page was there to claim in."""
    return node.created is not None and page.created is not None and node.created - page.created > _YOUNGER


def _shown(cidr: str) -> str:
    """Zeros before a number may be as many as an object holds, and an Event is short."""
    return cidr[:_SHOWN]


def _gone_since(claim: Claim, list_ended: datetime) -> datetime:
    since = claim.gone_since
    return list_ended if since is None or since - list_ended > _AHEAD else since


def _carries_another(node: Present, block: Network) -> bool:
    """For ever: podCIDRs are immutable. What cannot be read is no network to Kubernetes either."""
    carried = [network for cidr in node.pod_cidrs if (network := readable(cidr)) is not None]
    return bool(node.pod_cidrs) and not any(overlap(network, block) for network in carried)


def _adopted(
    page: Page, kept: Mapping[str, Claim], present: Mapping[str, Present], page_bytes: int
) -> tuple[list[Claim], list[Odd]]:
    whole = network_of(page.range)
    claims = Spans(kept)
    room = page_bytes - msgspec.structs.replace(page, claims=kept).size
    adopted: list[Claim] = []
    odd: list[Odd] = []
    for uid, node in _ours(present):
        for cidr in node.pod_cidrs:
            network = readable(cidr)
            if network is None or not contains(whole, network):
                continue
            claim = Claim(block=str(network), uid=uid, node=node.name)
            if claim.block in kept and kept[claim.block].uid == uid:
                continue
            other = claims.hit(network)
            if other is not None:
                odd.append(Odd(node.name, uid, _shown(cidr), f"{other} is another's, or was claimed for it"))
            elif room >= claim_size(claim):
                room -= claim_size(claim)
                claims.add(network)
                adopted.append(claim)
    return adopted, odd
