"""The offset in each resync period at which an unchanged object is published again, spread by its uid."""

import zlib
from collections.abc import Iterable
from typing import Final

_CRC_RANGE: Final = 2**32  # CRC-32 is fast and spreads uids evenly


def compute_republish_offset(uid: str) -> float:
    """Return the object's offset in a resync period, in [0, 1): constant, and the same in every process."""
    return zlib.crc32(uid.encode(errors="surrogatepass")) / _CRC_RANGE


def select_due(uids: Iterable[str], *, since: float, until: float) -> list[str]:
    """Return the uids whose offset lies in [since, until), both fractions of a resync period.

    Consecutive steps from 0 to 1 return each object exactly once.
    """
    return [uid for uid in uids if since <= compute_republish_offset(uid) < until]
