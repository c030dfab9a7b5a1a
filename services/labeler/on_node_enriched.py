"""Handles events about enriched and unreachable Nodes: plans the changes to the Node and applies them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, RequeueAfter, TemporaryError
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Bus, BusError, Message
from libs.common.contract.events import EnrichedNodeGone, NodeEnriched, NodeUnreachable
from libs.common.contract.node import BLOCKED_CONDITION, Node
from libs.common.contract.subjects import OBSERVED_NODE
from libs.common.kube.errors import FenceFailed, KubeError, NotFound
from libs.common.observability import metrics, telemetry
from services.labeler.core.blocker import (
    RETRY_SECONDS,
    WAITING_FOR_OTHER_NODES,
    Notice,
    describe_failed_write,
)
from services.labeler.core.instance_metadata import InstanceMetadataIndex
from services.labeler.core.own_writes import OwnWrites, ReplicaConflicts, select_latest_node
from services.labeler.core.plan.plan import ClusterConfig, Plan
from services.labeler.core.plan.plan_node import plan_node, plan_unreachable_node
from services.labeler.core.plan.rejection import Rejection
from services.labeler.core.provider_id_index import ProviderIDIndex
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.compilation import Rules
from services.labeler.core.rules.effects import RuleEffects
from services.labeler.core.uninitialized_nodes import UninitializedNodes
from services.labeler.node_writer import AppliedPlan, NodeWriter

TRANSFORMER_TYPE: Final = "transformer"  # the only type in the reference's code; its docs name another one
_DURATION: Final = metrics.TRANSFORMER_DURATION.labels(TRANSFORMER_TYPE)
_ERRORS: Final = metrics.TRANSFORMER_ERRORS.labels(TRANSFORMER_TYPE)


class _DeferToOtherReplica(Exception):
    """Another replica may have newer rules, so this one must not write now."""


class _EventPlanner(msgspec.Struct):
    """Plans for one event. It reads the settings for each plan: between two writes, they may change."""

    event: NodeEnriched | NodeUnreachable
    handler: "OnNodeEnriched"
    _effects: tuple[Rules, RuleEffects] | None = None  # the last rules, and their effects on the machine

    def __call__(self, node: Node, rejection: Rejection) -> Plan:
        """Plan the changes to the Node. Raises _DeferToOtherReplica."""
        event, handler, config = self.event, self.handler, self.handler.config()
        if isinstance(event, NodeUnreachable):
            return plan_unreachable_node(node, event, config)
        started_at = handler.clock()
        if self._effects is None or self._effects[0] is not config.rules:
            self._effects = config.rules, apply_rules(config.rules, event.facts)
        plan = plan_node(
            node,
            event.facts,
            event.verified_by,
            config,
            rejection,
            effects=self._effects[1],
        )
        plan = handler.provider_ids.withhold_from(plan, node, event.facts)
        _DURATION.observe(handler.clock() - started_at)
        if handler.replica_conflicts.must_wait(node, plan):
            raise _DeferToOtherReplica
        return plan


@dataclass(eq=False, kw_only=True)
class OnNodeEnriched:
    """Plans on the newest view of a Node, applies the plan and publishes the decision.

    It ignores messages about Nodes that no longer exist.
    """

    bus: Bus
    flow: Flow
    own_writes: OwnWrites
    node_writer: NodeWriter
    decision_publisher: DecisionPublisher
    uninitialized_nodes: UninitializedNodes
    config: Callable[[], ClusterConfig]  # returns the current settings
    provider_ids: ProviderIDIndex
    instance_metadata: InstanceMetadataIndex
    clock: Callable[[], float]  # monotonic, in seconds

    def __post_init__(self) -> None:
        self.replica_conflicts = ReplicaConflicts(self.clock)

    def forget(self, name: str) -> None:
        """Remove everything that is stored about a deleted Node."""
        self.replica_conflicts.forget(name)
        self.own_writes.forget(name)

    def forget_writes(self) -> list[str]:
        """Forget own writes; return the names of their Nodes.

        The next epoch may begin with a restored etcd that has lost them. If the stream has not observed them
        either, no message about their Nodes follows. Their former state is no write of another replica.
        """
        names = self.own_writes.forget_all()
        for name in names:
            self.replica_conflicts.forget(name)
        return names

    async def reconcile(self, message: Message) -> str:
        """Reconcile the Node of one message and return the outcome.

        Raises TemporaryError for a failure that may pass, and PermanentError for another type of event.
        """
        event = message.event
        if not isinstance(event, NodeEnriched | NodeUnreachable | EnrichedNodeGone):
            raise PermanentError(f"{type(event).__name__} is not an event about an enriched Node")
        cache = self.flow.cache
        if cache.is_of_another_stream(message) or (cache.why_outdated(message) and self.flow.problems()):
            # Afterwards, the cache may follow this stream, or know that NATS has lost the newer message.
            await self.flow.wait_for(message)
        if outdated := cache.why_outdated(message):
            return _report_superseded(outdated)
        if isinstance(event, EnrichedNodeGone):
            telemetry.annotate(outcome="gone")
            return "gone"
        if reason := self.flow.why_paused():
            raise TemporaryError(reason)
        if isinstance(event, NodeEnriched) and not event.node.spec.provider_id:
            await self.flow.wait_for(message)  # the cache knows every Node that may have the same providerID
        node = select_latest_node(event, self.flow.cache.get(f"{OBSERVED_NODE}.{event.node.name}"))
        if node is None:
            return _report_superseded("the Node is gone or was replaced")
        node, config = self.own_writes.latest(node), self.config()
        event = self.instance_metadata.complete(event)
        if self.own_writes.take_echo(event, node, config):
            telemetry.annotate(outcome="unchanged", reason="it only reports the labeler's own write")
            return "unchanged"
        return await self._reconcile_node(message, event, node, config)

    async def _reconcile_node(
        self, message: Message, event: NodeEnriched | NodeUnreachable, node: Node, config: ClusterConfig
    ) -> str:
        try:
            applied = await self._apply(message, node, _EventPlanner(event, self))
            if applied is not None and applied.plan.blocker is not None:
                await self._correct_condition(node, applied.plan.blocker)
        except _DeferToOtherReplica:
            # The next message about the Node, at the latest from a resync, tries again.
            return _report_superseded("another replica has written this Node, and may have newer rules")
        except NotFound:
            applied = None
        except KubeError as error:
            self.uninitialized_nodes.record_failed_write(node.name, node.uid, describe_failed_write(error))
            raise
        if applied is None:
            return _report_superseded("the Node is gone, or a newer message about it follows")
        plan = applied.plan
        self.uninitialized_nodes.record_write(node.name)
        if isinstance(event, NodeEnriched):
            self.replica_conflicts.record_applied(self.own_writes.latest(node))
            # A Node that was blocked loses its condition only by the plan after the one that initialized it.
            if applied.written is not None and applied.written.find_condition(BLOCKED_CONDITION) is None:
                self.own_writes.record_plan(applied.written, event, config)
        if plan.rule_effects is not None:
            _ERRORS.inc(plan.rule_effects.failures)
        self.node_writer.report(node, plan)
        next_check_at = event.retry_at if isinstance(event, NodeUnreachable) and plan.blocker else None
        await self.decision_publisher.publish(
            node,
            plan.outcome,
            plan.reason_and_notices,
            changes=plan.summary,
            rules=plan.matching_rules,
            next_check_at=next_check_at,
        )
        if plan.blocker is not None and plan.blocker.reason in RETRY_SECONDS:
            raise RequeueAfter(
                "its providerID is withheld",
                plan.blocker.message,
                retry_after_seconds=RETRY_SECONDS[plan.blocker.reason],
            )
        return plan.outcome

    async def _correct_condition(self, node: Node, blocker: Notice) -> None:
        """Correct a condition that names a former cause for the same reason. Raises KubeError.

        The monitor writes a condition only if its reason is new. The Nodes that WAITING_FOR_OTHER_NODES names
        change too often.
        """
        reported = self.own_writes.latest(node).find_condition(BLOCKED_CONDITION)
        if blocker.reason not in RETRY_SECONDS or reported is None or reported.status != "True":
            return
        if reported.reason == WAITING_FOR_OTHER_NODES:
            return
        if reported.reason == blocker.reason and reported.message != blocker.message:
            await self.node_writer.report_blocker(node, blocker, with_event=False)

    async def _apply(self, message: Message, node: Node, planner: _EventPlanner) -> AppliedPlan | None:
        """Apply the plan; if the Node has changed, plan and apply once more on the newest Node.

        Return None if another message about the Node follows. Raises KubeError and TemporaryError.
        """
        try:
            return await self.node_writer.apply(node, planner)
        except FenceFailed:
            fresh = await self.node_writer.get(node.name)
            if fresh.uid != node.uid or not await self._is_last_message(message):
                return None
            return await self.node_writer.apply(fresh, planner)

    async def _is_last_message(self, message: Message) -> bool:
        try:
            last = await self.bus.get_last(message.subject)
        except BusError as error:
            raise TemporaryError("cannot read the last message about the Node", str(error)) from error
        return last is not None and last.sequence == message.sequence


def _report_superseded(reason: str) -> str:
    telemetry.annotate(outcome="superseded", reason=reason)
    return "superseded"
