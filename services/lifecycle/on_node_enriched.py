"""Reconciles one Node at a time: its record, its shutdown taint, its deletion, and the decision."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import (
    RETRY_CAP_SECONDS,
    PermanentError,
    TemporaryError,
    exponential_step,
)
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import ownership_labels
from libs.common.contract.node import Node
from libs.common.contract.node_patch import Operation, build_node_patch
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import NotFound
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import node_reference
from libs.common.observability import metrics
from libs.common.service.service import run_every, run_together
from libs.common.service.waiting_objects import NameQueue
from services.lifecycle.core.decide import Delete, Keep, explain_exclusion, needs_decision
from services.lifecycle.core.instance_record import plan_instance_record
from services.lifecycle.core.node_change import ChangeKind, NodeChange
from services.lifecycle.core.node_index import DeletionCase, NodeIndex
from services.lifecycle.core.shutdown_taint import explain_shutdown, has_shutdown_taint, plan_shutdown_taint
from services.lifecycle.node_deleter import PROVIDER_ID_MISMATCH, NodeDeleter
from services.lifecycle.settings import LifecycleSettings

log = logging.getLogger(__name__)


@dataclass
class _NodeState:
    """What this replica did with one Node."""

    attempts: int = 0  # since the last decision
    started_at: float = 0.0  # of the current attempt, on the loop's clock
    outcome: str = ""  # of the last decision
    needs_recovery: bool = False  # a decision is published that a healthy Node makes wrong
    is_deleted: bool = False  # the watcher observes that a little later


@dataclass(eq=False, kw_only=True)
class NodeReconciler:
    """Gathers, decides, writes and publishes, for one Node at a time, so that two deletions never race."""

    kube: KubeApi
    settings: LifecycleSettings
    node_index: NodeIndex
    monotonic: Callable[[], float]
    build_case: Callable[[Node], DeletionCase]  # at this moment
    decide: Callable[[DeletionCase], Delete | Keep]
    ownership: Callable[[], Ownership]
    can_reconcile: Callable[[], bool]  # whether this replica leads and may write
    node_deleter: NodeDeleter
    event_recorder: EventRecorder
    decision_publisher: DecisionPublisher

    def __post_init__(self) -> None:
        self._policy = self.settings.deletion_policy
        self._queue = NameQueue()
        # name -> monotonic time, of Nodes that failed or came while this replica could not reconcile
        self._retries: dict[str, float] = {}
        self._states: dict[str, _NodeState] = {}  # by name

    async def run(self) -> None:
        """Run until cancelled."""
        await run_together(
            self._queue.work(self._reconcile), run_every(self.settings.requeue_interval_seconds, self.requeue)
        )

    def enqueue(self, name: str) -> None:
        """Reconcile this Node soon, if it needs that."""
        if self._find_case(name) is not None:
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
        if self._policy.deletes_gcp_spot:
            for name in self.node_index.list_names():
                if name not in self._retries:
                    self.enqueue(name)

    def forget(self, name: str) -> None:
        """Forget a Node that is deleted or replaced by another one of that name."""
        self._states.pop(name, None)
        self.node_deleter.forget(name)
        self.decision_publisher.forget(name)

    def forget_all(self) -> None:
        """Forget the queue and the published decisions, after the stream was replaced."""
        self._queue.clear()
        self._retries.clear()
        self._states.clear()
        self.decision_publisher.forget_all()

    # ---- gather

    def _find_case(self, name: str) -> DeletionCase | None:
        """Return all data about the Node; None if it is healthy, and was at its last published decision."""
        node = self.node_index.get_node(name)
        state = self._states.get(name)
        if node is None or (state is not None and state.is_deleted):
            return None
        case = self.build_case(node)
        needs_recovery = state is not None and state.needs_recovery
        if needs_recovery or not self._is_healthy(case) or plan_instance_record(case) is not None:
            return case
        return None

    def _is_healthy(self, case: DeletionCase) -> bool:
        """Whether lifecycle has nothing to do."""
        return not has_shutdown_taint(case.node) and not needs_decision(case, self._policy)

    # ---- write and publish

    async def _reconcile(self, name: str) -> None:
        if not self.can_reconcile():
            self._retries[name] = self.monotonic()
            return
        state = self._states.get(name) or _NodeState()
        try:
            case = self._find_case(name)
            if case is None:
                return
            self._states[name] = state
            state.attempts += 1
            state.started_at = asyncio.get_running_loop().time()
            await self._reconcile_case(case, state)
        except (TemporaryError, PermanentError) as error:
            log.warning("reconcile failed, will retry", extra={"node": name, "error": str(error)})
            first = self.settings.requeue_interval_seconds  # the first retry comes with the next requeue
            backoff = exponential_step(state.attempts, first=first, cap=RETRY_CAP_SECONDS) - first
            self._retries[name] = self.monotonic() + backoff
        except Exception:
            # Nodes and machines contain untrusted texts: a defect that one triggers must not stop the others.
            log.exception("reconcile failed", extra={"node": name})

    async def _reconcile_case(self, case: DeletionCase, state: _NodeState) -> None:
        """Reconcile one Node. Raises TemporaryError if another attempt may succeed."""
        if why := explain_exclusion(self.ownership(), case.node):
            await self._report(case, state, "not-owned", why)
            return
        # A dry run writes records all the same: they take time.
        record = await self._apply(case, plan_instance_record(case), is_dry_run=self.settings.observe_only)
        case = self.build_case(case.node)  # messages may have arrived meanwhile
        change = plan_shutdown_taint(case)
        taint = await self._apply(case, change, is_dry_run=self.settings.is_dry_run)
        changes = (*record, *taint)
        decision = self.decide(case)
        if isinstance(decision, Delete):
            result = await self.node_deleter.delete(case.node, decision)
            state.is_deleted = result.outcome == "deleted"
            await self._report(case, state, result.outcome, result.reason)
        elif self._is_healthy(case) or (change is not None and change.kind is ChangeKind.REMOVED_TAINT):
            await self._report(case, state, "kept", "its machine answers, or the Node is Ready", changes)
            state.needs_recovery = False
        elif shut_down := explain_shutdown(case):
            await self._report(case, state, "shutdown", f"{shut_down}; {decision.reason}", changes)
        else:
            await self._report(case, state, "kept", decision.reason, changes)

    async def _apply(
        self, case: DeletionCase, change: NodeChange | None, *, is_dry_run: bool
    ) -> tuple[str, ...]:
        """Write the change and return what was changed, in words.

        Raises KubeError; FenceFailed if the Node has changed: it is planned again when that is observed.
        Raises TemporaryError if lifecycle may not write the Node any more.
        """
        if change is None:
            return ()
        if is_dry_run:
            return (f"would have {change.kind}",)
        # The write before may have taken long.
        if not self.can_reconcile() or explain_exclusion(self.ownership(), case.node):
            raise TemporaryError("lifecycle may not write now", change.kind)
        try:
            await self.kube.patch_node(
                case.node.name,
                self._build_patch(case.node, change),
                deadline_seconds=self.settings.request_deadline_seconds,
            )
        except NotFound:
            return ()
        self._report_change(case.node, change)
        return (change.kind.value,)

    def _build_patch(self, node: Node, change: NodeChange) -> list[Operation]:
        guarded = ownership_labels(self.ownership())
        operations = build_node_patch(node, msgspec.structs.replace(change.changes, guarded_labels=guarded))
        if change.kind in (ChangeKind.WROTE_RECORD, ChangeKind.VOIDED_RECORD):
            # A kubelet may change the UUID that the record names.
            uuid = node.status.node_info.system_uuid
            return [{"op": "test", "path": "/status/nodeInfo/systemUUID", "value": uuid}, *operations]
        return operations

    def _report_change(self, node: Node, change: NodeChange) -> None:
        log.info(change.kind.value, extra={"node": node.name, "reason": change.reason})
        if change.kind is ChangeKind.VOIDED_RECORD:
            text = f"Its record is void: {change.reason}"
            about = node_reference(node.name, node.uid)
            self.event_recorder.record(about, PROVIDER_ID_MISMATCH, text, is_warning=True, discriminator=text)
        elif change.kind is not ChangeKind.WROTE_RECORD:
            is_set = change.kind is ChangeKind.SET_TAINT
            metrics.LIFECYCLE_SHUTDOWN_TAINTS.labels("set" if is_set else "removed").inc()

    async def _report(
        self, case: DeletionCase, state: _NodeState, outcome: str, reason: str, changes: tuple[str, ...] = ()
    ) -> None:
        """Publish the decision, and log it: at level debug if the outcome is the same as before."""
        level = logging.DEBUG if state.outcome == outcome else logging.INFO
        fields = {
            "node": case.node.name,
            "event": type(case.report).__name__ if case.report is not None else "NodeObserved",
            "attempt": state.attempts,
            "outcome": outcome,
            "reason": reason,
            "seconds": round(asyncio.get_running_loop().time() - state.started_at, 4),
        }
        log.log(level, "handled", extra=fields)
        state.outcome, state.attempts, state.needs_recovery = outcome, 0, True
        await self.decision_publisher.publish(case.node, outcome, reason, changes=changes)
