"""Reconciles one Node at a time: its record, its shutdown taint, its deletion, and the decision."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import (
    RETRY_CAP_SECONDS,
    PermanentError,
    TemporaryError,
    exponential_step,
)
from libs.common.cloud_config.model import Ownership
from libs.common.contract.node import Node
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import node_reference
from libs.common.observability import metrics
from libs.common.service.service import run_every, run_together
from libs.common.service.waiting_objects import NameQueue
from services.lifecycle.core.decide import (
    Delete,
    DeletionCase,
    DeletionPolicy,
    Keep,
    explain_exclusion,
    needs_decision,
)
from services.lifecycle.core.instance_record import InstanceRecordChange, plan_instance_record
from services.lifecycle.core.node_index import NodeIndex
from services.lifecycle.core.shutdown_taint import (
    ShutdownTaintChange,
    explain_shutdown,
    has_shutdown_taint,
    plan_shutdown_taint,
)
from services.lifecycle.node_deleter import PROVIDER_ID_MISMATCH, CaseDecider, NodeDeleter
from services.lifecycle.node_patcher import NodePatcher

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class NodeReconciler:
    """Gathers, decides, writes and publishes, for one Node at a time, so that two deletions never race."""

    node_index: NodeIndex
    node_patcher: NodePatcher
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    event_recorder: EventRecorder
    is_dry_run: bool  # taints no Node, and writes records all the same: they take time
    observe_only: bool
    node_deleter: NodeDeleter
    decision_publisher: DecisionPublisher
    ownership: Callable[[], Ownership]
    decide: CaseDecider
    policy: DeletionPolicy
    can_reconcile: Callable[[], bool]  # whether this replica leads and may write
    requeue_interval_seconds: float

    def __post_init__(self) -> None:
        self._queue = NameQueue()
        # name -> monotonic time, of Nodes that failed or came while this replica could not reconcile
        self._retries: dict[str, float] = {}
        self._reported: dict[str, str] = {}  # name -> uid, of Nodes with a published decision
        self._deleted: dict[str, str] = {}  # name -> uid; the watcher observes the deletion a little later
        self._attempts: dict[str, int] = {}  # name -> attempts since the last decision
        self._started_at = 0.0  # of the current attempt
        self._outcomes: dict[str, tuple[str, str]] = {}  # name -> last logged uid and outcome

    async def run(self) -> None:
        """Run until cancelled."""
        await run_together(
            self._queue.work(self._reconcile), run_every(self.requeue_interval_seconds, self.requeue)
        )

    def enqueue(self, name: str) -> None:
        """Reconcile this Node soon, if it needs that."""
        if self._needs_reconcile(name):
            self._queue.add([name])

    def enqueue_all(self) -> None:
        """Reconcile every Node that needs it."""
        for name in self.node_index.list_names():
            self.enqueue(name)

    def requeue(self) -> None:
        """Enqueue the due retries, and the others if time alone may bring evidence, as of spot machines."""
        metrics.LIFECYCLE_PROVING.set(self.node_index.count_histories())
        now = self.monotonic()
        for name in [name for name, at in self._retries.items() if at <= now]:
            del self._retries[name]
            self.enqueue(name)
        if self.policy.deletes_gcp_spot:
            for name in self.node_index.list_names():
                if name not in self._retries:
                    self.enqueue(name)

    async def _reconcile(self, name: str) -> None:
        if not self.can_reconcile():
            self._retries[name] = self.monotonic()
            return
        try:
            await self._reconcile_node(name)
        except (TemporaryError, PermanentError) as error:
            log.warning("reconcile failed, will retry", extra={"node": name, "error": str(error)})
            self._retries[name] = self.monotonic() + self._backoff_seconds(name)
        except Exception:
            # Nodes and machines contain untrusted texts: a defect that one triggers must not stop the others.
            log.exception("reconcile failed", extra={"node": name})

    def _backoff_seconds(self, name: str) -> float:
        """Return the wait after a failed attempt; the first retry comes with the next requeue."""
        first = self.requeue_interval_seconds
        return exponential_step(self._attempts.get(name, 1), first=first, cap=RETRY_CAP_SECONDS) - first

    async def _reconcile_node(self, name: str) -> None:
        """Reconcile one Node. Raises TemporaryError if another attempt may succeed."""
        node = self.node_index.get_node(name)
        if node is None or not self._needs_reconcile(name):
            return
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self._started_at = asyncio.get_running_loop().time()
        why = explain_exclusion(self.ownership(), node)
        if why:
            await self._report(node, "not-owned", why)
            return
        case = self.node_index.build_case(node, self.monotonic())
        recorded = await self._write_record(case)
        change = await self._write_taint(case)
        changes = self._describe_changes(recorded, change)
        decision = self.decide(case)
        if isinstance(decision, Delete):
            result = await self.node_deleter.delete(node, decision)
            if result.outcome == "deleted":
                self._deleted[name] = node.uid
            await self._report(node, result.outcome, result.reason)
        elif self._is_healthy(case) or (change is not None and not change.is_set):
            await self._report(node, "kept", "its machine answers, or the Node is Ready", changes)
            self._reported.pop(name, None)
        else:
            await self._report_kept(case, decision, changes)

    async def _write_record(self, case: DeletionCase) -> InstanceRecordChange | None:
        change = await self.node_patcher.apply(
            case.node,
            lambda node: self._plan_record(node, case),
            is_dry_run=self.observe_only,
        )
        if change is not None and change.is_voided:
            about = node_reference(case.node.name, case.node.uid)
            text = f"Its record is void: {change.reason}"
            self.event_recorder.record(about, PROVIDER_ID_MISMATCH, text, is_warning=True, discriminator=text)
        return change

    def _plan_record(self, node: Node, case: DeletionCase) -> InstanceRecordChange | None:
        return plan_instance_record(node, case.instances, case.report, now=self.now())

    async def _write_taint(self, case: DeletionCase) -> ShutdownTaintChange | None:
        change = await self.node_patcher.apply(
            case.node,
            lambda node: plan_shutdown_taint(node, case.report, case.instances),
            is_dry_run=self.is_dry_run,
        )
        if change is not None and not self.is_dry_run:
            metrics.LIFECYCLE_SHUTDOWN_TAINTS.labels("set" if change.is_set else "removed").inc()
        return change

    def _describe_changes(
        self, recorded: InstanceRecordChange | None, change: ShutdownTaintChange | None
    ) -> tuple[str, ...]:
        found = ((recorded, self.observe_only), (change, self.is_dry_run))
        return tuple(
            f"would have {each.summary}" if is_dry else each.summary
            for each, is_dry in found
            if each is not None
        )

    def _needs_reconcile(self, name: str) -> bool:
        """Whether the Node is not healthy, or was not at its last published decision."""
        node = self.node_index.get_node(name)
        if node is None or self._deleted.get(name) == node.uid:
            return False
        case = self.node_index.build_case(node, self.monotonic())
        return (
            self._reported.get(name) == node.uid
            or not self._is_healthy(case)
            or self._plan_record(node, case) is not None
        )

    def _is_healthy(self, case: DeletionCase) -> bool:
        """Whether lifecycle has nothing to do."""
        return not has_shutdown_taint(case.node) and not needs_decision(case, self.policy)

    def forget(self, name: str) -> None:
        """Forget a Node that is deleted or replaced by another one of that name."""
        self._reported.pop(name, None)
        self._deleted.pop(name, None)
        self._attempts.pop(name, None)
        self._outcomes.pop(name, None)
        self.node_deleter.forget(name)
        self.decision_publisher.forget(name)

    def forget_all(self) -> None:
        """Forget the queue and the published decisions, after the stream was replaced."""
        self._queue.clear()
        self._retries.clear()
        self._reported.clear()
        self.decision_publisher.forget_all()

    async def _report_kept(self, case: DeletionCase, decision: Keep, changes: tuple[str, ...]) -> None:
        shut_down = explain_shutdown(case.node, case.report, case.instances)
        reason = f"{shut_down}; {decision.reason}" if shut_down else decision.reason
        await self._report(case.node, "shutdown" if shut_down else "kept", reason, changes)

    async def _report(self, node: Node, outcome: str, reason: str, changes: tuple[str, ...] = ()) -> None:
        self._reported[node.name] = node.uid
        self._log(node, outcome, reason)
        await self.decision_publisher.publish(node, outcome, reason, changes=changes)

    def _log(self, node: Node, outcome: str, reason: str) -> None:
        """Log one line per attempt, at level debug if the outcome is the same as before."""
        report = self.node_index.build_case(node, self.monotonic()).report
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
