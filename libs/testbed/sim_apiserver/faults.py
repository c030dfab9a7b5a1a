"""Faults on demand: which requests are answered how instead of being carried out."""

from __future__ import annotations

import msgspec


class TooManyRequestsFault(msgspec.Struct, frozen=True):
    """429, with the wait that is asked for."""

    retry_after_seconds: int = 1


class SlowFault(msgspec.Struct, frozen=True):
    """The answer, or the opening of a watch, comes that much later."""

    seconds: float


class ExpiredFault(msgspec.Struct, frozen=True):
    """410: of a watch as its first event, of a list as the answer."""


class HalfOpenFault(msgspec.Struct, frozen=True):
    """A watch opens and says nothing, nor does it ever end; another request is never answered."""


class EmptyClose(msgspec.Struct, frozen=True):
    """A watch ends at once without a word; another request's connection is closed without an answer."""


ServerFault = TooManyRequestsFault | SlowFault | ExpiredFault | HalfOpenFault | EmptyClose


class _Rule(msgspec.Struct):
    misbehaviour: ServerFault
    verb: str
    resource: str
    remaining: int | None


class FaultRules:
    """Rules in the order of their injection; the first that covers a request decides about it."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def inject(
        self, misbehaviour: ServerFault, *, verb: str = "", resource: str = "", times: int | None = None
    ) -> None:
        """From now on, `times` times (None: until `clear`), for a verb and a resource ("" is any)."""
        self._rules.append(_Rule(misbehaviour, verb, resource, times))

    def clear(self) -> None:
        """Behave."""
        self._rules.clear()

    def match_request(self, verb: str, resource: str) -> ServerFault | None:
        """What happens to this request; counts it."""
        for rule in self._rules:
            if rule.remaining != 0 and rule.verb in {"", verb} and rule.resource in {"", resource}:
                if rule.remaining is not None:
                    rule.remaining -= 1
                return rule.misbehaviour
        return None
