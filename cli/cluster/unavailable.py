"""Results other than an object: unavailable with a reason, or a remote clock reading. Pure."""

from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")
CLOCK_TOLERANCE: Final = timedelta(seconds=5)  # an HTTP date has whole seconds, and a response takes time


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """A value that could not be read, with the reason and the missing permission."""

    reason: str
    required_permission: str = ""  # as in `kubectl auth can-i`: "list pods --namespace kube-system"

    @property
    def explanation(self) -> str:
        """Return the missing permission, or else the reason."""
        right = self.required_permission
        return f"this requires permission to {right}" if right else self.reason

    @property
    def fix(self) -> str:
        """Return what would make the value known."""
        if self.required_permission:
            return "use credentials with this permission, or grant it"
        return "correct this, then check again"

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the command that shows whether the caller has the permission."""
        return (f"kubectl auth can-i {self.required_permission}",) if self.required_permission else ()


def list_known(part: tuple[T, ...] | Unavailable) -> tuple[T, ...]:
    """Return the objects; none if they could not be read."""
    return () if isinstance(part, Unavailable) else part


class RemoteClock(msgspec.Struct, frozen=True, kw_only=True):
    """A remote clock reading, bounded by two local timestamps."""

    earliest: datetime  # the earliest possible remote time
    latest: datetime  # the latest possible remote time
    requested_at: datetime
    responded_at: datetime

    @property
    def bounds(self) -> tuple[timedelta, timedelta]:
        """Return how far the remote clock is ahead of the local one: minimum and maximum."""
        return self.earliest - self.responded_at, self.latest - self.requested_at

    @property
    def offset(self) -> timedelta:
        """Return how far the remote clock is ahead at least; zero within the tolerance."""
        return excess_offset(self.bounds)


def excess_offset(bounds: tuple[timedelta, timedelta]) -> timedelta:
    """Return the smallest possible offset if it exceeds the tolerance, else zero."""
    low, high = bounds
    if low > CLOCK_TOLERANCE:
        return low
    return high if high < -CLOCK_TOLERANCE else timedelta()


NOT_QUERIED: Final = Unavailable(reason="not queried")
