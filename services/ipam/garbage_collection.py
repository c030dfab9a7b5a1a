"""The result of comparing all pages with all Nodes."""

from collections.abc import Sequence

import msgspec

from services.ipam.pages import Claim
from services.ipam.release_plan import InvalidPodCidr, ReleasePlan


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of all pages together."""

    freed: tuple[Claim, ...] = ()
    dropped: tuple[Claim, ...] = ()
    adopted: tuple[Claim, ...] = ()  # after the first sweep: another allocator runs, or a page was deleted
    unexpected: tuple[
        Claim, ...
    ] = ()  # the adopted claims that another allocator assigned while ipam was running
    invalid: tuple[InvalidPodCidr, ...] = ()
    postponed: tuple[tuple[str, str], ...] = ()  # ranges left to the next sweep, with the reason


def merge_plans(
    plans: Sequence[ReleasePlan], invalid: Sequence[InvalidPodCidr], postponed: Sequence[tuple[str, str]]
) -> SweepResult:
    """Merge the plans of pages that needed no write or were written; `invalid` podCIDRs belong to no page."""
    return SweepResult(
        freed=tuple(claim for page in plans for claim in page.freed),
        dropped=tuple(claim for page in plans for claim in page.dropped),
        adopted=tuple(claim for page in plans for claim in page.adopted),
        unexpected=tuple(claim for page in plans for claim in page.unexpected),
        invalid=(*invalid, *(found for page in plans for found in page.invalid)),
        postponed=tuple(postponed),
    )
