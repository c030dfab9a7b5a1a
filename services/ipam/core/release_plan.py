"""Plans which claims of a page end, start their quarantine, or are adopted from Nodes.

This requires an order: the page was read before the list of all Nodes began. A claim is made only for an
existing Node. So a uid that this list lacks is gone permanently. In the reverse order, the uid could be
newer than the list.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Final

import msgspec

from libs.common.contract.networks import (
    Network,
    NetworkSet,
    overlaps,
    parse_cached_network,
    parse_foreign_network,
)
from services.ipam.core.pages import (
    PAGE_LENGTHS,
    Claim,
    ClaimKey,
    Page,
    Pages,
    claim_size,
    page_name,
    page_range_of,
)

_JOIN_TOLERANCE: Final = timedelta(
    minutes=1
)  # the clocks of two API servers may differ, and both report whole seconds
_MAX_CIDR_CHARS: Final = 80  # characters of a quoted podCIDR


class PresentNode(msgspec.Struct, frozen=True):
    """A Node of the list: its name and its podCIDRs, in any notation."""

    name: str
    pod_cidrs: tuple[str, ...]
    created: datetime | None = None
    is_foreign: bool = False  # another controller manages it: ipam adopts and reports nothing


class InvalidPodCidr(msgspec.Struct, frozen=True, kw_only=True):
    """A podCIDR that cannot be claimed for its Node, with the reason. ipam still never allocates it."""

    node: str
    uid: str
    cidr: str
    reason: str


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one or more pages."""

    freed: tuple[Claim, ...] = ()  # quarantine is over
    dropped: tuple[Claim, ...] = ()  # their Nodes have other podCIDRs
    # podCIDRs without a claim: after the first sweep, another allocator runs, or a page was deleted
    adopted: tuple[Claim, ...] = ()
    unexpected: tuple[Claim, ...] = ()  # the adopted claims whose Nodes joined after the page was created
    invalid: tuple[InvalidPodCidr, ...] = ()
    postponed: Mapping[str, str] = {}  # ranges left to the next sweep, with the reason

    def __add__(self, other: "SweepResult") -> "SweepResult":
        return SweepResult(
            freed=self.freed + other.freed,
            dropped=self.dropped + other.dropped,
            adopted=self.adopted + other.adopted,
            unexpected=self.unexpected + other.unexpected,
            invalid=self.invalid + other.invalid,
            postponed={**self.postponed, **other.postponed},
        )


class ReleasePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The planned changes of one page."""

    page: Page
    changes_page: bool
    result: SweepResult  # once the page is written


class _CarriedNetwork(msgspec.Struct, frozen=True):
    """A podCIDR of a Node that ipam manages, as text and parsed."""

    uid: str
    node: PresentNode
    cidr: str
    network: Network


class AbsenceTimer:
    """Measures quarantines, by the monotonic clock of this process.

    It remembers in memory since when each list of Nodes has lacked the uid of a claim. `gone_since` in a page
    comes from the clock of any replica, so it ends nothing. After a restart the quarantine starts again.
    """

    def __init__(self, quarantine_seconds: float) -> None:
        self._quarantine_seconds = quarantine_seconds
        self._absent_since: dict[ClaimKey, float] = {}
        self._rested: set[ClaimKey] = set()

    def observe(self, absent: Collection[ClaimKey], *, list_began: float, list_ended: float) -> set[ClaimKey]:
        """Record the claims without a Node in one list; return those whose quarantine is over.

        It lasts from the end of the first of these lists to the begin of the last.
        """
        known = self._absent_since
        self._rested = {key for key in absent if list_began - known.get(key, inf) >= self._quarantine_seconds}
        self._absent_since = {key: known.get(key, list_ended) for key in absent}
        return self._rested

    def seconds_left(self, now: float) -> float:
        """Return the time until the next quarantine ends; infinite if there is none."""
        since = (at for key, at in self._absent_since.items() if key not in self._rested)
        return min(since, default=inf) + self._quarantine_seconds - now


def plan_sweep(
    pages: Pages,
    present: Mapping[str, PresentNode],
    *,
    rested: Collection[ClaimKey],
    now: datetime,
    page_bytes: int,
) -> tuple[list[ReleasePlan], tuple[InvalidPodCidr, ...]]:
    """Plan each readable page, and the new pages for podCIDRs without a claim, by a list of all Nodes.

    The list began after the pages were read. Returns the podCIDRs that no page can contain, too: malformed,
    or wider than a page.
    """
    carried, invalid = _sort_by_page(present)
    closed = pages.explain_closed()
    ranges = {*pages.by_range, *(found for found in carried if page_name(found) not in closed)}
    plans = [
        _plan_release(
            pages.by_range.get(found) or Page(range=found),
            present,
            carried.get(found, ()),
            rested=rested,
            now=now,
            page_bytes=page_bytes,
        )
        for found in sorted(ranges)
    ]
    return plans, tuple(invalid)


def _sort_by_page(
    present: Mapping[str, PresentNode],
) -> tuple[dict[str, list[_CarriedNetwork]], list[InvalidPodCidr]]:
    """Return the podCIDRs by the range of their page, and those that no page can contain."""
    carried: dict[str, list[_CarriedNetwork]] = {}
    invalid = []
    own = (
        (uid, node, cidr) for uid, node in present.items() if not node.is_foreign for cidr in node.pod_cidrs
    )
    for uid, node, cidr in own:
        network = parse_foreign_network(cidr)
        if network is None:
            invalid.append(_make_invalid(node, uid, cidr, "it is no network"))
        elif network.prefix < PAGE_LENGTHS[network.family]:
            reason = f"it is wider than /{PAGE_LENGTHS[network.family]}"
            invalid.append(_make_invalid(node, uid, cidr, reason))
        else:
            found = _CarriedNetwork(uid, node, cidr, network)
            carried.setdefault(page_range_of(str(network)), []).append(found)
    return carried, invalid


def _make_invalid(node: PresentNode, uid: str, cidr: str, reason: str) -> InvalidPodCidr:
    """Describe a podCIDR; the text is truncated, as it may contain any number of leading zeros."""
    return InvalidPodCidr(node=node.name, uid=uid, cidr=cidr[:_MAX_CIDR_CHARS], reason=reason)


def _plan_release(
    page: Page,
    present: Mapping[str, PresentNode],
    carried: Sequence[_CarriedNetwork],
    *,
    rested: Collection[ClaimKey],
    now: datetime,
    page_bytes: int,
) -> ReleasePlan:
    """Plan one page.

    A claim ends in two cases. Its uid is not present, and it is in `rested`: this process missed the uid for
    a whole quarantine (`AbsenceTimer`). Or its Node has podCIDRs that do not overlap it, which are immutable.
    Nothing else ends a claim, such as a deletionTimestamp or a new configuration. `gone_since` ends none: the
    clock of another replica wrote it.
    """
    kept: dict[str, Claim] = {}
    freed: list[Claim] = []
    dropped: list[Claim] = []
    for block, claim in page.claims.items():
        node = present.get(claim.uid)
        if node is None:
            if (block, claim.uid) in rested:
                freed.append(claim)
            else:
                kept[block] = msgspec.structs.replace(claim, gone_since=claim.gone_since or now)
        elif _has_other_pod_cidrs(node, parse_cached_network(block)):
            dropped.append(claim)
        else:
            kept[block] = msgspec.structs.replace(claim, gone_since=None)
    adopted, invalid = _adopt(page, kept, carried, page_bytes)
    after = {**kept, **{claim.block: claim for claim in adopted}}
    late = tuple(claim for claim in adopted if _joined_after_page(present[claim.uid], page))
    return ReleasePlan(
        page=msgspec.structs.replace(page, claims=after),
        changes_page=after != page.claims,
        result=SweepResult(
            freed=tuple(freed),
            dropped=tuple(dropped),
            adopted=tuple(adopted),
            unexpected=late,
            invalid=tuple(invalid),
        ),
    )


def _joined_after_page(node: PresentNode, page: Page) -> bool:
    """Whether the Node joined after the page: ipam, which claims first, did not assign its podCIDRs."""
    return (
        node.created is not None
        and page.created is not None
        and node.created - page.created > _JOIN_TOLERANCE
    )


def _has_other_pod_cidrs(node: PresentNode, block: Network) -> bool:
    """Whether the Node has podCIDRs that do not overlap the block; permanent, since podCIDRs are immutable.

    A malformed podCIDR is no network to Kubernetes either.
    """
    carried = [network for cidr in node.pod_cidrs if (network := parse_foreign_network(cidr)) is not None]
    return bool(node.pod_cidrs) and not any(overlaps(network, block) for network in carried)


def _adopt(
    page: Page, kept: Mapping[str, Claim], carried: Sequence[_CarriedNetwork], page_bytes: int
) -> tuple[list[Claim], list[InvalidPodCidr]]:
    claims = NetworkSet(kept)
    room = page_bytes - msgspec.structs.replace(page, claims=kept).size
    adopted: list[Claim] = []
    invalid: list[InvalidPodCidr] = []
    for each in carried:
        claim = Claim(block=str(each.network), uid=each.uid, node=each.node.name)
        if claim.block in kept and kept[claim.block].uid == each.uid:
            continue
        other = claims.find_overlap(each.network)
        if other is not None:
            reason = f"{other} is another's, or was claimed for it"
            invalid.append(_make_invalid(each.node, each.uid, each.cidr, reason))
        elif room >= claim_size(claim):
            room -= claim_size(claim)
            claims.add(each.network)
            adopted.append(claim)
    return adopted, invalid
