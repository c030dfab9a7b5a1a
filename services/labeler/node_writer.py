"""The labeler's writes: a Node's status, the Node, and Events on it; none of them in observe-only mode."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from libs.common.contract.node import BLOCKED_CONDITION, Node
from libs.common.contract.node_patch import build_node_patch, build_status_patch
from libs.common.kube.errors import FenceFailed, Forbidden, Invalid, KubeError
from libs.common.kube.events import ObjectEvent
from libs.common.kube.transport import CONNECTIONS
from libs.common.observability import metrics, telemetry
from services.labeler.blocker import Blocker, build_condition
from services.labeler.event_deduplicator import EventDeduplicator
from services.labeler.mutation_cache import MutationCache
from services.labeler.node_event_recorder import NodeEventRecorder
from services.labeler.plan import Notice, Plan, merge_plans
from services.labeler.rejection import (
    NO_REJECTION,
    Rejection,
    describe_rejected_taints,
    extend_rejection,
    keeps_uninitialized,
)

# Requests for plans at once. Those that hang leave connections to what is said of the Nodes that wait.
_MAX_CONCURRENT_REQUESTS: Final = CONNECTIONS - 4

Planner = Callable[[Node, Rejection], Plan]  # for that Node, without what has been refused
ForeignNodePredicate = Callable[[Node], bool]  # whether the file has that Node be another's by now


class NodeClient(Protocol):
    """What the labeler may do there; `kube_api.KubeApi` does it."""

    async def get_node(self, name: str) -> Node: ...
    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node: ...
    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any], /) -> Node: ...
    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool: ...


class _RequestLimiter:
    """Lets so many requests for plans go at once, and knows for how long there has been none."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_REQUESTS)
        self._users = 0
        self._idle_since = float("-inf")

    def idle_seconds(self) -> float:
        """For how long nobody has been in here, or waited to be."""
        return 0.0 if self._users else asyncio.get_running_loop().time() - self._idle_since

    async def __aenter__(self) -> None:
        self._users += 1
        try:
            await self._slots.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._slots.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        self._idle_since = asyncio.get_running_loop().time()


class NodeWriter:
    """Carries out plans, at most one patch for the status and one for the Node each."""

    def __init__(
        self,
        kube: NodeClient,
        deduplicator: EventDeduplicator,
        mutation_cache: MutationCache,
        *,
        now: Callable[[], datetime],
        observe_only: bool,
        is_foreign: ForeignNodePredicate = lambda node: False,
    ) -> None:
        self._kube = kube
        self._limiter = _RequestLimiter()
        self.events = NodeEventRecorder(
            kube, deduplicator, now=now, idle_seconds=self._limiter.idle_seconds, is_foreign=is_foreign
        )
        self._mutation_cache = mutation_cache
        self._now = now
        self._observe_only = observe_only

    async def get(self, name: str) -> Node:
        """The Node as it is now. Raises NotFound."""
        async with self._limiter:
            return self._store_response(await self._kube.get_node(name))

    def latest(self, node: Node) -> Node:
        """What we see of a Node, or what the API server has told us of it since."""
        return self._mutation_cache.latest(node)

    async def apply(
        self, node: Node, planner: Planner, is_foreign: ForeignNodePredicate = lambda node: False
    ) -> Plan:
        """Make the Node what the plan says: addresses first, so that nothing lands on it before it has them.

        `is_foreign` is asked before each write: waiting for its turn takes long when the API server is slow.
        Raises KubeError; FenceFailed means that the Node is not what it was planned for.
        """
        plan = planner(node, NO_REJECTION)
        if self._observe_only:
            return plan
        unblocked = BLOCKED_CONDITION if plan.removes_condition else ""
        status = build_status_patch(
            node, addresses=plan.addresses, remove_condition=unblocked, now=self._now()
        )
        if not status:
            return await self._patch_until_accepted(node, plan, planner, is_foreign)
        async with self._limiter:
            _check_not_foreign(node, is_foreign)
            node = self._store_response(await self._kube.patch_node_status(node.name, status))
        rest = planner(node, NO_REJECTION)
        return merge_plans(plan, await self._patch_until_accepted(node, rest, planner, is_foreign))

    async def _patch_until_accepted(
        self, node: Node, plan: Plan, planner: Planner, is_foreign: ForeignNodePredicate
    ) -> Plan:
        """What of the plan is in the Node now: all, or all but what rules want and Kubernetes refuses."""
        refused, tried = NO_REJECTION, [plan]
        while (error := await self._try_patch(node, plan, is_foreign)) is not None:
            refused, plan = _drop_rejected_kinds(node, tried, planner, refused, error)
            tried.append(plan)
        return plan

    async def _try_patch(self, node: Node, plan: Plan, is_foreign: ForeignNodePredicate) -> KubeError | None:
        """Write it; why the API server did not, if that may be for what rules want."""
        try:
            await self._patch(node, plan, is_foreign)
        except (Invalid, Forbidden) as error:
            return error
        return None

    async def _patch(self, node: Node, plan: Plan, is_foreign: ForeignNodePredicate) -> None:
        operations = build_node_patch(node, plan.changes)
        if operations:
            async with self._limiter:
                _check_not_foreign(node, is_foreign)
                self._store_response(await self._kube.patch_node(node.name, operations))

    def report(self, node: Node, plan: Plan) -> None:
        """Measures and, behind the writes, Events of what has been written."""
        if self._observe_only:
            return
        if plan.outcome == "initialized":
            self._observe_sync_delay(node)
        self.events.enqueue(node, plan)

    async def report_blocker(self, node: Node, blocker: Blocker, *, with_event: bool) -> None:
        """Let the Node itself say why it waits. Raises KubeError."""
        if self._observe_only:
            return
        status = build_status_patch(node, set_condition=build_condition(blocker), now=self._now())
        if status:
            self._store_response(await self._kube.patch_node_status(node.name, status))
        if with_event:
            await self.events.record_now(node, Notice(reason=blocker.reason, message=blocker.message))

    async def publish_event(self, node: Node, notice: Notice) -> bool:
        """One Event on the Node; whether it was told (by us or, in the same minute, by another replica)."""
        return not self._observe_only and await self.events.record_now(node, notice)

    def _store_response(self, answer: Node) -> Node:
        self._mutation_cache.store(answer)
        return answer

    def _observe_sync_delay(self, node: Node) -> None:
        created = node.metadata.creation_timestamp
        if created is not None:
            seconds = (self._now() - created).total_seconds()
            metrics.TAINT_REMOVAL_DELAY.observe(seconds, telemetry.exemplar())
            metrics.INITIAL_SYNC_DELAY.observe(seconds)


def _drop_rejected_kinds(
    node: Node, tried_plans: Sequence[Plan], planner: Planner, rejection: Rejection, error: KubeError
) -> tuple[Rejection, Plan]:
    """The next plan to try, with less of what rules want. Raises the error when there is none."""
    fields: tuple[str, ...] = tuple(cause.field for cause in error.causes)
    while (more := extend_rejection(rejection, fields, str(error))) is not None:
        rejection, fields = more, ()
        plan = planner(node, rejection)
        if all(plan.changes != before.changes for before in tried_plans):
            if keeps_uninitialized(node, rejection):
                error.add_note(describe_rejected_taints(tried_plans[-1].changes.set_taints))
                break
            if isinstance(error, Forbidden) and node.is_initialized and not plan.node_summary:
                break  # perhaps a right is missing, and is granted soon: then it is tried again soon
            return rejection, plan
    raise error


def _check_not_foreign(node: Node, is_foreign: ForeignNodePredicate) -> None:
    if is_foreign(node):
        raise FenceFailed("by the --cloud-config file it is another's by now")
