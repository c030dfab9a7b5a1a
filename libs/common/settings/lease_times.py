"""Validates the times of a Lease by client-go's rules."""

from typing import Final

RETRY_JITTER: Final = 1.2  # client-go's: a retry may be a fifth later than configured


def validate_lease_times(*, duration: float, renew_deadline: float, retry_period: float) -> list[str]:
    """Return the problems of the --leader-elect-... times, which are in seconds."""
    found = []
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
