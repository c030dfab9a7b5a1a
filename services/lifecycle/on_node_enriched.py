"""Handles a change of one Node: its shutdown taint, its deletion, and the decision."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.cloud_config.model import Ownership
from libs.common.contract.events import NodeUnreachable
from libs.common.contract.node import Node
from services.lifecycle.decide import Delete, DeletionCase, Keep, explain_exclusion
from services.lifecycle.evidence import is_not_ready
from services.lifecycle.gcp_spot import is_gcp_spot
from services.lifecycle.node_deleter import CaseDecider, NodeDeleter
from services.lifecycle.node_index import NodeIndex
from services.lifecycle.shutdown_taint import explain_shutdown, has_shutdown_taint
from services.lifecycle.shutdown_taint_writer import ShutdownTaintWriter

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class OnNodeEnriched:
    """Gathers, decides, writes and publishes, for one Node at a time.

    Call it only while this replica leads and its cache is complete.
    """

    node_index: NodeIndex
    taint_writer: ShutdownTaintWriter
    node_deleter: NodeDeleter
    decision_publisher: DecisionPublisher
    ownership: Callable[[], Ownership]
    decide: CaseDecider
    deletes_gcp_spot: bool

    def __post_init__(self) -> None:
        self._reported: dict[str, str] = {}  # name -> uid, of Nodes with a published decision
        self._deleted: dict[str, str] = {}  # name -> uid; the watcher observes the deletion a little later
        self._attempts: dict[str, int] = {}  # name -> attempts since the last decision
        self._started_at = 0.0  # of the current attempt
        self._outcomes: dict[str, tuple[str, str]] = {}  # name -> last logged uid and outcome

    async def __call__(self, name: str) -> None:
        """Reconcile one Node. Raises TemporaryError if another attempt may succeed."""
        node = self.node_index.get_node(name)
        if node is None or not self.needs_reconcile(name):
            return
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self._started_at = asyncio.get_running_loop().time()
        why = explain_exclusion(self.ownership(), node)
        if why:
            await self._report(node, "not-owned", why)
            return
        case = self.node_index.build_case(node)
        change = await self.taint_writer.apply(node, case.report)
        decision = self.decide(case)
        if isinstance(decision, Delete):
            result = await self.node_deleter.delete(node, decision)
            if result.outcome == "deleted":
                self._deleted[name] = node.uid
            await self._report(node, result.outcome, result.reason)
        elif self.is_healthy(case) or (change is not None and not change.is_set):
            await self._report(node, "kept", "its machine answers, or the Node is Ready")
            self._reported.pop(name, None)
        else:
            await self._report_kept(case, decision, (change.summary,) if change else ())

    def needs_reconcile(self, name: str) -> bool:
        """Whether the Node is not healthy, or was not at its last published decision."""
        node = self.node_index.get_node(name)
        if node is None or self._deleted.get(name) == node.uid:
            return False
        return self._reported.get(name) == node.uid or not self.is_healthy(self.node_index.build_case(node))

    def is_healthy(self, case: DeletionCase) -> bool:
        """Whether lifecycle has nothing to do; the labeler handles Nodes that are not initialized yet."""
        node = case.node
        if has_shutdown_taint(node) or (self.deletes_gcp_spot and is_gcp_spot(node) and is_not_ready(node)):
            return False
        return not node.is_initialized or not isinstance(case.report, NodeUnreachable)

    def forget(self, name: str) -> None:
        """Forget a Node that is deleted or replaced by another one of that name."""
        self._reported.pop(name, None)
        self._deleted.pop(name, None)
        self._attempts.pop(name, None)
        self._outcomes.pop(name, None)
        self.node_deleter.forget(name)
        self.taint_writer.forget(name)
        self.decision_publisher.forget(name)

    def forget_all(self) -> None:
        """Forget the published decisions, after the stream was replaced."""
        self._reported.clear()
        self.decision_publisher.forget_all()

    async def _report_kept(self, case: DeletionCase, decision: Keep, changes: tuple[str, ...]) -> None:
        shut_down = explain_shutdown(case.node, case.report)
        reason = f"{shut_down}; {decision.reason}" if shut_down else decision.reason
        await self._report(case.node, "shutdown" if shut_down else "kept", reason, changes)

    async def _report(self, node: Node, outcome: str, reason: str, changes: tuple[str, ...] = ()) -> None:
        self._reported[node.name] = node.uid
        self._log(node, outcome, reason)
        await self.decision_publisher.publish(node, outcome, reason, changes=changes)

    def _log(self, node: Node, outcome: str, reason: str) -> None:
        """Log one line per attempt, at level debug if the outcome is the same as before."""
        report = self.node_index.build_case(node).report
        again = self._outcomes.get(node.name) == (node.uid, outcome)
        self._outcomes[node.name] = (node.uid, outcome)
        fields = {
            "node": node.name,
            "event": type(report).__name__ if report is not None else "NodeObserved",
            "attempt": self._attempts.pop(node.name, 1),
            "outcome": outcome,
            "reason": reason,
            "seconds": round(asyncio.get_running_loop().time() - self._started_at, 4),
        }
        log.log(logging.DEBUG if again else logging.INFO, "handled", extra=fields)
