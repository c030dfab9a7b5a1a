"""Deletes a Node: fetches it, decides again, counts the deletion, decides once more, and deletes."""

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, KubeError, NotFound
from libs.common.kube.event_recorder import EventRecorder
from libs.common.kube.events import node_reference
from libs.common.observability import metrics
from services.lifecycle.core.decide import Delete, Keep, explain_exclusion
from services.lifecycle.core.deletion_limit import BUT, LIMITED
from services.lifecycle.core.evidence import shows_activity
from services.lifecycle.core.node_index import NodeIndex
from services.lifecycle.deletion_budget import DeletionBudget

log = logging.getLogger(__name__)

COMPONENT: Final = "talos-ccm-lifecycle"  # of the Events
DELETING: Final = "DeletingNode"  # as the reference controller, like FAILED
FAILED: Final = "DeletingNodeFailed"
WOULD_DELETE: Final = "WouldDeleteNode"
PROVIDER_ID_MISMATCH: Final = "ProviderIDMismatch"

# A failed deletion, or one without an answer, is retried only after all evidence was collected again.
FAILURE_BACKOFF_SECONDS: Final = 600.0
BUDGET_BACKOFF_SECONDS: Final = 30.0  # the budget cannot have room earlier: no request is needed


class DeletionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one attempt."""

    outcome: str  # "deleted", "would-delete", "limited", "kept" or "not-owned"
    reason: str


@dataclass(eq=False)
class NodeDeleter:
    """Deletes one Node at a time; a dry run does everything except the deletion."""

    kube: KubeApi
    _: KW_ONLY
    node_index: NodeIndex
    budget: DeletionBudget
    event_recorder: EventRecorder
    ownership: Callable[[], Ownership]
    decide: Callable[[Node], Delete | Keep]  # by all that is known at this moment
    is_dry_run: bool
    deadline_seconds: float  # of a deletion: a retry after a long wait would ignore what is known by then
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._failed: dict[str, tuple[str, float]] = {}  # name -> uid and time of the attempt
        self._dry_run_reported: dict[str, str] = {}  # name -> uid, of Nodes that a dry run reported
        self._budget_backoffs: dict[str, tuple[str, float]] = {}  # pool -> reason and end of the backoff

    async def delete(self, observed: Node, decision: Delete) -> DeletionResult:
        """Delete the Node if the decision is still valid. Raises KubeError if the Node cannot be fetched."""
        if self._dry_run_reported.get(observed.name) == observed.uid:
            return DeletionResult(outcome="would-delete", reason=decision.reason)
        limit = decision.limit
        if self._has_just_failed(observed):
            reason = f"{decision.reason}; but its deletion failed a moment ago"
            return DeletionResult(outcome="kept", reason=reason)
        why, until = self._budget_backoffs.get(limit.pool, ("", 0.0))
        if self.clock() < until:
            return DeletionResult(outcome=LIMITED, reason=f"{decision.reason}{BUT}{why}")
        try:
            node = await self.kube.get_node(observed.name)
        except NotFound:
            return DeletionResult(outcome="kept", reason="the Node does not exist any more")
        denied = self._check_again(observed, node, decision)
        if denied is not None:
            return denied
        if why := await self.budget.spend(node.name, limit):
            self._budget_backoffs[limit.pool] = (why, self.clock() + BUDGET_BACKOFF_SECONDS)
            metrics.LIFECYCLE_CAPPED.inc()
            log.warning("deletion denied by the budget", extra={"node": node.name, "reason": why})
            return DeletionResult(outcome=LIMITED, reason=f"{decision.reason}{BUT}{why}")
        denied = self._check_again(observed, node, decision)  # messages may have arrived meanwhile
        if denied is not None:
            return denied
        return self._report_dry_run(node, decision) if self.is_dry_run else await self._delete(node, decision)

    def forget(self, name: str) -> None:
        """Forget a deleted Node."""
        self._failed.pop(name, None)
        self._dry_run_reported.pop(name, None)

    def _has_just_failed(self, node: Node) -> bool:
        uid, at = self._failed.get(node.name, ("", 0.0))
        return uid == node.uid and self.clock() - at < FAILURE_BACKOFF_SECONDS

    def _check_again(self, observed: Node, node: Node, decision: Delete) -> DeletionResult | None:
        if node.uid != observed.uid or shows_activity(observed, node):
            self.node_index.forget_history(node.name)
        if node.uid != observed.uid:
            return DeletionResult(outcome="kept", reason="a newer Node has the same name")
        if why := explain_exclusion(self.ownership(), node):
            return DeletionResult(outcome="not-owned", reason=why)
        latest = self.decide(node)
        if isinstance(latest, Keep):
            return DeletionResult(outcome="kept", reason=latest.reason)
        # else the deletion would not count for the limit of this evidence
        if (latest.kind, latest.limit.pool) != (decision.kind, decision.limit.pool):
            return DeletionResult(outcome="kept", reason="the evidence changed meanwhile")
        return None

    def _report_dry_run(self, node: Node, decision: Delete) -> DeletionResult:
        self._dry_run_reported[node.name] = node.uid
        text = f"Dry run, would delete node {node.name}: {decision.reason}"
        self._record_event(node, WOULD_DELETE, text, is_warning=False)
        metrics.LIFECYCLE_DELETIONS.labels(decision.kind, "would-delete").inc()
        log.warning("dry run: would delete Node", extra={"node": node.name, "reason": decision.reason})
        return DeletionResult(outcome="would-delete", reason=decision.reason)

    async def _delete(self, node: Node, decision: Delete) -> DeletionResult:
        text = f"Deleting node {node.name}: {decision.reason}"
        self._record_event(node, DELETING, text, is_warning=False)
        self.node_index.forget_history(node.name)  # another attempt needs all evidence again
        self._failed[node.name] = (node.uid, self.clock())
        try:
            await self.kube.delete_node(
                node.name,
                uid=node.uid,
                resource_version=node.metadata.resource_version,
                deadline_seconds=self.deadline_seconds,
            )
        except NotFound:
            return DeletionResult(outcome="deleted", reason=f"it is gone already; {decision.reason}")
        except Conflict as error:
            return self._report_failure(node, decision, f"another client wrote it meanwhile: {error}")
        except KubeError as error:
            return self._report_failure(node, decision, str(error))
        metrics.LIFECYCLE_DELETIONS.labels(decision.kind, "deleted").inc()
        log.warning("Node deleted", extra={"node": node.name, "reason": decision.reason})
        return DeletionResult(outcome="deleted", reason=decision.reason)

    def _report_failure(self, node: Node, decision: Delete, why: str) -> DeletionResult:
        self._record_event(node, FAILED, f"Error deleting node {node.name}: {why}", is_warning=True)
        metrics.LIFECYCLE_DELETIONS.labels(decision.kind, "failed").inc()
        log.error("cannot delete Node", extra={"node": node.name, "error": why})
        return DeletionResult(outcome="kept", reason=f"its deletion failed: {why}")

    def _record_event(self, node: Node, reason: str, message: str, *, is_warning: bool) -> None:
        about = node_reference(node.name, node.uid)
        self.event_recorder.record(about, reason, message, is_warning=is_warning, discriminator=message)
