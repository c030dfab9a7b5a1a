"""Limits attempts of others, such as logins. Pure; times are monotonic seconds."""

from typing import Final

import msgspec

_MAX_SOURCES: Final = 1000


class AttemptRate(msgspec.Struct, frozen=True):
    """How many attempts there may be at once, and the time until one more is free."""

    burst: int
    seconds: float


class AttemptLimiter:
    """Limits the attempts of each source address, and of all together."""

    def __init__(self, *, per_source: AttemptRate, overall: AttemptRate) -> None:
        self._per_source = per_source
        self._overall = overall
        self._used_until: dict[str, float] = {}  # by source, "" = overall: when all attempts are free again

    def admit(self, source: str, now: float) -> bool:
        """Return whether there may be one more attempt, and count it if so: others cost a source nothing."""
        rates = {source or "unknown": self._per_source, "": self._overall}
        used = {key: max(self._used_until.get(key, now), now) for key in rates}
        if any(used[key] - now > rate.seconds * (rate.burst - 1) for key, rate in rates.items()):
            return False
        if len(self._used_until) > _MAX_SOURCES:
            self._used_until = {key: until for key, until in self._used_until.items() if until > now}
        self._used_until |= {key: used[key] + rate.seconds for key, rate in rates.items()}
        return True
