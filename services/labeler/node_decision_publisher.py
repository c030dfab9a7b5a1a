"""Publishes the decision about a Node after the plan was applied, if it differs from the last one."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.protocol import Bus
from libs.common.contract.events import Decided
from libs.common.contract.node import Node
from libs.common.contract.services import LABELER
from libs.common.observability import telemetry
from services.labeler.core.plan import IN_SYNC_REASON, Plan

_OBSERVE_ONLY_OUTCOMES: Final = {"initialized": "would-initialize", "updated": "would-update"}
_WRITTEN_OUTCOMES: Final = frozenset({"initialized", "updated"})


class NodeDecisionPublisher:
    """Publishes the labeler's decisions for operators; no service consumes them."""

    def __init__(self, bus: Bus, *, now: Callable[[], datetime], observe_only: bool) -> None:
        self._observe_only = observe_only
        self._decisions = DecisionPublisher(
            bus,
            service=LABELER.service,
            kind="node",
            now=now,
            outcome_aliases=_OBSERVE_ONLY_OUTCOMES if observe_only else {},
            is_own_write=_is_own_write,
        )

    async def publish(self, node: Node, plan: Plan, *, next_check_at: datetime | None = None) -> None:
        """Publish the outcome of the plan if it is new; a failed publish is retried with the next plan."""
        if self._observe_only:  # on the memory bus, the log is the only output
            telemetry.annotate(changes="; ".join(plan.summary))
        reason = "; ".join((plan.reason, *(notice.message for notice in plan.notices)))
        await self._decisions.publish(
            node, plan.outcome, reason, changes=plan.summary, next_check_at=next_check_at
        )

    def forget(self, name: str) -> None:
        """Forget the decision about a deleted Node."""
        self._decisions.forget(name)

    def forget_all(self) -> None:
        """Forget all decisions: a new stream contains none."""
        self._decisions.forget_all()


def _is_own_write(last: Decided, decided: Decided) -> bool:
    return last.outcome in _WRITTEN_OUTCOMES and decided.reason.startswith(IN_SYNC_REASON)
