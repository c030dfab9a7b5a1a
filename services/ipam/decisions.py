"""Publishes what was decided about a Node, once carried out: when it is news, or would be forgotten."""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from libs.common import telemetry
from libs.common.bus import Bus, BusError
from libs.common.events import Decided
from libs.common.node import Node
from libs.common.wiring import IPAM

log = logging.getLogger(__name__)

_AGAIN_AFTER: Final = timedelta(minutes=30)  # the stream forgets in an hour, some Nodes wait longer
_MOST_KNOWN: Final = 50_000  # Nodes of which the last word is known; of the rest it is said again


class Decisions:
    """ipam's decisions on the bus: for the operator's eyes, never input to another service."""

    def __init__(self, bus: Bus, *, now: Callable[[], datetime]) -> None:
        self._bus = bus
        self._now = now
        self._said: dict[str, tuple[tuple[str, str, str], datetime]] = {}  # Node -> what, when

    async def publish(self, node: Node, outcome: str, reason: str, *, changes: tuple[str, ...] = ()) -> None:
        """Say it, unless that has been said; what cannot be said now is said with the next decision."""
        telemetry.annotate(outcome=outcome, reason=reason)
        news, now = (node.uid, outcome, reason), self._now()
        said, at = self._said.get(node.name, (None, now))
        if said == news and abs(now - at) < _AGAIN_AFTER:
            return
        decided = Decided(
            service=IPAM.service,
            kind="node",
            name=node.name,
            uid=node.uid,
            outcome=outcome,
            reason=reason,
            decided_at=now,
            changes=changes,
        )
        try:
            await self._bus.publish(decided, headers=telemetry.outgoing_headers())
        except BusError as error:
            # The Node is as decided: failing the message for its report would only try it once more.
            log.warning("a decision could not be published", extra={"node": node.name, "error": str(error)})
            return
        self._said[node.name] = (news, now)
        if len(self._said) > _MOST_KNOWN:
            del self._said[next(iter(self._said))]

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._said.pop(name, None)

    def forget_all(self) -> None:
        """Another stream: nothing has been said to it."""
        self._said.clear()
