"""A Node without pod CIDRs: a block of each family is claimed and written, or it waits and says why."""

from collections.abc import Callable
from typing import Final, NoReturn

from libs.common.bus.cache_sync import CacheSync
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, RequeueAfter, TemporaryError
from libs.common.bus.protocol import Message
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.contract.node import Node
from libs.common.contract.subjects import ENRICHED_NODE, object_name_in
from libs.common.kube.errors import FenceFailed, KubeError, NotFound
from libs.common.observability import metrics, telemetry
from services.ipam.allocation_plan import AllocationRequest, Assignment, ExistingAssignment, NoBlock
from services.ipam.allocator import Allocator
from services.ipam.batcher import Batcher
from services.ipam.node_event_recorder import ASSIGNMENT_FAILED, NOT_AVAILABLE, NodeEventRecorder
from services.ipam.node_index import NodeIndex
from services.ipam.pool_selection import Pool
from services.ipam.unallocated_reasons import CannotAllocate, NotManaged, NotReady
from services.ipam.waiting_nodes import NOT_MANAGED, WaitingNode, WaitingNodes

RETRY_SECONDS: Final = 30.0  # a safety net: what a Node waits for is heard of when it happens
MISSING_NODE_WAIT_SECONDS: Final = 5.0  # the watcher has told by then what Kubernetes holds instead
OTHER_REPLICA_WAIT_SECONDS: Final = 3.0  # to the replica that claimed it: it writes at once
_OWN_WRITE_TTL_SECONDS: Final = 60.0  # what we have written; an etcd restored from a backup goes back
_MAX_REMEMBERED: Final = 20_000

PoolSelector = Callable[[Node], tuple[Pool, ...] | NotReady | CannotAllocate | NotManaged]


class OnNodeEnriched:
    """Gather the newest view, claim with others, write, tell. Who is gone or has pod CIDRs gets nothing."""

    def __init__(
        self,
        *,
        stream_cache: StreamCache,
        cache_sync: CacheSync,
        node_index: NodeIndex,
        waiting_nodes: WaitingNodes,
        select_pools: PoolSelector,
        get_ownership_labels: Callable[[], tuple[str, ...]],
        batcher: Batcher,
        allocator: Allocator,
        decisions: DecisionPublisher,
        event_recorder: NodeEventRecorder,
        get_pause_reason: Callable[[], str],
        on_served: Callable[[tuple[Pool, ...]], None],
        on_foreign_cidrs: Callable[[], None],
        observe_only: bool,
        clock: Callable[[], float],
    ) -> None:
        """`paused` says why nothing may be written for now, "" if it may; `clock` is monotonic, in seconds.

        `held_labels`: by which a Node is ours: where one has changed, no block is written.
        `served` hears that pools had a block for a Node that had waited for room in them; `foreign` that a
        Node has other podCIDRs than were claimed for it.
        """
        self._stream_cache = stream_cache
        self._cache_sync = cache_sync
        self._node_index = node_index
        self._waiting_nodes = waiting_nodes
        self._select_pools = select_pools
        self._get_ownership_labels = get_ownership_labels
        self._batcher = batcher
        self._allocator = allocator
        self._decisions = decisions
        self._event_recorder = event_recorder
        self._get_pause_reason = get_pause_reason
        self._on_served = on_served
        self._on_foreign_cidrs = on_foreign_cidrs
        self._observe_only = observe_only
        self._clock = clock
        self._written: dict[str, tuple[str, float]] = {}  # Node -> uid, when
        self._no_blocks: dict[str, Assignment] = {}  # Node -> what failed at the fences

    def forget_node(self, name: str) -> None:
        """The Node is gone."""
        self._written.pop(name, None)
        self._no_blocks.pop(name, None)

    def reset(self) -> None:
        """Another stream."""
        self._written.clear()
        self._no_blocks.clear()

    async def __call__(self, message: Message) -> None:
        """Raises RequeueAfter while it waits, TemporaryError for what the world may cure."""
        event = message.event
        if not isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone):
            raise PermanentError(f"{type(event).__name__} is no event about an enriched node")
        name = event.name if isinstance(event, EnrichedNodeGone) else event.node.name
        if object_name_in(message.subject, ENRICHED_NODE) != name:
            raise PermanentError(f"{message.subject} speaks of another node, {name}")
        is_known = event.stream_id == self._stream_cache.stream_id
        await self._cache_sync.wait_for(message.sequence if is_known else 0)
        node = self._find_node_to_serve(message, event)
        if node is None:
            return
        if reason := self._get_pause_reason():
            raise TemporaryError(reason)
        pools = self._select_pools(node)
        match pools:
            case NotManaged(reason=reason):
                await self._skip_not_managed(node, reason)
            case NotReady(reason=reason):
                await self._requeue(node, "waiting", reason)
            case CannotAllocate(reason=reason):
                self._event_recorder.record(node.name, node.uid, NOT_AVAILABLE, reason)
                await self._requeue(node, "unserved", reason)
            case _ if self._observe_only:
                where = ", ".join(f"/{pool.mask} in {pool.cidr}" for pool in pools)
                await self._decisions.publish(node, "would-allocate", f"it would get {where}")
            case _:
                await self._serve(message, node, pools)

    # ---- gather

    def _find_node_to_serve(
        self, message: Message, event: NodeEnriched | NodeUnreachable | EnrichedNodeGone
    ) -> Node | None:
        """The Node as it is known now; None if there is nothing to do for it."""
        settled, node = "", None
        newest = self._stream_cache.get(message.subject)
        if event.stream_id != self._stream_cache.stream_id:
            settled = "it was written for another incarnation of the stream"
        elif newest is not None and newest.sequence > message.sequence:
            settled = "newer word of this node is on its way"
        elif isinstance(event, EnrichedNodeGone):
            settled = "the node is gone"
        else:
            node = self._node_index.get(event.node.name)
            settled = _explain_skip(node, event.node) or self._explain_recent_write(event.node)
        if not settled:
            return node
        if node is not None:
            self.on_node_observed(node)
        telemetry.annotate(outcome="unchanged", reason=settled)
        return None

    def _explain_recent_write(self, node: Node) -> str:
        """Whether the watcher may not have seen yet that it was served here, in words."""
        uid, at = self._written.get(node.name, ("", 0.0))
        is_ours = uid == node.uid and self._clock() - at < _OWN_WRITE_TTL_SECONDS
        return "it was served here a moment ago" if is_ours else ""

    def on_node_observed(self, node: Node) -> None:
        """The watcher says that it is so: whoever has podCIDRs waits for none."""
        if not node.spec.pod_cidrs:
            return
        self._waiting_nodes.remove(node.name)
        self._event_recorder.forget(node.uid)
        refused = self._no_blocks.pop(node.name, None)
        if refused is not None and refused.uid == node.uid and refused.pod_cidrs != node.spec.pod_cidrs:
            self._on_foreign_cidrs()

    # ---- claim, write, tell

    async def _serve(self, message: Message, node: Node, pools: tuple[Pool, ...]) -> None:
        answered = await self._batcher.submit(AllocationRequest(uid=node.uid, node=node.name, pools=pools))
        by_now = self._select_pools(self._node_index.get(node.name) or node)
        if isinstance(by_now, NotManaged):  # the claim took its time
            await self._skip_not_managed(node, by_now.reason)
            return
        match answered.result:
            case Assignment() if not (answered.is_new or message.redelivered):
                # While a Node joins, its messages come to one replica and another: the first one writes it.
                reason = "its blocks are claimed, and will be written in a moment"
                raise RequeueAfter(reason, retry_after_seconds=OTHER_REPLICA_WAIT_SECONDS)
            case Assignment() as assigned:
                await self._assign(node, assigned)
            case ExistingAssignment(pod_cidrs=cidrs):
                self._waiting_nodes.remove(node.name)
                telemetry.annotate(outcome="settled", reason=f"it has {', '.join(cidrs)}")
            case NoBlock(reason=reason, is_exhausted=exhausted):
                if exhausted:  # what stands in the way of a page often is gone in a moment
                    self._event_recorder.record(node.name, node.uid, NOT_AVAILABLE, reason)
                await self._requeue(node, "unserved", reason, full_pools=pools if exhausted else ())

    async def _assign(self, node: Node, assignment: Assignment) -> None:
        try:
            await self._allocator.assign(node, assignment, self._get_ownership_labels())
        except (FenceFailed, NotFound) as error:
            # Another replica's patch of the same claim, most often.
            self._waiting_nodes.remove(node.name)
            self._no_blocks[node.name] = assignment
            reason = "Kubernetes holds another Node, or it has pod CIDRs"
            raise RequeueAfter(reason, str(error), retry_after_seconds=MISSING_NODE_WAIT_SECONDS) from error
        except KubeError as error:
            if not isinstance(error, TemporaryError):
                self._event_recorder.record(node.name, node.uid, ASSIGNMENT_FAILED, str(error))
            raise
        self._written[node.name] = (node.uid, self._clock())
        if len(self._written) > _MAX_REMEMBERED:
            del self._written[next(iter(self._written))]
        waited = self._waiting_nodes.remove(node.name)
        self._event_recorder.forget(node.uid)
        metrics.IPAM_NODES_SERVED.inc()
        given = ", ".join(assignment.pod_cidrs)
        await self._decisions.publish(node, "allocated", f"it has {given}", changes=(f"podCIDRs: {given}",))
        if waited is not None and waited.full_pools:
            self._on_served(waited.full_pools)

    async def _skip_not_managed(self, node: Node, reason: str) -> None:
        self._mark_waiting(node, NOT_MANAGED, reason)
        await self._decisions.publish(node, NOT_MANAGED, reason)

    async def _requeue(
        self, node: Node, outcome: str, reason: str, *, full_pools: tuple[Pool, ...] = ()
    ) -> NoReturn:
        """Raises RequeueAfter."""
        self._mark_waiting(node, outcome, reason, full_pools=full_pools)
        await self._decisions.publish(node, outcome, reason)
        raise RequeueAfter(outcome, reason, retry_after_seconds=RETRY_SECONDS)

    def _mark_waiting(
        self, node: Node, outcome: str, reason: str, *, full_pools: tuple[Pool, ...] = ()
    ) -> None:
        """It is looked at again when more is known."""
        waits = WaitingNode(
            name=node.name,
            uid=node.uid,
            outcome=outcome,
            reason=reason,
            full_pools=full_pools,
            waiting_since=self._clock(),
        )
        self._waiting_nodes.add(waits)


def _explain_skip(node: Node | None, current: Node) -> str:
    """Why the Node that a message is about needs nothing, by what is known of it; "" if it does."""
    if node is None:
        return "the node is gone"
    if node.uid != current.uid:
        return "another node has its name by now"
    return f"it has {', '.join(node.spec.pod_cidrs)}" if node.spec.pod_cidrs else ""
