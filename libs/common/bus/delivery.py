"""The disposition for each result of a handler. Handlers return or raise; they never acknowledge."""

from typing import Final

import msgspec

RETRY_FIRST_SECONDS: Final = 0.5
RETRY_CAP_SECONDS: Final = 60.0  # of messages, and of every backoff_seconds() without a cap of its own
# So many unexpected exceptions in a row are a defect, not a temporary failure of the environment.
MAX_UNCLASSIFIED_ATTEMPTS: Final = 10


class TemporaryError(Exception):
    """The environment failed: the message is retried without a limit, with capped, jittered backoff.

    `reason` is a short constant phrase ("Kubernetes refused the patch twice"): attempts are counted per
    reason. `retry_after_seconds` is the wait that the server requested (429 Retry-After), None if it
    requested none.
    """

    def __init__(self, reason: str, detail: str = "", *, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds


class RequeueAfter(TemporaryError):
    """A handler's request to deliver the message again after `retry_after_seconds`, without a failure.

    The handler waits for missing data. It also watches for that data and acts at once when it arrives. The
    redelivery ensures that the message is not lost.
    """

    def __init__(self, reason: str, detail: str = "", *, retry_after_seconds: float) -> None:
        super().__init__(reason, detail, retry_after_seconds=retry_after_seconds)


class PermanentError(Exception):
    """The message is wrong: no retry can help, so it is published as a dead letter with the reason."""


class Ack(msgspec.Struct, frozen=True):
    """The message was handled: acknowledge it."""


class Nak(msgspec.Struct, frozen=True):
    """Deliver the message again after `delay_seconds`."""

    delay_seconds: float
    reason: str


class Reject(msgspec.Struct, frozen=True):
    """The message became a DeadLetter with this reason: acknowledge it."""

    reason: str


Disposition = Ack | Nak | Reject


def classify_error(error: Exception | None, attempt: int, jitter: float) -> Disposition:
    """Return the disposition for a message whose handler raised `error`, or returned (None).

    `attempt` counts consecutive failures of the same (kind, name, reason), from 1. `jitter` is uniform in [0,
    1). Only permanent errors and MAX_UNCLASSIFIED_ATTEMPTS unexpected exceptions in a row lead to a dead
    letter.
    """
    match error:
        case None:
            return Ack()
        case RequeueAfter():
            return Nak(clamp_retry_after(error.retry_after_seconds) or RETRY_CAP_SECONDS, str(error))
        case TemporaryError():
            requested = clamp_retry_after(error.retry_after_seconds)
            return Nak(max(backoff_seconds(attempt, jitter), requested), str(error))
        case PermanentError():
            return Reject(str(error))
        case _ if attempt >= MAX_UNCLASSIFIED_ATTEMPTS:
            return Reject(f"{type(error).__name__}: {error} ({attempt} times in a row)")
        case _:
            return Nak(backoff_seconds(attempt, jitter), f"{type(error).__name__}: {error}")


def clamp_retry_after(requested_seconds: float | None) -> float:
    """Return the wait that a server or proxy requests, limited to [0, 60] s; 0 for None and NaN.

    A Retry-After of an hour must not stop the work for an hour.
    """
    if requested_seconds is None or not requested_seconds > 0:
        return 0.0
    return min(requested_seconds, RETRY_CAP_SECONDS)


def backoff_seconds(
    attempt: int, jitter: float, *, first: float = RETRY_FIRST_SECONDS, cap: float = RETRY_CAP_SECONDS
) -> float:
    """Return the wait before a retry: between half and all of a step that doubles from `first` to `cap`.

    `attempt` counts from 1; `jitter` is uniform in [0, 1).
    """
    return exponential_step(attempt, first=first, cap=cap) * (0.5 + 0.5 * jitter)


def exponential_step(attempt: int, *, first: float, cap: float) -> float:
    """Return the step of a backoff: `first` for attempt 1, doubled for each further one, at most `cap`."""
    return float(min(cap, first * 2.0 ** min(attempt - 1, 16)))  # a larger exponent could overflow


def failure_reason(error: Exception) -> str:
    """Return the constant key by which consecutive failures are counted."""
    return error.reason if isinstance(error, TemporaryError) else type(error).__name__
