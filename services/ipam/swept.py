"""What a look at all pages and all Nodes did and found."""

from collections.abc import Sequence

import msgspec

from services.ipam.pages import Claim
from services.ipam.release import Odd, Released


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """Of all pages together."""

    freed: tuple[Claim, ...] = ()
    dropped: tuple[Claim, ...] = ()
    adopted: tuple[Claim, ...] = ()  # after the first sweep: somebody else allocates, or a page was deleted
    late: tuple[
        Claim, ...
    ] = ()  # of the adopted, those that were given by somebody else while ipam was there
    odd: tuple[Odd, ...] = ()
    postponed: tuple[tuple[str, str], ...] = ()  # ranges that the next sweep comes to, and why


def swept(released: Sequence[Released], odd: Sequence[Odd], postponed: Sequence[tuple[str, str]]) -> Swept:
    """`released` of the pages that were written or needed no write; `odd` is what belongs to no page."""
    return Swept(
        freed=tuple(claim for page in released for claim in page.freed),
        dropped=tuple(claim for page in released for claim in page.dropped),
        adopted=tuple(claim for page in released for claim in page.adopted),
        late=tuple(claim for page in released for claim in page.late),
        odd=(*odd, *(found for page in released for found in page.odd)),
        postponed=tuple(postponed),
    )
