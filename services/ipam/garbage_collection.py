"""What a look at all pages and all Nodes did and found."""

from collections.abc import Sequence

import msgspec

from services.ipam.pages import Claim
from services.ipam.release_plan import InvalidPodCidr, ReleasePlan


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Of all pages together."""

    freed: tuple[Claim, ...] = ()
    dropped: tuple[Claim, ...] = ()
    adopted: tuple[Claim, ...] = ()  # after the first sweep: somebody else allocates, or a page was deleted
    unexpected: tuple[
        Claim, ...
    ] = ()  # of the adopted, those that were given by somebody else while ipam was there
    invalid: tuple[InvalidPodCidr, ...] = ()
    postponed: tuple[tuple[str, str], ...] = ()  # ranges that the next sweep comes to, and why


def merge_plans(
    plans: Sequence[ReleasePlan], invalid: Sequence[InvalidPodCidr], postponed: Sequence[tuple[str, str]]
) -> SweepResult:
    """`released` of the pages that were written or needed no write; `odd` is what belongs to no page."""
    return SweepResult(
        freed=tuple(claim for page in plans for claim in page.freed),
        dropped=tuple(claim for page in plans for claim in page.dropped),
        adopted=tuple(claim for page in plans for claim in page.adopted),
        unexpected=tuple(claim for page in plans for claim in page.unexpected),
        invalid=(*invalid, *(found for page in plans for found in page.invalid)),
        postponed=tuple(postponed),
    )
