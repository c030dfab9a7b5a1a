"""When each object is said again though nothing changed: once per round, evenly spread by its uid."""

import zlib
from collections.abc import Iterable
from typing import Final

_CRC_RANGE: Final = 2**32  # of CRC-32, which is fast and spreads uids evenly


def compute_republish_offset(uid: str) -> float:
    """Where in a round this object has its turn, in [0, 1): the same in every process, for ever."""
    return zlib.crc32(uid.encode(errors="surrogatepass")) / _CRC_RANGE


def select_due(uids: Iterable[str], *, since: float, until: float) -> list[str]:
    """Those whose turn lies in [since, until), both as parts of a round.

    Steps that lead from 0 to 1 without a gap name each object exactly once.
    """
    return [uid for uid in uids if since <= compute_republish_offset(uid) < until]
