"""A Node without pod CIDRs: a block of each family is claimed and written, or it waits and says why."""

from collections.abc import Callable
from typing import Final, NoReturn

from libs.common import metrics, telemetry
from libs.common.bus import Message
from libs.common.decisions import Decisions
from libs.common.delivery import NotYet, PermanentError, TemporaryError
from libs.common.events import EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.flow_table import FlowTable
from libs.common.kube_api.errors import FenceFailed, KubeError, NotFound
from libs.common.node import Node
from libs.common.subjects import ENRICHED_NODE, name_in
from libs.common.watch_flow import WatchFlow
from services.ipam.allocator import Allocator
from services.ipam.gathering import Gathering
from services.ipam.known_nodes import KnownNodes
from services.ipam.node_events import ASSIGNMENT_FAILED, NOT_AVAILABLE, NodeEvents
from services.ipam.outcomes import NotOurs, Unserved, Wait
from services.ipam.plan import Assigned, Carries, Refused, Want
from services.ipam.pools import Pool
from services.ipam.waiting import NOT_OURS, WaitingNode, WaitingNodes

AGAIN_SECONDS: Final = 30.0  # a safety net: what a Node waits for is heard of when it happens
SETTLES_SECONDS: Final = 5.0  # the watcher has told by then what Kubernetes holds instead
LEFT_SECONDS: Final = 3.0  # to the replica that claimed it: it writes at once
_BELIEVED_SECONDS: Final = 60.0  # what we have written; an etcd restored from a backup goes back
_MOST_KNOWN: Final = 20_000

PoolsOf = Callable[[Node], tuple[Pool, ...] | Wait | Unserved | NotOurs]


class OnNodeEnriched:
    """Gather the newest view, claim with others, write, tell. Who is gone or has pod CIDRs gets nothing."""

    def __init__(
        self,
        *,
        table: FlowTable,
        flow: WatchFlow,
        known: KnownNodes,
        waiting: WaitingNodes,
        pools_of: PoolsOf,
        held_labels: Callable[[], tuple[str, ...]],
        gathering: Gathering,
        allocator: Allocator,
        decisions: Decisions,
        events: NodeEvents,
        paused: Callable[[], str],
        served: Callable[[tuple[Pool, ...]], None],
        foreign: Callable[[], None],
        observe_only: bool,
        clock: Callable[[], float],
    ) -> None:
        """`paused` says why nothing may be written for now, "" if it may; `clock` is monotonic, in seconds.

        `held_labels`: by which a Node is ours: where one has changed, no block is written.
        `served` hears that pools had a block for a Node that had waited for room in them; `foreign` that a
        Node has other podCIDRs than were claimed for it.
        """
        self._table = table
        self._flow = flow
        self._known = known
        self._waiting = waiting
        self._pools_of = pools_of
        self._held_labels = held_labels
        self._gathering = gathering
        self._allocator = allocator
        self._decisions = decisions
        self._events = events
        self._paused = paused
        self._served = served
        self._foreign = foreign
        self._observe_only = observe_only
        self._clock = clock
        self._written: dict[str, tuple[str, float]] = {}  # Node -> uid, when
        self._refused: dict[str, Assigned] = {}  # Node -> what failed at the fences

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._written.pop(name, None)
        self._refused.pop(name, None)

    def forget_all(self) -> None:
        """Another stream."""
        self._written.clear()
        self._refused.clear()

    async def __call__(self, message: Message) -> None:
        """Raises NotYet while it waits, TemporaryError for what the world may cure."""
        event = message.event
        if not isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone):
            raise PermanentError(f"{type(event).__name__} is no event about an enriched node")
        name = event.name if isinstance(event, EnrichedNodeGone) else event.node.name
        if name_in(message.subject, ENRICHED_NODE) != name:
            raise PermanentError(f"{message.subject} speaks of another node, {name}")
        is_known = event.incarnation == self._table.incarnation
        await self._flow.reached(message.sequence if is_known else 0)
        node = self._node_to_serve(message, event)
        if node is None:
            return
        if reason := self._paused():
            raise TemporaryError(reason)
        pools = self._pools_of(node)
        match pools:
            case NotOurs(reason=reason):
                await self._leave_alone(node, reason)
            case Wait(reason=reason):
                await self._wait(node, "waiting", reason)
            case Unserved(reason=reason):
                self._events.tell(node.name, node.uid, NOT_AVAILABLE, reason)
                await self._wait(node, "unserved", reason)
            case _ if self._observe_only:
                where = ", ".join(f"/{pool.mask} in {pool.cidr}" for pool in pools)
                await self._decisions.publish(node, "would-allocate", f"it would get {where}")
            case _:
                await self._serve(message, node, pools)

    # ---- gather

    def _node_to_serve(
        self, message: Message, event: NodeEnriched | NodeUnreachable | EnrichedNodeGone
    ) -> Node | None:
        """The Node as it is known now; None if there is nothing to do for it."""
        settled, node = "", None
        newest = self._table.last(message.subject)
        if event.incarnation != self._table.incarnation:
            settled = "it was written for another incarnation of the stream"
        elif newest is not None and newest.sequence > message.sequence:
            settled = "newer word of this node is on its way"
        elif isinstance(event, EnrichedNodeGone):
            settled = "the node is gone"
        else:
            node = self._known.node(event.node.name)
            settled = _why_not(node, event.node) or self._given(event.node)
        if not settled:
            return node
        if node is not None:
            self.heard_of(node)
        telemetry.annotate(outcome="unchanged", reason=settled)
        return None

    def _given(self, node: Node) -> str:
        """Whether the watcher may not have seen yet that it was served here, in words."""
        uid, at = self._written.get(node.name, ("", 0.0))
        is_ours = uid == node.uid and self._clock() - at < _BELIEVED_SECONDS
        return "it was served here a moment ago" if is_ours else ""

    def heard_of(self, node: Node) -> None:
        """The watcher says that it is so: whoever has podCIDRs waits for none."""
        if not node.spec.pod_cidrs:
            return
        self._waiting.left(node.name)
        self._events.served(node.uid)
        refused = self._refused.pop(node.name, None)
        if refused is not None and refused.uid == node.uid and refused.pod_cidrs != node.spec.pod_cidrs:
            self._foreign()

    # ---- claim, write, tell

    async def _serve(self, message: Message, node: Node, pools: tuple[Pool, ...]) -> None:
        answered = await self._gathering.answer(Want(uid=node.uid, node=node.name, pools=pools))
        by_now = self._pools_of(self._known.node(node.name) or node)
        if isinstance(by_now, NotOurs):  # the claim took its time
            await self._leave_alone(node, by_now.reason)
            return
        match answered.answer:
            case Assigned() if not (answered.is_new or message.redelivered):
                # While a Node joins, its messages come to one replica and another: the first one writes it.
                reason = "its blocks are claimed, and will be written in a moment"
                raise NotYet(reason, retry_after_seconds=LEFT_SECONDS)
            case Assigned() as assigned:
                await self._give(node, assigned)
            case Carries(pod_cidrs=cidrs):
                self._waiting.left(node.name)
                telemetry.annotate(outcome="settled", reason=f"it has {', '.join(cidrs)}")
            case Refused(reason=reason, exhausted=exhausted):
                if exhausted:  # what stands in the way of a page often is gone in a moment
                    self._events.tell(node.name, node.uid, NOT_AVAILABLE, reason)
                await self._wait(node, "unserved", reason, room_in=pools if exhausted else ())

    async def _give(self, node: Node, assigned: Assigned) -> None:
        try:
            await self._allocator.give(node, assigned, self._held_labels())
        except (FenceFailed, NotFound) as error:
            # Another replica's patch of the same claim, most often.
            self._waiting.left(node.name)
            self._refused[node.name] = assigned
            reason = "Kubernetes holds another Node, or it has pod CIDRs"
            raise NotYet(reason, str(error), retry_after_seconds=SETTLES_SECONDS) from error
        except KubeError as error:
            if not isinstance(error, TemporaryError):
                self._events.tell(node.name, node.uid, ASSIGNMENT_FAILED, str(error))
            raise
        self._written[node.name] = (node.uid, self._clock())
        if len(self._written) > _MOST_KNOWN:
            del self._written[next(iter(self._written))]
        waited = self._waiting.left(node.name)
        self._events.served(node.uid)
        metrics.IPAM_NODES_SERVED.inc()
        given = ", ".join(assigned.pod_cidrs)
        await self._decisions.publish(node, "allocated", f"it has {given}", changes=(f"podCIDRs: {given}",))
        if waited is not None and waited.room_in:
            self._served(waited.room_in)

    async def _leave_alone(self, node: Node, reason: str) -> None:
        self._remember(node, NOT_OURS, reason)
        await self._decisions.publish(node, NOT_OURS, reason)

    async def _wait(
        self, node: Node, outcome: str, reason: str, *, room_in: tuple[Pool, ...] = ()
    ) -> NoReturn:
        """Raises NotYet."""
        self._remember(node, outcome, reason, room_in=room_in)
        await self._decisions.publish(node, outcome, reason)
        raise NotYet(outcome, reason, retry_after_seconds=AGAIN_SECONDS)

    def _remember(self, node: Node, outcome: str, reason: str, *, room_in: tuple[Pool, ...] = ()) -> None:
        """It is looked at again when more is known."""
        waits = WaitingNode(
            name=node.name, uid=node.uid, outcome=outcome, reason=reason, room_in=room_in, since=self._clock()
        )
        self._waiting.waits(waits)


def _why_not(node: Node | None, told: Node) -> str:
    """Why the Node that a message is about needs nothing, by what is known of it; "" if it does."""
    if node is None:
        return "the node is gone"
    if node.uid != told.uid:
        return "another node has its name by now"
    return f"it has {', '.join(node.spec.pod_cidrs)}" if node.spec.pod_cidrs else ""
