"""Results other than an object: unavailable with a reason, absent, or a remote clock reading. Pure."""

from datetime import datetime
from typing import Final

import msgspec


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """A value that could not be read, with the reason and the missing permission."""

    reason: str
    required_permission: str = ""  # as in `kubectl auth can-i`: "list pods --namespace kube-system"

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


class RemoteClock(msgspec.Struct, frozen=True, kw_only=True):
    """A remote clock reading, bounded by two local timestamps."""

    earliest: datetime  # the earliest possible remote time
    latest: datetime  # the latest possible remote time
    requested_at: datetime
    responded_at: datetime


class AbsentObject(msgspec.Struct, frozen=True):
    """An object that does not exist."""


NOT_QUERIED: Final = Unavailable(reason="not queried")
