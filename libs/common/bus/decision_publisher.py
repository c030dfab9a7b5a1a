"""Publishes the decisions of one service after it has applied them, for operators."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Literal, Protocol

from libs.common.bus.protocol import MAX_MESSAGE_AGE, Bus, BusError
from libs.common.contract.events import Decided
from libs.common.observability import telemetry

log = logging.getLogger(__name__)

_REPUBLISH_AFTER: Final = MAX_MESSAGE_AGE / 2  # some objects wait longer than a message lasts
_MAX_REMEMBERED: Final = 50_000  # objects; the decisions of others are published again


class DecisionObject(Protocol):
    """A Node or a CertificateSigningRequest."""

    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


class DecisionPublisher:
    """Publishes a decision when it changes, and again before the stream drops it. No service consumes it."""

    def __init__(
        self,
        bus: Bus,
        *,
        service: str,
        kind: Literal["node", "csr"],
        now: Callable[[], datetime],
        outcome_aliases: Mapping[str, str],
    ) -> None:
        """`outcome_aliases` replaces outcomes: "would-..." where the service writes nothing."""
        self._bus = bus
        self._service = service
        self._kind = kind
        self._now = now
        self._outcome_aliases = outcome_aliases
        self._published: dict[str, tuple[tuple[str, str, str], datetime]] = {}  # name -> decision, time

    async def publish(
        self, regarding: DecisionObject, outcome: str, reason: str, *, changes: tuple[str, ...] = ()
    ) -> None:
        """Publish the decision unless it is unchanged. After a failure the next decision is published."""
        outcome = self._outcome_aliases.get(outcome, outcome)
        telemetry.annotate(outcome=outcome, reason=reason)
        decision, now = (regarding.uid, outcome, reason), self._now()
        published, at = self._published.get(regarding.name, (None, now))
        if published == decision and abs(now - at) < _REPUBLISH_AFTER:
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
            # The decision is applied already: a retry of the message would only repeat it.
            fields = {self._kind: regarding.name, "error": str(error)}
            log.warning("publish of decision failed", extra=fields)
            return
        self._published[regarding.name] = (decision, now)
        if len(self._published) > _MAX_REMEMBERED:
            del self._published[next(iter(self._published))]

    def forget(self, name: str) -> None:
        """Forget the decision about a deleted object."""
        self._published.pop(name, None)

    def forget_all(self) -> None:
        """Forget all decisions: a new stream contains none."""
        self._published.clear()
