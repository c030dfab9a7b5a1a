"""The settings of a leader election by Lease, and their validation by client-go's rules."""

from typing import Final, Protocol

RETRY_JITTER: Final = 1.2  # client-go's: a retry may be a fifth later than configured


class LeaseSettings(Protocol):
    """The part of the settings that all services with a Lease have in common."""

    @property
    def lease_name(self) -> str: ...
    @property
    def lease_namespace(self) -> str: ...
    @property
    def lease_duration_seconds(self) -> float: ...
    @property
    def renew_deadline_seconds(self) -> float: ...
    @property
    def retry_period_seconds(self) -> float: ...


def validate_lease_times(settings: LeaseSettings) -> list[str]:
    """Return the problems of the --leader-elect-... times."""
    duration, retry_period = settings.lease_duration_seconds, settings.retry_period_seconds
    renew_deadline, found = settings.renew_deadline_seconds, []
    if duration != int(duration):
        found.append(f"--leader-elect-lease-duration is {duration:g} s; it must be in whole seconds")
    if duration <= renew_deadline:
        found.append(
            f"--leader-elect-lease-duration ({duration:g} s) must be longer than "
            f"--leader-elect-renew-deadline ({renew_deadline:g} s); otherwise two could lead at once"
        )
    if renew_deadline <= RETRY_JITTER * retry_period:
        found.append(
            f"--leader-elect-renew-deadline ({renew_deadline:g} s) must be longer than {RETRY_JITTER:g} x "
            f"--leader-elect-retry-period ({retry_period:g} s); otherwise there is no second attempt"
        )
    return found
