"""Sees to it that no Node waits in silence: what blocks it is on the Node itself within 30 s.

Driven by what is known now, not by messages: it works when metadata is down, and after a restart. Every
replica does it; each waits a random while and writes only what the Node does not say by then.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from libs.common.bus.delivery import PermanentError, TemporaryError
from libs.common.bus.protocol import UnreadablePayload
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import Event, NodeObserved
from libs.common.contract.node import Node
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE
from libs.common.kube.errors import FenceFailed, NotFound
from libs.common.observability import metrics
from services.labeler.blocker import Blocker, block_on_defect, is_reported_on
from services.labeler.node_decision_publisher import NodeDecisionPublisher
from services.labeler.node_ownership import why_not_managed
from services.labeler.node_writer import NodeWriter
from services.labeler.plan import ClusterConfig, Notice, Plan, why_excluded
from services.labeler.shared_blocker import MAX_SEPARATE_REPORTS, SharedBlocker, find_shared_blocker
from services.labeler.uninitialized_nodes import (
    FACTS_TIMEOUT_SECONDS,
    UninitializedNode,
    UninitializedNodes,
    build_foreign_notice,
    find_blocker_cached,
    is_managed,
    may_be_excluded,
)

log = logging.getLogger(__name__)

PASS_SECONDS: Final = 1.0
REPORT_SPREAD_SECONDS: Final = (
    5.0  # the random while: replicas rarely speak at once, brief trouble goes unsaid
)
WRITES_PER_PASS: Final = 50  # an outage must not become a storm of writes on the API server
_RETRY_SECONDS: Final = 5.0


class _EvaluatedNode(msgspec.Struct, frozen=True, kw_only=True):
    """One Node of ours that waits, as of now."""

    node: Node
    waiting_node: UninitializedNode
    blocker: Blocker | None


class UninitializedNodeMonitor:
    """Looks once a second at the Nodes that are not initialised; with none there is nothing to do."""

    def __init__(
        self,
        *,
        stream_cache: StreamCache,
        uninitialized_nodes: UninitializedNodes,
        node_writer: NodeWriter,
        decision_publisher: NodeDecisionPublisher,
        config: Callable[[], ClusterConfig],
        why_paused: Callable[[], str],
        clock: Callable[[], float],
        random: random.Random,
    ) -> None:
        """`config` is what holds now; `paused` says why nothing may be written for now, "" if it may.

        `clock` is monotonic, in seconds.
        """
        self._stream_cache = stream_cache
        self._uninitialized_nodes = uninitialized_nodes
        self._node_writer = node_writer
        self._decision_publisher = decision_publisher
        self._config = config
        self._why_paused = why_paused
        self._clock = clock
        self._random = random
        self._shared_blocker: SharedBlocker | None = None
        self._shared_report_at: float | None = None

    def problems(self) -> tuple[str, ...]:
        """The trouble that most waiting Nodes share."""
        return () if self._shared_blocker is None else (f"outage: {self._shared_blocker}",)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(PASS_SECONDS)
            await self.check_nodes()

    async def check_nodes(self) -> None:
        """One pass over all Nodes that wait."""
        if self._stream_cache.problems() or self._why_paused():
            return  # what is known may be half of it, or another one leads: conclude nothing, write nothing
        at = self._clock()
        waits = {
            name: wait
            for name in tuple(self._uninitialized_nodes.by_name)
            if (wait := self._evaluate(name, at))
        }
        blocked = {name: wait.blocker for name, wait in waits.items() if wait.blocker}
        metrics.BLOCKED_NODES.set(len(blocked))
        self._update_shared_blocker({name: each.reason for name, each in blocked.items()}, len(waits), at)
        for wait in waits.values():
            self._schedule_report(wait, at)
        due = [
            name
            for name, wait in waits.items()
            if wait.waiting_node.report_at is not None and wait.waiting_node.report_at <= at
        ]
        for name in due[:WRITES_PER_PASS]:
            await self._report_blocker(name)
        await self._report_shared_blocker(waits, at)
        await self._report_foreign_nodes(at)

    def _evaluate(self, name: str, at: float) -> _EvaluatedNode | None:
        """What is known of a Node that waits; None when it is not ours, or does not wait any more."""
        waiting = self._uninitialized_nodes.by_name.get(name)
        node = self._observed_node(name)
        if waiting is None or node is None or node.uid != waiting.uid:
            self._uninitialized_nodes.by_name.pop(name, None)
            return None
        enriched = self._last_event(f"{ENRICHED_NODE}.{name}")
        if self._node_writer.latest(node).is_initialized:
            return None  # so Kubernetes has answered; the watcher's word of it rests for some seconds
        if not is_managed(node, enriched, self._config()):
            return None
        blocked: Blocker | None
        try:
            blocked = find_blocker_cached(waiting, node, enriched, self._config(), at=at)
        except Exception as error:  # noqa: BLE001 - one Node must not silence all; its handler logs where and why
            blocked = None if may_be_excluded(node, self._config()) else block_on_defect(error)
        return _EvaluatedNode(node=node, waiting_node=waiting, blocker=blocked)

    def _schedule_report(self, wait: _EvaluatedNode, at: float) -> None:
        waiting, blocked = wait.waiting_node, wait.blocker
        if blocked is None:
            waiting.report_at = None
        elif is_reported_on(wait.node, blocked):
            waiting.report_at, waiting.reported_reason = None, ""
        elif waiting.reported_reason != blocked.reason and waiting.report_at is None:
            waiting.report_at = self._random_report_time(at)

    async def _report_blocker(self, name: str) -> None:
        """Write the condition, from the newest view: the writes before this one have taken their time."""
        wait = self._evaluate(name, self._clock())
        if wait is None or wait.blocker is None or is_reported_on(wait.node, wait.blocker):
            return
        shared = self._shared_blocker is not None and self._shared_blocker.reason == wait.blocker.reason
        wait.waiting_node.report_at = None
        try:
            await self._node_writer.report_blocker(wait.node, wait.blocker, with_event=not shared)
        except (NotFound, FenceFailed):
            return  # gone, or another one by now: the watcher will tell
        except (TemporaryError, PermanentError) as error:
            wait.waiting_node.report_at = self._clock() + _RETRY_SECONDS * (1.0 + self._random.random())
            log.warning("a Node cannot be told why it waits", extra={"node": name, "error": str(error)})
            if wait.waiting_node.failed_write:  # then the Node itself may never say it
                await self._publish(wait.node, wait.blocker)
            return
        wait.waiting_node.reported_reason = wait.blocker.reason
        log.info("a Node waits", extra={"node": name, "reason": wait.blocker.reason})
        if self._last_event(f"{ENRICHED_NODE}.{name}") is None:  # else whoever handled that has published it
            await self._publish(wait.node, wait.blocker)

    async def _publish(self, node: Node, blocked: Blocker) -> None:
        plan = Plan(outcome="blocked", reason=blocked.message, blocker=blocked)
        await self._decision_publisher.publish(node, plan)

    def _update_shared_blocker(self, reasons: Mapping[str, str], waiting: int, at: float) -> None:
        before, self._shared_blocker = self._shared_blocker, find_shared_blocker(reasons, waiting)
        if self._shared_blocker is None:
            self._shared_report_at = None
            if before is not None:
                log.info("the outage is over", extra={"reason": before.reason})
        elif before is None or before.reason != self._shared_blocker.reason:
            self._shared_report_at = self._random_report_time(at)
            log.warning("many Nodes wait for the same thing", extra={"reason": str(self._shared_blocker)})

    async def _report_shared_blocker(self, waits: Mapping[str, _EvaluatedNode], at: float) -> None:
        """One Event for all of them, on the first by name."""
        wait = waits.get(self._shared_blocker.first_node) if self._shared_blocker is not None else None
        if (
            self._shared_report_at is None
            or at < self._shared_report_at
            or wait is None
            or wait.blocker is None
        ):
            return
        text = f"{self._shared_blocker}; here: {wait.blocker.message}"
        if await self._node_writer.publish_event(wait.node, Notice(reason=wait.blocker.reason, message=text)):
            self._shared_report_at = None

    async def _report_foreign_nodes(self, at: float) -> None:
        """Nodes without provided-node-ip: nobody asks about them, so it is here that they are disowned."""
        for name in tuple(self._uninitialized_nodes.without_node_ip):
            self._uninitialized_nodes.without_node_ip.discard(name)
            node = self._observed_node(name)
            if node is not None and not node.provided_node_ip:
                await self._decision_publisher.publish(node, _plan_foreign(node, self._config()))
        names = [
            name for name, each in self._uninitialized_nodes.by_name.items() if self._waits_long(each, at)
        ]
        strangers = [stranger for name in names if (stranger := self._find_foreign_node(name)) is not None]
        if len(strangers) > MAX_SEPARATE_REPORTS:
            return  # the fleet of another cloud controller manager, that has trouble of its own
        for node, notice in strangers:
            self._node_writer.report(node, Plan(outcome="not-ours", reason=notice.message, notices=(notice,)))

    def _find_foreign_node(self, name: str) -> tuple[Node, Notice] | None:
        node = self._observed_node(name)
        enriched = self._last_event(f"{ENRICHED_NODE}.{name}")
        notice = build_foreign_notice(node, enriched, self._config()) if node else None
        return (node, notice) if node and notice else None

    def _waits_long(self, waiting: UninitializedNode, at: float) -> bool:
        return at - waiting.since >= FACTS_TIMEOUT_SECONDS

    def _random_report_time(self, at: float) -> float:
        return at + self._random.uniform(0.0, REPORT_SPREAD_SECONDS)

    def _observed_node(self, name: str) -> Node | None:
        heard = self._last_event(f"{OBSERVED_NODE}.{name}")
        return heard.node if isinstance(heard, NodeObserved) else None

    def _last_event(self, subject: str) -> Event | None:
        message = self._stream_cache.get(subject)
        return (
            message.event
            if message is not None and not isinstance(message.event, UnreadablePayload)
            else None
        )


def _plan_foreign(node: Node, config: ClusterConfig) -> Plan:
    reason = why_excluded(node, None, config) or why_not_managed(node, None)
    return Plan(outcome="not-ours", reason=reason)
