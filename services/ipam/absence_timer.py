"""Measures the quarantine of claims whose Node is gone, by the monotonic clock of this process."""

from collections.abc import Collection
from math import inf

from services.ipam.release_plan import ClaimKey


class AbsenceTimer:
    """Remembers in memory since when each list of Nodes has lacked the uid of a claim.

    `gone_since` in a page comes from the clock of any replica, so it ends nothing. After a restart the
    quarantine starts again.
    """

    def __init__(self, quarantine_seconds: float) -> None:
        self._quarantine_seconds = quarantine_seconds
        self._absent_since: dict[ClaimKey, float] = {}

    def observe(self, absent: Collection[ClaimKey], *, list_began: float, list_ended: float) -> set[ClaimKey]:
        """Record the claims without a Node in one list; return those whose quarantine is over.

        It lasts from the end of the first of these lists to the begin of the last.
        """
        known = self._absent_since
        rested = {key for key in absent if list_began - known.get(key, inf) >= self._quarantine_seconds}
        self._absent_since = {key: known.get(key, list_ended) for key in absent}
        return rested

    def seconds_left(self, key: ClaimKey, now: float) -> float:
        """Return the rest of the quarantine of an absent claim; infinite for any other claim."""
        return self._absent_since.get(key, inf) + self._quarantine_seconds - now
