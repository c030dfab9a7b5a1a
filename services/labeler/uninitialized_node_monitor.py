"""Reports on each uninitialized Node, within 30 s, the reason that blocks it.

The monitor evaluates the current state, not single messages, so it works after a restart and when metadata
is down. Every replica runs it. Each waits a random time and writes only reasons that the Node lacks by then.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import PermanentError, TemporaryError
from libs.common.bus.stream_cache import StreamCache
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.node import Node
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE
from libs.common.kube.errors import FenceFailed, NotFound
from libs.common.observability import metrics
from services.labeler.core.blocker import Notice, block, is_reported_on
from services.labeler.core.instance_metadata import InstanceMetadataIndex
from services.labeler.core.own_writes import OwnWrites
from services.labeler.core.plan.plan import ClusterConfig, Plan
from services.labeler.core.plan.plan_node import plan_unreported_node
from services.labeler.core.provider_id_index import ProviderIDIndex
from services.labeler.core.uninitialized_nodes import (
    FACTS_TIMEOUT_SECONDS,
    MAX_SEPARATE_REPORTS,
    SharedBlocker,
    UninitializedNode,
    UninitializedNodes,
    find_shared_blocker,
    plan_waiting_node,
)
from services.labeler.node_writer import NodeWriter

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 2.0
REPORT_SPREAD_SECONDS: Final = (
    4.0  # the random time: replicas rarely report at once, and short problems are not reported
)
WRITES_PER_PASS: Final = 50  # so that an outage does not overload the API server with writes
_RETRY_SECONDS: Final = 5.0


@dataclass(eq=False, kw_only=True)
class UninitializedNodeMonitor:
    """Checks the uninitialized Nodes every PASS_SECONDS and reports what blocks them."""

    stream_cache: StreamCache
    own_writes: OwnWrites
    uninitialized_nodes: UninitializedNodes
    node_writer: NodeWriter
    decision_publisher: DecisionPublisher
    instance_metadata: InstanceMetadataIndex
    clock: Callable[[], float]  # monotonic, in seconds
    random: random.Random
    config: Callable[[], ClusterConfig]  # returns the current settings
    why_paused: Callable[[], str]  # returns why writes must wait, or ""
    provider_ids: ProviderIDIndex

    def __post_init__(self) -> None:
        self._shared_blocker: SharedBlocker | None = None
        self._shared_report_at: float | None = None

    def problems(self) -> tuple[str, ...]:
        """Return the blocker that most waiting Nodes share, if any."""
        return () if self._shared_blocker is None else (f"outage: {self._shared_blocker}",)

    async def run(self) -> None:
        """Check the Nodes every PASS_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(PASS_SECONDS)
            await self.check_nodes()

    async def check_nodes(self) -> None:
        """Check all waiting Nodes once."""
        if self.stream_cache.problems() or self.why_paused():
            return  # the state may be incomplete, or another watcher may lead
        at = self.clock()
        found = [
            each for each in tuple(self.uninitialized_nodes.by_name.values()) if self._evaluate(each, at)
        ]
        waits = [each for each in found if each.plan is None or each.plan.not_ours is None]
        reasons = {each.node.name: each.blocker.reason for each in waits if each.blocker}
        metrics.BLOCKED_NODES.set(len(reasons))
        self._update_shared_blocker(reasons, len(waits), at)
        for wait in waits:
            self._schedule_report(wait, at)
        due = [each for each in waits if each.report_at is not None and each.report_at <= at]
        for wait in due[:WRITES_PER_PASS]:
            await self._report_blocker(wait)
        self._report_shared_blocker(at)
        await self._publish_unqueried_nodes()
        self._report_foreign_nodes(found, at)

    def _evaluate(self, wait: UninitializedNode, at: float) -> bool:
        """Plan the Node, and return whether it still waits."""
        name, by_name = wait.node.name, self.uninitialized_nodes.by_name
        if by_name.get(name) is not wait:
            return False
        if self.stream_cache.get_event(f"{OBSERVED_NODE}.{name}") is None:
            del by_name[name]  # the stream has dropped the message: the Node is long gone
            return False
        latest = self.own_writes.latest(wait.node)
        if latest is not wait.node and latest.is_initialized:
            return False  # by the API server's response; the watcher publishes it some seconds later
        enriched = self.instance_metadata.complete(self.stream_cache.get_event(f"{ENRICHED_NODE}.{name}"))
        try:
            wait.plan = plan_waiting_node(
                wait, enriched, self.config(), at=at, provider_ids=self.provider_ids
            )
        except Exception as error:  # noqa: BLE001 - one Node must not stop all reports; its handler logs the error
            blocker = block("DefectInTalosCCM", error=f"{type(error).__name__}: {error}")
            may_be_excluded = why_not_owned(self.config().ownership, wait.node)
            blocked = Plan(outcome="blocked", reason=blocker.message, blocker=blocker)
            wait.plan = None if may_be_excluded else blocked
        return True

    def _schedule_report(self, wait: UninitializedNode, at: float) -> None:
        blocker = wait.blocker
        if blocker is None:
            wait.report_at = None
        elif is_reported_on(wait.node, blocker):
            wait.report_at, wait.reported_reason = None, ""
        elif wait.reported_reason != blocker.reason and wait.report_at is None:
            wait.report_at = self._random_report_time(at)

    async def _report_blocker(self, wait: UninitializedNode) -> None:
        """Evaluate the Node again and write the condition; earlier writes of this pass took time."""
        if not self._evaluate(wait, self.clock()) or wait.plan is None or wait.plan.blocker is None:
            return
        node, plan, blocker = wait.node, wait.plan, wait.plan.blocker
        if is_reported_on(node, blocker):
            return
        shared = self._shared_blocker is not None and self._shared_blocker.reason == blocker.reason
        wait.report_at = None
        try:
            await self.node_writer.report_blocker(node, blocker, with_event=not shared)
        except (NotFound, FenceFailed):
            return  # the Node was deleted or replaced: an event of the watcher follows
        except (TemporaryError, PermanentError) as error:
            wait.report_at = self.clock() + _RETRY_SECONDS * (1.0 + self.random.random())
            log.warning("condition write failed, will retry", extra={"node": node.name, "error": str(error)})
            if wait.failed_write:  # the condition may never be written either
                await self._publish_decision(node, plan)
            return
        wait.reported_reason = blocker.reason
        log.info("node blocked", extra={"node": node.name, "reason": blocker.reason})
        if self.stream_cache.get_event(f"{ENRICHED_NODE}.{node.name}") is None:  # or the handler has done it
            await self._publish_decision(node, plan)

    def _update_shared_blocker(self, reasons: Mapping[str, str], waiting: int, at: float) -> None:
        before, self._shared_blocker = self._shared_blocker, find_shared_blocker(reasons, waiting)
        if self._shared_blocker is None:
            self._shared_report_at = None
            if before is not None:
                log.info("outage ended", extra={"reason": before.reason})
        elif before is None or before.reason != self._shared_blocker.reason:
            self._shared_report_at = self._random_report_time(at)
            log.warning("outage: many nodes share a blocker", extra={"reason": str(self._shared_blocker)})

    def _report_shared_blocker(self, at: float) -> None:
        """Record one Event for all Nodes that share the blocker, on the first by name."""
        shared, report_at = self._shared_blocker, self._shared_report_at
        if shared is None or report_at is None or at < report_at:
            return
        wait = self.uninitialized_nodes.by_name.get(shared.first_node)
        if wait is not None and wait.blocker is not None:
            text = f"{shared}; here: {wait.blocker.message}"
            self.node_writer.record_event(wait.node, Notice(reason=wait.blocker.reason, message=text))
            self._shared_report_at = None

    async def _publish_unqueried_nodes(self) -> None:
        """Publish that Nodes without provided-node-ip are not managed.

        Metadata does not query them, so no handler decides about them.
        """
        found = self.uninitialized_nodes.without_node_ip
        while found:
            _, node = found.popitem()
            if plan := plan_unreported_node(node, self.config()):
                await self._publish_decision(node, plan)

    def _report_foreign_nodes(self, waits: Sequence[UninitializedNode], at: float) -> None:
        """Record an Event on each Node that has waited for long, and will never be initialized by us.

        A Node that --cloud-config excludes gets none, because its owner knows.
        """
        found = [
            (wait.node, wait.plan.not_ours.notice)
            for wait in waits
            if at - wait.since >= FACTS_TIMEOUT_SECONDS
            and wait.plan is not None
            and wait.plan.not_ours is not None
            and wait.plan.not_ours.notice is not None
        ]
        if len(found) > MAX_SEPARATE_REPORTS:
            return  # so many Nodes belong to another cloud controller manager, which has a problem of its own
        for node, notice in found:
            self.node_writer.report(node, Plan(outcome="not-ours", reason=notice.message, notices=(notice,)))

    async def _publish_decision(self, node: Node, plan: Plan) -> None:
        await self.decision_publisher.publish(
            node, plan.outcome, plan.reason_and_notices, changes=plan.summary
        )

    def _random_report_time(self, at: float) -> float:
        return at + self.random.uniform(0.0, REPORT_SPREAD_SECONDS)
