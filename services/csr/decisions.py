"""Publishes what was decided about a request, once carried out: when it is news, or would be forgotten."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from libs.common import telemetry
from libs.common.bus import Bus, BusError
from libs.common.events import Decided
from libs.common.signing_request import SigningRequest
from libs.common.wiring import CSR

log = logging.getLogger(__name__)

_OBSERVED_ONLY: Final = {"approved": "would-approve", "denied": "would-deny"}
_AGAIN_AFTER: Final = timedelta(minutes=30)  # the stream forgets in an hour, some requests wait longer
_MOST_KNOWN: Final = 50_000  # requests of which the last word is known; of the rest it is said again


class Decisions:
    """csr's decisions on the bus: for the operator's eyes, never input to another service."""

    def __init__(self, bus: Bus, *, now: Callable[[], datetime], observe_only: bool) -> None:
        self._bus = bus
        self._now = now
        self._observe_only = observe_only
        self._said: dict[str, tuple[tuple[str, str, str], datetime]] = {}  # request -> what, when

    async def publish(
        self, request: SigningRequest, outcome: str, reason: str, *, changes: tuple[str, ...] = ()
    ) -> None:
        """Say it, unless that has been said; what cannot be said now is said with the next decision."""
        outcome = _OBSERVED_ONLY.get(outcome, outcome) if self._observe_only else outcome
        telemetry.annotate(outcome=outcome, reason=reason, node=request.node_name)
        news, now = (request.uid, outcome, reason), self._now()
        said, at = self._said.get(request.name, (None, now))
        if said == news and abs(now - at) < _AGAIN_AFTER:
            return
        decided = Decided(
            service=CSR.service,
            kind="csr",
            name=request.name,
            uid=request.uid,
            outcome=outcome,
            reason=reason,
            decided_at=now,
            changes=changes,
        )
        try:
            await self._bus.publish(decided, headers=telemetry.outgoing_headers())
        except BusError as error:
            # The request is as decided: failing the message for its report would only try it once more.
            log.warning("a decision could not be published", extra={"csr": request.name, "error": str(error)})
            return
        self._said[request.name] = (news, now)
        if len(self._said) > _MOST_KNOWN:
            del self._said[next(iter(self._said))]

    def forget(self, name: str) -> None:
        """The request is gone."""
        self._said.pop(name, None)

    def forget_all(self) -> None:
        """Another stream: nothing has been said to it."""
        self._said.clear()
