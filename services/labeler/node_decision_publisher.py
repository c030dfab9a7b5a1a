"""Publishes the decision about a Node after the plan was applied, if it differs from the last one."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.bus.protocol import Bus, BusError
from libs.common.contract.events import Decided
from libs.common.contract.node import Node
from libs.common.contract.services import LABELER
from libs.common.observability import telemetry
from services.labeler.event_deduplicator import EventDeduplicator
from services.labeler.plan import Plan

log = logging.getLogger(__name__)

_OBSERVE_ONLY_OUTCOMES: Final = {"initialized": "would-initialize", "updated": "would-update"}


class NodeDecisionPublisher:
    """Publishes the labeler's decisions for operators; no service consumes them."""

    def __init__(
        self, bus: Bus, deduplicator: EventDeduplicator, *, now: Callable[[], datetime], observe_only: bool
    ) -> None:
        self._bus = bus
        self._deduplicator = deduplicator
        self._now = now
        self._observe_only = observe_only

    async def publish(self, node: Node, plan: Plan, *, next_check_at: datetime | None = None) -> None:
        """Publish the outcome of the plan if it is new; a failed publish is retried with the next plan."""
        outcome = (
            _OBSERVE_ONLY_OUTCOMES.get(plan.outcome, plan.outcome) if self._observe_only else plan.outcome
        )
        decided = Decided(
            service=LABELER.service,
            kind="node",
            name=node.name,
            uid=node.uid,
            outcome=outcome,
            reason="; ".join((plan.reason, *(notice.message for notice in plan.notices))),
            decided_at=self._now(),
            next_check_at=next_check_at,
            changes=plan.summary,
        )
        telemetry.annotate(outcome=outcome, reason=decided.reason)
        if self._observe_only:  # on the memory bus, the log is the only output
            telemetry.annotate(changes="; ".join(decided.changes))
        if not self._deduplicator.is_new_decision(decided):
            return
        try:
            await self._bus.publish(decided, headers=telemetry.outgoing_headers())
        except BusError as error:
            # The plan has been applied, so failing the message would only repeat a plan without changes.
            log.warning("decision publish failed, will retry", extra={"node": node.name, "error": str(error)})
        else:
            self._deduplicator.record_decision(decided)
