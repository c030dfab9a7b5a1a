"""Publishes the decisions of one service after it has applied them, for operators."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Final, Literal

import msgspec

from libs.common.bus.protocol import Bus, BusError
from libs.common.bus.stream_limits import MAX_REPUBLISH_INTERVAL
from libs.common.contract.events import Decided, EventError
from libs.common.contract.node import ApiObject
from libs.common.observability import telemetry

log = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 50_000  # objects; the decisions of others are published again


@dataclass(eq=False)
class DecisionPublisher:
    """Publishes a decision when it changes, and again before the stream drops it. No service consumes it."""

    bus: Bus
    _: KW_ONLY
    service: str
    kind: Literal["node", "csr"]
    now: Callable[[], datetime]
    # replaces outcomes: "would-..." where the service writes nothing
    outcome_aliases: Mapping[str, str] = field(default_factory=dict)
    # whether a decision only reports the write of the last one
    is_own_write: Callable[[Decided, Decided], bool] = lambda last, decided: False

    def __post_init__(self) -> None:
        self._published: dict[str, Decided] = {}  # by name

    async def publish(
        self,
        regarding: ApiObject,
        outcome: str,
        reason: str,
        *,
        changes: tuple[str, ...] = (),
        rules: tuple[str, ...] = (),
        next_check_at: datetime | None = None,
    ) -> None:
        """Publish the decision unless it is unchanged. After a failure the next decision is published."""
        outcome = self.outcome_aliases.get(outcome, outcome)
        telemetry.annotate(outcome=outcome, reason=reason)
        decided = Decided(
            service=self.service,
            kind=self.kind,
            name=regarding.name,
            uid=regarding.uid,
            outcome=outcome,
            reason=reason,
            decided_at=self.now(),
            next_check_at=next_check_at,
            changes=changes,
            rules=rules,
        )
        if self._is_known(decided):
            return
        try:
            await self.bus.publish(decided, headers=telemetry.outgoing_headers())
        except (BusError, EventError) as error:  # an EventError: thousands of keys, or names of rules
            # The decision is applied already: a retry of the message would only repeat it.
            fields = {self.kind: regarding.name, "error": str(error)}
            log.warning("publish of decision failed", extra=fields)
            return
        self._published[regarding.name] = decided
        if len(self._published) > _MAX_REMEMBERED:
            del self._published[next(iter(self._published))]

    def _is_known(self, decided: Decided) -> bool:
        """Whether the stream contains that decision; one without changes repeats one with changes."""
        last = self._published.get(decided.name)
        # some objects wait longer than a message lasts
        if last is None or abs(decided.decided_at - last.decided_at) >= MAX_REPUBLISH_INTERVAL:
            return False
        changes = decided.changes or last.changes
        repeat = msgspec.structs.replace(decided, decided_at=last.decided_at, changes=changes)
        return repeat == last or (decided.uid == last.uid and self.is_own_write(last, decided))

    def forget(self, name: str) -> None:
        """Forget the decision about a deleted object."""
        self._published.pop(name, None)

    def forget_all(self) -> None:
        """Forget all decisions: a new stream contains none."""
        self._published.clear()
