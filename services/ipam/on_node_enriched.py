"""Claims and writes a block of each family for a Node without pod CIDRs, or waits and reports the reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, RequeueAfter, TemporaryError
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Message
from libs.common.contract.events import EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.contract.node import Node
from libs.common.contract.subjects import ENRICHED_NODE, object_name_in
from libs.common.kube.errors import FenceFailed, Forbidden, KubeError, NotFound
from libs.common.observability import metrics, telemetry
from services.ipam.allocator import Allocator
from services.ipam.batcher import Batcher
from services.ipam.core.allocation import AllocationRequest, Assignment, ExistingAssignment, NoBlock
from services.ipam.core.pools import CannotAllocate, NotManaged, NotReady, Pool
from services.ipam.reports import ASSIGNMENT_FAILED, NOT_AVAILABLE, NodeEvents
from services.ipam.waiting_nodes import WaitingNodes, WaitingOutcome

RETRY_SECONDS: Final = 30.0  # only a fallback: the change that a Node waits for triggers the next attempt
MISSING_NODE_WAIT_SECONDS: Final = 5.0  # by then the watcher has published the current state in Kubernetes
OTHER_REPLICA_WAIT_SECONDS: Final = 3.0  # for the replica that claimed the block, which writes at once

PoolSelector = Callable[[Node], tuple[Pool, ...] | NotReady | CannotAllocate | NotManaged]


@dataclass(eq=False, kw_only=True)
class OnNodeEnriched:
    """Gathers the current state, claims, writes and publishes. Nodes with pod CIDRs need nothing."""

    flow: Flow
    get_node: Callable[[str], Node | None]  # as last observed
    waiting_nodes: WaitingNodes
    select_pools: PoolSelector
    # The labels that decide ownership; ipam writes no block if one has changed.
    get_ownership_labels: Callable[[], tuple[str, ...]]
    batcher: Batcher
    allocator: Allocator
    decisions: DecisionPublisher
    node_events: NodeEvents
    observe_only: bool

    async def __call__(self, message: Message) -> None:
        """Process a message. Raises RequeueAfter for a wait, TemporaryError for a temporary failure."""
        event = message.event
        if not isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone):
            raise PermanentError(f"{type(event).__name__} is not an event about an enriched Node")
        name = event.name if isinstance(event, EnrichedNodeGone) else event.node.name
        if object_name_in(message.subject, ENRICHED_NODE) != name:
            raise PermanentError(f"{message.subject} contains another Node, {name}")
        await self.flow.wait_for(message)
        node = self._find_node_to_serve(message, event)
        if node is None:
            return
        if reason := self.flow.why_paused():
            raise TemporaryError(reason)
        pools = self.select_pools(node)
        match pools:
            case NotManaged(reason=reason):
                await self._skip_not_managed(node, reason)
            case NotReady(reason=reason):
                await self._requeue(node, "waiting", reason)
            case CannotAllocate(reason=reason):
                self.node_events.record(node.name, node.uid, NOT_AVAILABLE, reason)
                await self._requeue(node, "unserved", reason)
            case _ if self.observe_only:
                where = ", ".join(f"/{pool.mask} in {pool.cidr}" for pool in pools)
                await self.decisions.publish(node, "would-allocate", f"it would get {where}")
            case _:
                await self._serve(message, node, pools)

    # ---- gather

    def _find_node_to_serve(
        self, message: Message, event: NodeEnriched | NodeUnreachable | EnrichedNodeGone
    ) -> Node | None:
        """Return the current Node; None if it needs nothing."""
        skip_reason, node = self.flow.cache.why_outdated(message), None
        if isinstance(event, EnrichedNodeGone):
            skip_reason = skip_reason or "the Node is gone"
        elif not skip_reason:
            node = self.get_node(event.node.name)
            skip_reason = _explain_skip(node, event.node)
            if not skip_reason and self.waiting_nodes.awaits_observation(event.node):
                skip_reason = "its pod CIDRs were written or listed a moment ago"
        if not skip_reason:
            return node
        if node is not None:
            self.on_node_observed(node)
        telemetry.annotate(outcome="unchanged", reason=skip_reason)
        return None

    def on_node_observed(self, node: Node) -> None:
        """Handle an observation: a Node with podCIDRs waits no longer."""
        if not node.spec.pod_cidrs:
            return
        self.waiting_nodes.remove(node.name)
        self.node_events.forget(node.uid)

    # ---- claim, write and publish

    async def _serve(self, message: Message, node: Node, pools: tuple[Pool, ...]) -> None:
        request = AllocationRequest(uid=node.uid, node=node.name, pools=pools)
        try:
            result = await self.batcher.submit(request)
        except Forbidden as error:
            self.node_events.record(node.name, node.uid, ASSIGNMENT_FAILED, str(error))
            raise
        by_now = self.select_pools(self.get_node(node.name) or node)
        if isinstance(by_now, NotManaged):  # ownership may have changed during the claim
            await self._skip_not_managed(node, by_now.reason)
            return
        match result:
            case Assignment(is_new=False) if not (message.redelivered or self._wrote(node)):
                # The messages of a joining Node reach several replicas: the claiming replica writes.
                reason = "its blocks are claimed, and the claiming replica writes them soon"
                raise RequeueAfter(reason, retry_after_seconds=OTHER_REPLICA_WAIT_SECONDS)
            case Assignment() as assigned:
                await self._assign(node, assigned)
            case ExistingAssignment(pod_cidrs=cidrs):
                self.waiting_nodes.add_written(node, "a list of all Nodes contains its pod CIDRs")
                telemetry.annotate(outcome="settled", reason=f"it has {', '.join(cidrs)}")
            case NoBlock(reason=reason, is_exhausted=exhausted):
                if exhausted:  # other obstacles often disappear in a moment
                    self.node_events.record(node.name, node.uid, NOT_AVAILABLE, reason)
                await self._requeue(node, "unserved", reason, full_pools=pools if exhausted else ())

    async def _assign(self, node: Node, assignment: Assignment) -> None:
        try:
            await self.allocator.assign(node, assignment, self.get_ownership_labels())
        except (FenceFailed, NotFound) as error:
            # Usually another replica has patched the Node with the same claim.
            self.waiting_nodes.remove(node.name)
            reason = "fence failed: the Node in Kubernetes differs or has pod CIDRs"
            raise RequeueAfter(reason, str(error), retry_after_seconds=MISSING_NODE_WAIT_SECONDS) from error
        except KubeError as error:
            # A missing right lasts until an operator grants it.
            if isinstance(error, Forbidden) or not isinstance(error, TemporaryError):
                self.node_events.record(node.name, node.uid, ASSIGNMENT_FAILED, str(error))
            raise
        self.waiting_nodes.add_written(node, "this replica wrote its pod CIDRs a moment ago")
        self.node_events.forget(node.uid)
        metrics.IPAM_NODES_SERVED.inc()
        given = ", ".join(assignment.pod_cidrs)
        await self.decisions.publish(node, "allocated", f"it has {given}", changes=(f"podCIDRs: {given}",))

    def _wrote(self, node: Node) -> bool:
        """Whether this replica wrote that very Node, and no message about it will come again."""
        return self.waiting_nodes.get_outcome(node) in ("written", "removed")

    async def _skip_not_managed(self, node: Node, reason: str) -> None:
        self.waiting_nodes.add(node, "not-ours", reason)
        await self.decisions.publish(node, "not-ours", reason)

    async def _requeue(
        self, node: Node, outcome: WaitingOutcome, reason: str, *, full_pools: tuple[Pool, ...] = ()
    ) -> NoReturn:
        """Record the wait and publish it. Raises RequeueAfter."""
        self.waiting_nodes.add(node, outcome, reason, full_pools)
        await self.decisions.publish(node, outcome, reason)
        raise RequeueAfter(outcome, reason, retry_after_seconds=RETRY_SECONDS)


def _explain_skip(node: Node | None, current: Node) -> str:
    """Return why the Node of a message needs nothing, by the current state; "" if it needs a block."""
    if node is None:
        return "the Node is gone"
    if node.uid != current.uid:
        return "a newer Node has the same name"
    return f"it has {', '.join(node.spec.pod_cidrs)}" if node.spec.pod_cidrs else ""
