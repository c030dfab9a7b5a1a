"""Publishes what was decided about an object, once carried out: when it is news, or would be forgotten."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Literal, Protocol

from libs.common.bus.protocol import MAX_MESSAGE_AGE, Bus, BusError
from libs.common.contract.events import Decided
from libs.common.observability import telemetry

log = logging.getLogger(__name__)

_REPUBLISH_AFTER: Final = MAX_MESSAGE_AGE / 2  # some objects wait longer than a message lasts
_MAX_REMEMBERED: Final = 50_000  # objects of which the last word is known; of the rest it is said again


class DecisionObject(Protocol):
    """A Node, or a CertificateSigningRequest."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class DecisionPublisher:
    """One service's decisions on the bus: for the operator's eyes, never input to another service."""

    def __init__(
        self,
        bus: Bus,
        *,
        service: str,
        kind: Literal["node", "csr"],
        now: Callable[[], datetime],
        outcome_aliases: Mapping[str, str],
    ) -> None:
        """`called` is what an outcome is called instead: "would-..." where nothing is written."""
        self._bus = bus
        self._service = service
        self._kind = kind
        self._now = now
        self._called = outcome_aliases
        self._published: dict[str, tuple[tuple[str, str, str], datetime]] = {}  # name -> what, when

    async def publish(
        self, regarding: DecisionObject, outcome: str, reason: str, *, changes: tuple[str, ...] = ()
    ) -> None:
        """Say it, unless that has been said; what cannot be said now is said with the next decision."""
        outcome = self._called.get(outcome, outcome)
        telemetry.annotate(outcome=outcome, reason=reason)
        news, now = (regarding.uid, outcome, reason), self._now()
        said, at = self._published.get(regarding.name, (None, now))
        if said == news and abs(now - at) < _REPUBLISH_AFTER:
            return
        decided = Decided(
            service=self._service,
            kind=self._kind,
            name=regarding.name,
            uid=regarding.uid,
            outcome=outcome,
            reason=reason,
            decided_at=now,
            changes=changes,
        )
        try:
            await self._bus.publish(decided, headers=telemetry.outgoing_headers())
        except BusError as error:
            # The object is as decided: failing the message for its report would only try it once more.
            fields = {self._kind: regarding.name, "error": str(error)}
            log.warning("a decision could not be published", extra=fields)
            return
        self._published[regarding.name] = (news, now)
        if len(self._published) > _MAX_REMEMBERED:
            del self._published[next(iter(self._published))]

    def forget(self, name: str) -> None:
        """The object is gone."""
        self._published.pop(name, None)

    def forget_all(self) -> None:
        """Another stream: nothing has been said to it."""
        self._published.clear()
