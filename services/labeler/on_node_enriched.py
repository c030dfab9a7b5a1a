"""A Node and what its machine says of itself, or why it says nothing: make the Node say the same."""

from collections.abc import Callable
from typing import Final

from libs.common import metrics, telemetry
from libs.common.bus import Bus, BusError, Message
from libs.common.delivery import PermanentError, TemporaryError
from libs.common.events import EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.flow_table import FlowTable
from libs.common.kube_api.errors import FenceFailed, KubeError, NotFound
from libs.common.node import Node
from libs.common.subjects import ENRICHED_NODE, OBSERVED_NODE
from services.labeler.blocked import failed_write
from services.labeler.decisions import Decisions
from services.labeler.freshest import freshest
from services.labeler.node_api import IsForeign, NodeApi, PlanFor
from services.labeler.other_rules import OtherRules
from services.labeler.plan import Global, Plan, plan_node, plan_unreachable
from services.labeler.refused import Refused
from services.labeler.waiting import WaitingNodes, is_left_alone

TRANSFORMER_TYPE: Final = "transformer"  # the only type in the reference's code; its docs name another one
_DURATION: Final = metrics.TRANSFORMER_DURATION.labels(TRANSFORMER_TYPE)
_ERRORS: Final = metrics.TRANSFORMER_ERRORS.labels(TRANSFORMER_TYPE)


class _LeftToAnotherReplica(Exception):
    """Nothing is to be written here for now."""


class OnNodeEnriched:
    """Gather the newest view, decide, apply, tell. A message about a Node that is gone does nothing."""

    def __init__(
        self,
        *,
        bus: Bus,
        table: FlowTable,
        nodes: NodeApi,
        decisions: Decisions,
        waiting: WaitingNodes,
        config: Callable[[], Global],
        paused: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        """`config` is what holds now; `paused` says why nothing may be written for now, "" if it may.

        `clock` is monotonic, in seconds.
        """
        self._bus = bus
        self._table = table
        self._nodes = nodes
        self._decisions = decisions
        self._waiting = waiting
        self._config = config
        self._paused = paused
        self._clock = clock
        self._other_rules = OtherRules(clock)
        self._obeyed: dict[str, tuple[int, Global]] = {}  # subject -> the last word that was carried out

    async def __call__(self, message: Message) -> None:
        """Raises TemporaryError for what the world may cure, PermanentError for what is no enriched Node."""
        await self.look(message)

    def has_obeyed(self, message: Message) -> bool:
        """Whether this word was carried out here, by what holds now."""
        sequence, config = self._obeyed.get(message.subject, (0, None))
        return sequence == message.sequence and config is self._config()

    def forget(self, name: str) -> None:
        """The Node is gone."""
        self._obeyed.pop(f"{ENRICHED_NODE}.{name}", None)
        self._other_rules.forget(name)

    def rules_changed(self) -> None:
        """What `config` says is new."""
        self._other_rules.changed()

    def forget_all(self) -> None:
        """Another stream: sequences mean something else from here on."""
        self._obeyed.clear()

    async def look(self, message: Message) -> str:
        """The same; what became of the Node, as it is told."""
        event = message.event
        if not isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone):
            raise PermanentError(f"{type(event).__name__} is no event about an enriched Node")
        outdated = self._why_outdated(message, event.incarnation)
        if outdated:
            return _superseded(outdated)
        if isinstance(event, EnrichedNodeGone):
            self._obeyed.pop(message.subject, None)
            telemetry.annotate(outcome="gone")
            return "gone"
        reason = self._paused()
        if reason:
            raise TemporaryError(reason)
        node = freshest(event, self._table.last(f"{OBSERVED_NODE}.{event.node.name}"))
        if node is None:
            return _superseded("the Node is gone, or another one by now")
        return await self._carry_out(message, event, self._nodes.newest(node))

    def _why_outdated(self, message: Message, incarnation: str) -> str:
        if incarnation != self._table.incarnation:
            if self._table.problems():
                raise TemporaryError("the flow is not followed yet", "; ".join(self._table.problems()))
            return "it was written for another incarnation of the stream"
        newest = self._table.last(message.subject)
        if newest is not None and newest.sequence > message.sequence:
            return "newer word of this Node is on its way"
        return ""

    async def _carry_out(self, message: Message, event: NodeEnriched | NodeUnreachable, node: Node) -> str:
        config = self._config()
        try:
            plan = await self._apply(message, node, self._plan_for(event), self._is_foreign_by(event))
        except _LeftToAnotherReplica as reason:
            return _superseded(str(reason))  # the next word of the Node, at the latest a resync, asks again
        except NotFound:
            plan = None
        except KubeError as error:
            self._waiting.write_failed(node.name, node.uid, failed_write(error))
            raise
        if plan is None:
            return _superseded("the Node is gone, or newer word of it on its way")
        self._waiting.written(node.name)
        if isinstance(event, NodeEnriched):
            self._other_rules.done(node.name)
        if plan.effects is not None:
            _ERRORS.inc(plan.effects.failures)
        self._nodes.tell(node, plan)
        again = event.retry_at if isinstance(event, NodeUnreachable) and plan.blocked else None
        await self._decisions.publish(node, plan, next_look_at=again)
        self._obeyed[message.subject] = (message.sequence, config)
        return plan.outcome

    def _plan_for(self, event: NodeEnriched | NodeUnreachable) -> PlanFor:
        # By what holds when it is made: between two writes of one Node the file may give it to another.
        if isinstance(event, NodeUnreachable):
            return lambda node, refused: plan_unreachable(node, event, self._config())

        def plan(node: Node, refused: Refused) -> Plan:
            began = self._clock()
            made = plan_node(node, event.facts, event.recognized_by, self._config(), refused)
            _DURATION.observe(self._clock() - began)
            if why := self._other_rules.why_wait(node, made):
                raise _LeftToAnotherReplica(why)
            self._other_rules.planned(node, made)
            return made

        return plan

    def _is_foreign_by(self, event: NodeEnriched | NodeUnreachable) -> IsForeign:
        return lambda node: is_left_alone(node, event, self._config())

    async def _apply(
        self, message: Message, node: Node, plan_for: PlanFor, is_foreign: IsForeign
    ) -> Plan | None:
        """Write; once more on the newest Node if it had changed. None if there is newer word to follow."""
        try:
            return await self._nodes.apply(node, plan_for, is_foreign)
        except FenceFailed:
            fresh = await self._nodes.get(node.name)
            if fresh.uid != node.uid or not await self._is_last(message):
                return None
            return await self._nodes.apply(fresh, plan_for, is_foreign)

    async def _is_last(self, message: Message) -> bool:
        try:
            last = await self._bus.last(message.subject)
        except BusError as error:
            raise TemporaryError("the bus did not say what its last message is", str(error)) from error
        return last is not None and last.sequence == message.sequence


def _superseded(reason: str) -> str:
    telemetry.annotate(outcome="superseded", reason=reason)
    return "superseded"
