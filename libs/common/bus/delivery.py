"""What follows from an error: handlers return or raise, and this one table decides; they never ack."""

from typing import Final

import msgspec

RETRY_FIRST_SECONDS: Final = 0.5
RETRY_CAP_SECONDS: Final = 60.0
# An unforeseen exception this often in a row is a defect, not the world's mood.
MAX_UNCLASSIFIED_ATTEMPTS: Final = 10


class TemporaryError(Exception):
    """The world's fault: retried for ever with capped, jittered back-off.

    `reason` is a short stable word group ("Kubernetes refused the patch twice"): attempts are counted per
    reason. `retry_after_seconds` is what the other side asked for (429 Retry-After), None if it did not.
    """

    def __init__(self, reason: str, detail: str = "", *, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class RequeueAfter(TemporaryError):
    """Nothing failed: what the message needs is not there yet. It comes again after that many seconds.

    Whoever raises it hears when that changes and acts at once; the delivery is what nothing can lose.
    """

    def __init__(self, reason: str, detail: str = "", *, retry_after_seconds: float) -> None:
        super().__init__(reason, detail, retry_after_seconds=retry_after_seconds)


class PermanentError(Exception):
    """The message's own fault: no retry can help, it is put aside with the reason."""


class Ack(msgspec.Struct, frozen=True):
    """Handled; forget it."""


class Nak(msgspec.Struct, frozen=True):
    """To be delivered again after that many seconds."""

    delay_seconds: float
    reason: str


class Reject(msgspec.Struct, frozen=True):
    """To be published as a DeadLetter with this reason, then acknowledged."""

    reason: str


Disposition = Ack | Nak | Reject


def classify_error(error: Exception | None, attempt: int, jitter: float) -> Disposition:
    """What becomes of a message whose handler ended like this.

    `attempt` counts consecutive failures of the same (kind, name, reason), from 1; `jitter` is uniform in
    [0, 1). Only permanent errors and a long row of unforeseen exceptions end as a dead letter.
    """
    match error:
        case None:
            return Ack()
        case RequeueAfter():
            return Nak(clamp_retry_after(error.retry_after_seconds) or RETRY_CAP_SECONDS, str(error))
        case TemporaryError():
            asked = clamp_retry_after(error.retry_after_seconds)
            return Nak(max(backoff_seconds(attempt, jitter), asked), str(error))
        case PermanentError():
            return Reject(str(error))
        case _ if attempt >= MAX_UNCLASSIFIED_ATTEMPTS:
            return Reject(f"{type(error).__name__}: {error} ({attempt} times in a row)")
        case _:
            return Nak(backoff_seconds(attempt, jitter), f"{type(error).__name__}: {error}")


def clamp_retry_after(requested_seconds: float | None) -> float:
    """The wait that a server or proxy asks for, within [0, 60] s; 0 for None and NaN.

    A Retry-After of an hour must not stop the work for an hour.
    """
    if requested_seconds is None or not requested_seconds > 0:
        return 0.0
    return min(requested_seconds, RETRY_CAP_SECONDS)


def backoff_seconds(attempt: int, jitter: float) -> float:
    """0.5 s doubling to 60 s, of which a random half is waited: within [half, whole] of the step."""
    step = exponential_step(attempt, first=RETRY_FIRST_SECONDS, cap=RETRY_CAP_SECONDS)
    return step * (0.5 + 0.5 * jitter)


def exponential_step(attempt: int, *, first: float, cap: float) -> float:
    """The step of a back-off: `first` for attempt 1, twice as much each time, never beyond the cap."""
    return float(min(cap, first * 2.0 ** min(attempt - 1, 16)))  # an exponent without bound overflows


def failure_reason(error: Exception) -> str:
    """The stable key under which consecutive failures are counted."""
    return error.reason if isinstance(error, TemporaryError) else type(error).__name__
