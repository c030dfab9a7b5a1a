"""Publishes what was decided about an object, once carried out: when it is news, or would be forgotten."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

from libs.common import telemetry
from libs.common.bus import Bus, BusError
from libs.common.events import Decided
from libs.common.wiring import ServiceName

log = logging.getLogger(__name__)

_AGAIN_AFTER: Final = timedelta(minutes=30)  # the stream forgets in an hour, some objects wait longer
_MOST_KNOWN: Final = 50_000  # objects of which the last word is known; of the rest it is said again


class Decidable(Protocol):
    """A Node, or a CertificateSigningRequest."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class Decisions:
    """One service's decisions on the bus: for the operator's eyes, never input to another service."""

    def __init__(
        self,
        bus: Bus,
        *,
        service: ServiceName,
        kind: Literal["node", "csr"],
        now: Callable[[], datetime],
        called: Mapping[str, str],
    ) -> None:
        """`called` is what an outcome is called instead: "would-..." where nothing is written."""
        self._bus = bus
        self._service = service
        self._kind = kind
        self._now = now
        self._called = called
        self._said: dict[str, tuple[tuple[str, str, str], datetime]] = {}  # name -> what, when

    async def publish(
        self, about: Decidable, outcome: str, reason: str, *, changes: tuple[str, ...] = ()
    ) -> None:
        """Say it, unless that has been said; what cannot be said now is said with the next decision."""
        outcome = self._called.get(outcome, outcome)
        telemetry.annotate(outcome=outcome, reason=reason)
        news, now = (about.uid, outcome, reason), self._now()
        said, at = self._said.get(about.name, (None, now))
        if said == news and abs(now - at) < _AGAIN_AFTER:
            return
        decided = Decided(
            service=self._service,
            kind=self._kind,
            name=about.name,
            uid=about.uid,
            outcome=outcome,
            reason=reason,
            decided_at=now,
            changes=changes,
        )
        try:
            await self._bus.publish(decided, headers=telemetry.outgoing_headers())
        except BusError as error:
            # The object is as decided: failing the message for its report would only try it once more.
            fields = {self._kind: about.name, "error": str(error)}
            log.warning("a decision could not be published", extra=fields)
            return
        self._said[about.name] = (news, now)
        if len(self._said) > _MOST_KNOWN:
            del self._said[next(iter(self._said))]

    def forget(self, name: str) -> None:
        """The object is gone."""
        self._said.pop(name, None)

    def forget_all(self) -> None:
        """Another stream: nothing has been said to it."""
        self._said.clear()
