"""Writes the status, metadata and Events of Nodes; writes nothing in observe-only mode."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from libs.common.clocks import loop_time
from libs.common.contract.node import BLOCKED_CONDITION, UNINITIALIZED_TAINT, Node
from libs.common.contract.node_patch import build_node_patch, build_status_patch
from libs.common.kube.errors import FenceFailed, Forbidden, Invalid, KubeError
from libs.common.kube.event_recorder import EventLimits, EventRecorder, EventWriter
from libs.common.kube.events import node_reference
from libs.common.kube.request_queue import RequestQueue
from libs.common.kube.transport import CONNECTIONS
from libs.common.observability import metrics, telemetry
from services.labeler.core.blocker import Notice, build_condition
from services.labeler.core.own_writes import OwnWrites, is_result_of
from services.labeler.core.plan.plan import Plan, merge_plans
from services.labeler.core.plan.rejection import (
    NO_REJECTION,
    Rejection,
    describe_rejected_taints,
    extend_rejection,
    keeps_uninitialized,
)

COMPONENT: Final = "cloud-node-controller"  # the reference's name: dashboards and operators search for it
_SYNCED: Final = Notice(reason="Synced", message="Node synced successfully", is_warning=False)
# A machine whose report changes at each poll must not fill the memory. A plan has six of one kind at most.
MAX_CAUSES: Final = 16

# Concurrent requests for plans. The other connections stay free to report blockers when these requests hang.
_MAX_CONCURRENT_REQUESTS: Final = CONNECTIONS - 4


# A providerID is planned again after this time in the queue: see `ProviderIDIndex`.
MAX_PLAN_AGE_SECONDS: Final = 5.0


# Plans the changes to one Node, on the view of it that the function gets, without the rejected kinds of keys.
Planner = Callable[[Node, Rejection], Plan]


class AppliedPlan(msgspec.Struct, frozen=True):
    """A plan that was applied, and the API server's response to its last write.

    `written` is None if nothing was written, if Kubernetes rejected a part of the plan, or if another writer
    changed the Node between plan and write.
    """

    plan: Plan
    written: Node | None = None


class NodeClient(EventWriter, Protocol):
    """The Kubernetes requests of the labeler; `libs.common.kube.api.KubeApi` implements them."""

    async def get_node(self, name: str) -> Node: ...
    async def patch_node(
        self, name: str, json_patch: Sequence[dict[str, Any]], /, *, is_urgent: bool
    ) -> Node: ...
    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any], /) -> Node: ...


class NodeWriter:
    """Applies plans: at most one status patch and one Node patch for each plan."""

    def __init__(
        self,
        kube: NodeClient,
        own_writes: OwnWrites,
        *,
        now: Callable[[], datetime],
        observe_only: bool,
        is_excluded: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """`is_excluded` returns whether --cloud-config now excludes the Node of that name: no write then."""
        self._kube = kube
        self._queue = RequestQueue(_MAX_CONCURRENT_REQUESTS, clock=loop_time)
        self.events = EventRecorder(
            kube,
            component=COMPONENT,
            now=now,
            observe_only=observe_only,
            is_foreign=is_excluded,
            idle_seconds=self._queue.idle_seconds,
            limits=EventLimits(causes=MAX_CAUSES),
        )
        self._own_writes = own_writes
        self._is_excluded = is_excluded
        self._now = now
        self._observe_only = observe_only

    async def get(self, name: str) -> Node:
        """Fetch the Node. Raises KubeError; NotFound if it does not exist."""
        async with self._queue.slot():
            return self._store_response(await self._kube.get_node(name))

    async def apply(self, node: Node, make_plan: Planner) -> AppliedPlan:
        """Apply the plan and return it.

        Addresses come first, so that no pod is scheduled before the Node has them. Raises KubeError;
        FenceFailed means that the Node has changed since it was planned, or that it is now excluded.
        """
        plan = make_plan(node, NO_REJECTION)
        if self._observe_only:
            return AppliedPlan(plan)
        condition = BLOCKED_CONDITION if plan.removes_condition else ""
        status = build_status_patch(
            node, addresses=plan.addresses, remove_condition=condition, now=self._now()
        )
        if not status:
            return await self._patch_until_accepted(node, plan, make_plan)
        async with self._queue.slot():
            self._check_not_excluded(node)
            node = self._store_response(await self._kube.patch_node_status(node.name, status))
        rest = make_plan(node, NO_REJECTION)
        if rest.addresses is not None and rest.addresses != plan.addresses:
            # The view had addresses that the Node lacks, such as after a restore of etcd.
            raise FenceFailed("its addresses have changed since it was planned")
        applied = await self._patch_until_accepted(node, rest, make_plan)
        written = node if applied.plan is rest and applied.written is None else applied.written
        return AppliedPlan(merge_plans(plan, applied.plan), written)

    async def _patch_until_accepted(self, node: Node, plan: Plan, make_plan: Planner) -> AppliedPlan:
        """Write the plan and return the plan that was written, without the keys that Kubernetes rejects."""
        rejection, tried = NO_REJECTION, [plan]
        while isinstance(response := await self._try_patch(node, plan, make_plan), KubeError):
            rejection, plan = _drop_rejected_kinds(node, tried, make_plan, rejection, response)
            tried.append(plan)
        if rejection is not NO_REJECTION or response is None:
            return AppliedPlan(plan)
        return AppliedPlan(plan, response if is_result_of(plan.changes, node, response) else None)

    async def _try_patch(self, node: Node, plan: Plan, make_plan: Planner) -> Node | KubeError | None:
        """Write the plan and return the response, None if nothing changes.

        Return the API server's error if a key of a rule may be the cause.
        """
        operations = build_node_patch(node, plan.changes)
        if not operations:
            return None
        # The Node becomes usable by this write, so it goes before all that are queued.
        is_urgent = any(taint.key == UNINITIALIZED_TAINT for taint in plan.changes.remove_taints)
        queued_at = loop_time()
        try:
            async with self._queue.slot(is_urgent=is_urgent):
                self._check_not_excluded(node)
                waited_seconds = loop_time() - queued_at
                if plan.changes.provider_id and waited_seconds > MAX_PLAN_AGE_SECONDS:
                    _check_not_blocked(node, make_plan)
                patched = await self._kube.patch_node(node.name, operations, is_urgent=is_urgent)
                return self._store_response(patched)
        except (Invalid, Forbidden) as error:
            return error

    def _check_not_excluded(self, node: Node) -> None:
        """Check again in the slot, because a slow API server makes writes wait. Raises FenceFailed."""
        if self._is_excluded(node.name):
            raise FenceFailed("the --cloud-config file now excludes the Node")

    def report(self, node: Node, plan: Plan) -> None:
        """Update the metrics and queue the Events for a plan that has been applied."""
        if self._observe_only:  # on the memory bus, the log is the only output
            telemetry.annotate(changes="; ".join(plan.summary))
            return
        if plan.outcome == "initialized":
            self._observe_sync_delay(node)
            self.record_event(node, _SYNCED)
        self.events.forget_ended(node.uid, {(notice.reason, notice.message) for notice in plan.notices})
        about = node_reference(node.name, node.uid)
        for notice in plan.notices:
            self.events.record_once(about, notice.reason, notice.message, is_warning=notice.is_warning)

    async def report_blocker(self, node: Node, blocker: Notice, *, with_event: bool) -> None:
        """Write the blocking condition and, `with_event`, an Event on the Node. Raises KubeError."""
        if self._observe_only:
            return
        status = build_status_patch(node, set_condition=build_condition(blocker), now=self._now())
        if status:
            self._store_response(await self._kube.patch_node_status(node.name, status))
        if with_event:
            self.record_event(node, blocker)

    def record_event(self, node: Node, notice: Notice) -> None:
        """Record an Event on the Node. Several of one reason, by any replica, are one in the same minute."""
        about = node_reference(node.name, node.uid)
        self.events.record(about, notice.reason, notice.message, is_warning=notice.is_warning)

    def _store_response(self, response: Node) -> Node:
        self._own_writes.store(response)
        return response

    def _observe_sync_delay(self, node: Node) -> None:
        created = node.metadata.creation_timestamp
        if created is not None:
            seconds = (self._now() - created).total_seconds()
            metrics.TAINT_REMOVAL_DELAY.observe(seconds, telemetry.exemplar())
            metrics.INITIAL_SYNC_DELAY.observe(seconds)


def _drop_rejected_kinds(
    node: Node, tried_plans: Sequence[Plan], make_plan: Planner, rejection: Rejection, error: KubeError
) -> tuple[Rejection, Plan]:
    """Return the next plan to try, with fewer keys of rules. Raises the error if there is none."""
    fields: tuple[str, ...] = tuple(cause.field for cause in error.causes)
    while (extended := extend_rejection(rejection, fields, str(error))) is not None:
        rejection, fields = extended, ()
        plan = make_plan(node, rejection)
        if all(plan.changes != before.changes for before in tried_plans):
            if keeps_uninitialized(node, rejection):
                error.add_note(describe_rejected_taints(tried_plans[-1].changes.set_taints))
                break
            if isinstance(error, Forbidden) and node.is_initialized and not plan.node_summary:
                break  # a permission may be missing: raise, so that the message is retried soon
            return rejection, plan
    raise error


def _check_not_blocked(node: Node, make_plan: Planner) -> None:
    blocker = make_plan(node, NO_REJECTION).blocker
    if blocker is not None:
        raise FenceFailed(f"the Node is blocked now: {blocker.message}")
