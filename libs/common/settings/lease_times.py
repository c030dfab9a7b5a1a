"""The times of a Lease, as client-go judges them."""

from typing import Final

RETRY_JITTER: Final = 1.2  # client-go's: a pause may be a fifth longer than asked for


def validate_lease_times(*, duration: float, renew_deadline: float, retry_period: float) -> list[str]:
    """What does not go together of --leader-elect-..., in seconds, as client-go would refuse it."""
    found = []
    if duration != int(duration):
        found.append(f"--leader-elect-lease-duration is {duration:g} s; a Lease counts in whole seconds")
    if duration <= renew_deadline:
        found.append(
            f"--leader-elect-lease-duration ({duration:g} s) must be longer than "
            f"--leader-elect-renew-deadline ({renew_deadline:g} s), or two could lead at once"
        )
    if renew_deadline <= RETRY_JITTER * retry_period:
        found.append(
            f"--leader-elect-renew-deadline ({renew_deadline:g} s) must be longer than {RETRY_JITTER:g} x "
            f"--leader-elect-retry-period ({retry_period:g} s), or there is no second try"
        )
    return found
