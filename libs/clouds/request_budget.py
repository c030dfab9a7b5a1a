"""When the next request to a cloud may be sent: some per minute, none from the last quarter of the limit."""

from collections import deque
from typing import Final

from libs.clouds.instances import RateLimit, Unanswered

REQUESTS_PER_MINUTE: Final = 20
# The rate limit belongs to the project. The rest is for its other clients: CSI driver, autoscaler, operators.
SHARE_OF_OTHERS: Final = 0.25
# Of the requests of a minute that tasks with writes send. The rest is for deletions, which may end what costs
# money. The budget of instances has reads only.
_READ_SHARE: Final = 0.9
_MIN_PAUSE_SECONDS: Final = 60.0
_MAX_PAUSE_SECONDS: Final = 3600.0
_MINUTE: Final = 60.0


class _ProjectLimit:
    """The rate limit and the pause that all budgets of one credential share."""

    def __init__(self) -> None:
        self.rate_limit: RateLimit | None = None
        self.paused_until = 0.0
        self.pause_reason = ""


class RequestBudget:
    """Counts the requests of one credential. All times are monotonic, in seconds."""

    def __init__(self, *, requests_per_minute: int = REQUESTS_PER_MINUTE) -> None:
        self.read_share = 1.0
        self._project = _ProjectLimit()
        self._sent_at: deque[float] = deque(maxlen=requests_per_minute)

    def share(self, *, requests_per_minute: int) -> "RequestBudget":
        """Return the budget of a task with writes: its own number per minute, and the same pauses."""
        other = RequestBudget(requests_per_minute=requests_per_minute)
        other.read_share = _READ_SHARE
        other._project = self._project
        return other

    @property
    def rate_limit(self) -> RateLimit | None:
        """The last rate limit that the cloud reported."""
        return self._project.rate_limit

    def seconds_until_allowed(self, now: float, *, share: float = 1.0) -> float:
        """Return the time until the next request is within this share of the requests per minute."""
        usable = max(1, int((self._sent_at.maxlen or 1) * share))
        if len(self._sent_at) < usable:
            return 0.0
        return max(0.0, self._sent_at[-usable] + _MINUTE - now)

    def why_paused(self, now: float) -> Unanswered | None:
        """Return the answer to a request that must not be sent now, None if it may be."""
        remaining = self._project.paused_until - now
        return Unanswered("held_back", self._project.pause_reason, remaining) if remaining > 0 else None

    def count_request(self, now: float) -> None:
        """Count a request that is sent now."""
        self._sent_at.append(now)

    def record_rate_limit(self, rate_limit: RateLimit, *, full_in_seconds: float, now: float) -> None:
        """Record what the cloud reports; pause while less than a quarter of the limit remains.

        The rate limit is at its maximum again in `full_in_seconds`, and returns evenly until then.
        """
        self._project.rate_limit = rate_limit
        missing = rate_limit.limit * SHARE_OF_OTHERS - rate_limit.remaining
        if missing <= 0:
            return
        used = rate_limit.limit - rate_limit.remaining
        counts = f"{rate_limit.remaining} of {rate_limit.limit} requests remain"
        self.pause(
            full_in_seconds * missing / used,
            f"{counts}, and less than a quarter is left to the project's other clients",
            now=now,
        )

    def pause(self, seconds: float, reason: str, *, now: float) -> None:
        """Send nothing for this long, at least a minute and at most an hour."""
        until = now + min(max(seconds, _MIN_PAUSE_SECONDS), _MAX_PAUSE_SECONDS)
        if until > self._project.paused_until:
            self._project.paused_until, self._project.pause_reason = until, reason

    def forget_rate_limit(self) -> None:
        """Start over with another credential; the requests of the last minute still count."""
        self._project.rate_limit = None
        self._project.paused_until = 0.0
