"""Claims and writes a block of each family for a Node without pod CIDRs, or waits and reports the reason."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, RequeueAfter, TemporaryError
from libs.common.bus.follow_flow import CacheSync
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.contract.node import Node
from libs.common.contract.subjects import ENRICHED_NODE, object_name_in
from libs.common.kube.errors import FenceFailed, KubeError, NotFound
from libs.common.observability import metrics, telemetry
from libs.common.service.waiting_objects import WaitingObject, WaitingObjects
from services.ipam.allocator import Allocator
from services.ipam.batcher import Batcher
from services.ipam.core.allocation import AllocationRequest, Assignment, ExistingAssignment, NoBlock
from services.ipam.core.node_index import NodeIndex
from services.ipam.core.pools import CannotAllocate, NotManaged, NotReady, Pool
from services.ipam.reports import ASSIGNMENT_FAILED, NOT_AVAILABLE, NodeEvents

RETRY_SECONDS: Final = 30.0  # only a fallback: the change that a Node waits for triggers the next attempt
MISSING_NODE_WAIT_SECONDS: Final = 5.0  # by then the watcher has published the current state in Kubernetes
OTHER_REPLICA_WAIT_SECONDS: Final = 3.0  # for the replica that claimed the block, which writes at once
# for the observation of an own write; then the observed state counts: etcd may be restored from a backup
OWN_WRITE_WAIT_SECONDS: Final = 20.0

NOT_MANAGED: Final = "not-ours"  # another controller's Node; it gets no Event and waits for another file
WRITTEN: Final = "written"  # its pod CIDRs were written or listed a moment ago, and are not observed yet
REMOVED: Final = "removed"  # it was observed with pod CIDRs and now has none: etcd was restored from a backup

PoolSelector = Callable[[Node], tuple[Pool, ...] | NotReady | CannotAllocate | NotManaged]


class WaitingNode(WaitingObject, frozen=True, kw_only=True):
    """A Node that got no pod CIDRs yet."""

    # "waiting": a fact is missing; "unserved": an operator must change the configuration; or one of the above
    outcome: str
    full_pools: tuple[Pool, ...] = ()  # pools of this Node without a free block

    @property
    def causes(self) -> tuple[tuple[Pool, ...], ...]:
        """The full pools: a block of all of them ends the wait."""
        return (self.full_pools,) if self.full_pools else ()

    @property
    def is_reported(self) -> bool:
        """Whether the Node lacks pod CIDRs that ipam must allocate."""
        return self.outcome not in (NOT_MANAGED, WRITTEN, REMOVED)


@dataclass(eq=False, kw_only=True)
class OnNodeEnriched:
    """Gathers the current state, claims, writes and publishes. Nodes with pod CIDRs need nothing."""

    stream_cache: StreamCache
    cache_sync: CacheSync
    node_index: NodeIndex
    waiting_nodes: WaitingObjects[WaitingNode]
    select_pools: PoolSelector
    # The labels that decide ownership; ipam writes no block if one has changed.
    get_ownership_labels: Callable[[], tuple[str, ...]]
    batcher: Batcher
    allocator: Allocator
    decisions: DecisionPublisher
    node_events: NodeEvents
    get_pause_reason: Callable[[], str]  # why ipam may write nothing now, or ""
    on_served: Callable[[tuple[Pool, ...]], None]  # receives pools that had a block for a waiting Node
    observe_only: bool
    clock: Callable[[], float]  # monotonic, in seconds

    async def __call__(self, message: Message) -> None:
        """Process a message. Raises RequeueAfter for a wait, TemporaryError for a temporary failure."""
        event = message.event
        if not isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone):
            raise PermanentError(f"{type(event).__name__} is not an event about an enriched Node")
        name = event.name if isinstance(event, EnrichedNodeGone) else event.node.name
        if object_name_in(message.subject, ENRICHED_NODE) != name:
            raise PermanentError(f"{message.subject} contains another Node, {name}")
        await self.cache_sync.wait_for(message)
        node = self._find_node_to_serve(message, event)
        if node is None:
            return
        if reason := self.get_pause_reason():
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
        skip_reason, node = "", None
        newest = self.stream_cache.get(message.subject)
        if self.stream_cache.is_foreign(message):
            skip_reason = "the message was published for a former stream"
        elif newest is not None and newest.sequence > message.sequence:
            skip_reason = "the stream contains a newer event about this Node"
        elif isinstance(event, EnrichedNodeGone):
            skip_reason = "the Node is gone"
        else:
            node = self.node_index.get(event.node.name)
            skip_reason = _explain_skip(node, event.node) or self._await_observation(event.node)
        if not skip_reason:
            return node
        if node is not None:
            self.on_node_observed(node)
        telemetry.annotate(outcome="unchanged", reason=skip_reason)
        return None

    def _await_observation(self, node: Node) -> str:
        """Return that the pod CIDRs of the Node were written a moment ago and are not observed yet, or ""."""
        waits = self.waiting_nodes.by_name.get(node.name)
        if waits is None or waits.uid != node.uid or waits.outcome != WRITTEN:
            return ""
        waited = self.waiting_nodes.waiting_seconds(node.name, self.clock())
        return waits.reason if waited < OWN_WRITE_WAIT_SECONDS else ""

    def _has_own_claim(self, node: Node) -> bool:
        """Whether this replica wrote that very Node, and no message about it will come again."""
        waits = self.waiting_nodes.by_name.get(node.name)
        return waits is not None and waits.uid == node.uid and waits.outcome in (WRITTEN, REMOVED)

    def on_pod_cidrs_removed(self, node: Node) -> None:
        """Handle an observation without podCIDRs after one with them. The reconciler processes the Node."""
        self._mark_waiting(node, REMOVED, "its pod CIDRs have disappeared", retry_after=0.0)

    def on_node_observed(self, node: Node) -> None:
        """Handle an observation: a Node with podCIDRs waits no longer."""
        if not node.spec.pod_cidrs:
            return
        self.waiting_nodes.finish(node.name, node.name)
        self.node_events.forget(node.uid)

    # ---- claim, write and publish

    async def _serve(self, message: Message, node: Node, pools: tuple[Pool, ...]) -> None:
        result = await self.batcher.submit(AllocationRequest(uid=node.uid, node=node.name, pools=pools))
        by_now = self.select_pools(self.node_index.get(node.name) or node)
        if isinstance(by_now, NotManaged):  # ownership may have changed during the claim
            await self._skip_not_managed(node, by_now.reason)
            return
        match result:
            case Assignment(is_new=False) if not (message.redelivered or self._has_own_claim(node)):
                # The messages of a joining Node reach several replicas: the claiming replica writes.
                reason = "its blocks are claimed, and the claiming replica writes them soon"
                raise RequeueAfter(reason, retry_after_seconds=OTHER_REPLICA_WAIT_SECONDS)
            case Assignment() as assigned:
                await self._assign(node, assigned)
            case ExistingAssignment(pod_cidrs=cidrs):
                self._await_observed(node, "a list of all Nodes contains its pod CIDRs")
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
            self.waiting_nodes.finish(node.name, node.name)
            reason = "fence failed: the Node in Kubernetes differs or has pod CIDRs"
            raise RequeueAfter(reason, str(error), retry_after_seconds=MISSING_NODE_WAIT_SECONDS) from error
        except KubeError as error:
            if not isinstance(error, TemporaryError):
                self.node_events.record(node.name, node.uid, ASSIGNMENT_FAILED, str(error))
            raise
        waited = self._await_observed(node, "this replica wrote its pod CIDRs a moment ago")
        self.node_events.forget(node.uid)
        metrics.IPAM_NODES_SERVED.inc()
        given = ", ".join(assignment.pod_cidrs)
        await self.decisions.publish(node, "allocated", f"it has {given}", changes=(f"podCIDRs: {given}",))
        if waited is not None and waited.full_pools:
            self.on_served(waited.full_pools)

    def _await_observed(self, node: Node, reason: str) -> WaitingNode | None:
        """Process the Node again if its pod CIDRs are not observed in time; return its former wait."""
        waited = self.waiting_nodes.finish(node.name, node.name)
        self._mark_waiting(node, WRITTEN, reason, retry_after=OWN_WRITE_WAIT_SECONDS)
        return waited

    async def _skip_not_managed(self, node: Node, reason: str) -> None:
        self._mark_waiting(node, NOT_MANAGED, reason)
        await self.decisions.publish(node, NOT_MANAGED, reason)

    async def _requeue(
        self, node: Node, outcome: str, reason: str, *, full_pools: tuple[Pool, ...] = ()
    ) -> NoReturn:
        """Record the wait and publish it. Raises RequeueAfter."""
        self._mark_waiting(node, outcome, reason, full_pools=full_pools)
        await self.decisions.publish(node, outcome, reason)
        raise RequeueAfter(outcome, reason, retry_after_seconds=RETRY_SECONDS)

    def _mark_waiting(
        self,
        node: Node,
        outcome: str,
        reason: str,
        *,
        full_pools: tuple[Pool, ...] = (),
        retry_after: float = math.inf,
    ) -> None:
        """Record the wait; the reconciler retries the Node after a relevant change."""
        waits = WaitingNode(
            name=node.name,
            uid=node.uid,
            outcome=outcome,
            reason=reason,
            full_pools=full_pools,
            retry_at=self.clock() + retry_after,
        )
        self.waiting_nodes.add(waits, self.clock())


def _explain_skip(node: Node | None, current: Node) -> str:
    """Return why the Node of a message needs nothing, by the current state; "" if it needs a block."""
    if node is None:
        return "the Node is gone"
    if node.uid != current.uid:
        return "a newer Node has the same name"
    return f"it has {', '.join(node.spec.pod_cidrs)}" if node.spec.pod_cidrs else ""
