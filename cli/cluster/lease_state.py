"""The holder of a Lease and its last renewal. Pure."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.kube.lease import LeaseSpec

_DEFAULT_SECONDS: Final = 15  # the duration of a Lease that names none


class LeaseState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a Lease; `renewed_at` is by the clock of its holder, None if it is missing."""

    holder: str = ""  # "" = no holder
    renewed_at: datetime | None = None
    duration_seconds: int = _DEFAULT_SECONDS
    lease_name: str = ""  # namespace/name, unless it is the default

    def seconds_since_renewal(self, at: datetime) -> float | None:
        """Return the age of the last renewal."""
        return (at - self.renewed_at).total_seconds() if self.renewed_at else None

    def is_held(self, at: datetime, *, slack: timedelta = timedelta()) -> bool:
        """Whether a holder renewed the Lease within its duration plus some slack for clock differences."""
        age = self.seconds_since_renewal(at)
        return bool(self.holder) and age is not None and age <= self.duration_seconds + slack.total_seconds()

    def why_not_held(self, at: datetime) -> str:
        """Return why the Lease has no holder at this time, for a sentence about it; "" if it has one."""
        if self.is_held(at):
            return ""
        age = self.seconds_since_renewal(at)
        if not self.holder:
            why = "has no holder"
        elif age is None:
            why = f"of {self.holder} has no renew time"
        else:
            why = f"was last renewed {age:.0f} s ago by {self.holder}, for {self.duration_seconds} s"
        return f"{self.lease_name} {why}".lstrip()


def read_lease_state(spec: LeaseSpec, lease_name: str = "") -> LeaseState:
    """Return the state of a Lease; the API server accepts only valid times, and returns them in UTC."""
    return LeaseState(
        holder=spec.holder_identity or "",
        renewed_at=datetime.fromisoformat(spec.renew_time) if spec.renew_time else None,
        duration_seconds=spec.lease_duration_seconds or _DEFAULT_SECONDS,
        lease_name=lease_name,
    )
