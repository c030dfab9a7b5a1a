"""Injected faults: rules for requests that get another response than usual."""

from __future__ import annotations

import msgspec


class TooManyRequestsFault(msgspec.Struct, frozen=True):
    """429 with a Retry-After header."""

    retry_after_seconds: int = 1


class SlowFault(msgspec.Struct, frozen=True):
    """Delays the response, or the start of a watch."""

    seconds: float


class ExpiredFault(msgspec.Struct, frozen=True):
    """410: the first event of a watch, or the response to another request."""


class HalfOpenFault(msgspec.Struct, frozen=True):
    """A watch opens, sends no event and does not end; another request gets no response."""


class EmptyClose(msgspec.Struct, frozen=True):
    """A watch ends at once without an event; the connection of another request closes without a response."""


class ConflictFault(msgspec.Struct, frozen=True):
    """409, as to a write that lost against another writer."""


ServerFault = TooManyRequestsFault | SlowFault | ExpiredFault | HalfOpenFault | EmptyClose | ConflictFault


class _Rule(msgspec.Struct):
    fault: ServerFault
    verb: str
    resource: str
    remaining: int | None
    every: int
    matched: int = 0


class FaultRules:
    """Rules in order of their injection; the first that matches a request applies."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def inject(
        self,
        fault: ServerFault,
        *,
        verb: str = "",
        resource: str = "",
        times: int | None = None,
        every: int = 1,
    ) -> None:
        """Add a rule for a verb and a resource ("" is any), for `times` requests (None: until `clear`).

        With `every` 3, it applies to the first, fourth and seventh of the requests that match.
        """
        self._rules.append(_Rule(fault, verb, resource, times, every))

    def clear(self) -> None:
        """Remove all rules."""
        self._rules.clear()

    def match_request(self, verb: str, resource: str) -> ServerFault | None:
        """Return the fault for this request, if there is one, and count the request."""
        for rule in self._rules:
            if rule.remaining != 0 and rule.verb in {"", verb} and rule.resource in {"", resource}:
                rule.matched += 1
                if rule.matched % rule.every != 1 % rule.every:
                    continue
                if rule.remaining is not None:
                    rule.remaining -= 1
                return rule.fault
        return None
