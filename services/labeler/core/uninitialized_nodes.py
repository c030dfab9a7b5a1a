"""Keeps the Nodes that still have the uninitialized taint, and evaluates what blocks them."""

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

import msgspec

from libs.common.contract.events import Event, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.node import Node
from services.labeler.core.blocker import WRITE_FAILED, Notice, block
from services.labeler.core.plan.plan import ClusterConfig, Plan
from services.labeler.core.plan.plan_node import plan_node, plan_unreachable_node, plan_unreported_node
from services.labeler.core.provider_id_index import ProviderIDIndex

FACTS_TIMEOUT_SECONDS: Final = 20.0  # metadata answers within 10 s, with facts or with a fault
# From the first observation of a Node until a replica has applied its machine's facts.
RECONCILE_GRACE_SECONDS: Final = 10.0
HANDLER_GRACE_SECONDS: Final = 3.0  # in addition from the arrival of the facts, which are late in a burst
MAX_SEPARATE_REPORTS: Final = 10  # up to this number, each Node gets its own Event


class _PlanInput(NamedTuple):
    node: Node
    enriched: NodeEnriched | NodeUnreachable
    failed_write: str
    config: ClusterConfig


class UninitializedNode(msgspec.Struct, kw_only=True):
    """One Node that has not been initialized."""

    node: Node  # as last observed
    since: float  # monotonic seconds
    facts_since: float = -inf  # monotonic seconds: arrival of the first facts; unknown before a start
    failed_write: str = ""  # the error of the last write, and when the labeler retries
    reported_reason: str = ""  # the reason written by this replica, perhaps not observed on the Node yet
    report_at: float | None = None  # monotonic seconds of the next report; None: nothing to report
    is_reconciled: bool = False  # whether this replica has applied the plan of an event about its machine
    plan: Plan | None = None  # of the last evaluation; None if nothing was known to prevent one
    planned_from: _PlanInput | None = None  # `plan` is valid while this is the same

    @property
    def blocker(self) -> Notice | None:
        return None if self.plan is None else self.plan.blocker


class SharedBlocker(msgspec.Struct, frozen=True, kw_only=True):
    """The reason that more than half of the uninitialized Nodes have in common."""

    reason: str
    blocked_count: int
    waiting_count: int
    first_node: str  # first by name, so that all replicas choose the same Node

    def __str__(self) -> str:
        return f"{self.reason}: {self.blocked_count} of {self.waiting_count} uninitialized Nodes"


class UninitializedNodes:
    """The uninitialized Nodes by name, from the watcher's events; another UID is a new Node."""

    def __init__(self) -> None:
        self.by_name: dict[str, UninitializedNode] = {}
        self.without_node_ip: dict[str, Node] = {}  # Nodes without provided-node-ip, not reported yet

    def apply(self, event: object, at: float) -> None:
        """Apply an event of the flow; `at` is in monotonic seconds."""
        match event:
            case NodeObserved(node=node):
                self._upsert(node, at)
            case NodeEnriched(node=node):
                self._record_facts(node, at)
            case NodeGone(name=name):
                self.by_name.pop(name, None)
                self.without_node_ip.pop(name, None)

    def record_failed_write(self, name: str, uid: str, description: str) -> None:
        """Record a failed write of the Node; `description` is from `blocker.describe_failed_write`."""
        waiting = self.by_name.get(name)
        if waiting is not None and waiting.node.uid == uid:
            waiting.failed_write = description

    def record_write(self, name: str) -> None:
        """Record that the plan for the Node was applied."""
        waiting = self.by_name.get(name)
        if waiting is not None:
            waiting.failed_write, waiting.is_reconciled = "", True
            waiting.planned_from = None  # other Nodes may have changed, too

    def clear(self) -> None:
        """Forget all Nodes."""
        self.by_name.clear()
        self.without_node_ip.clear()

    def _upsert(self, node: Node, at: float) -> None:
        if node.provided_node_ip:
            self.without_node_ip.pop(node.name, None)
        else:
            self.without_node_ip[node.name] = node
        known = self.by_name.get(node.name)
        if node.is_initialized:
            self.by_name.pop(node.name, None)
        elif known is None or known.node.uid != node.uid:
            self.by_name[node.name] = UninitializedNode(node=node, since=at)
        else:
            known.node = node

    def _record_facts(self, node: Node, at: float) -> None:
        waiting = self.by_name.get(node.name)
        if waiting is not None and waiting.node.uid == node.uid and waiting.facts_since < waiting.since:
            waiting.facts_since = at


def plan_waiting_node(
    waiting: UninitializedNode,
    enriched: Event | None,
    config: ClusterConfig,
    *,
    at: float,
    provider_ids: ProviderIDIndex,
) -> Plan | None:
    """Return the plan for this Node at that monotonic time; None if nothing is known to prevent one.

    `enriched` is metadata's last event about a Node of that name. The monitor calls this every two
    seconds for each waiting Node, and a thousand plans must not slow down a thousand joins. The handler
    therefore applies machine facts first. This function plans with facts only after a write or a failed
    write, or after RECONCILE_GRACE_SECONDS and HANDLER_GRACE_SECONDS, and only once for the same messages.
    """
    node, before = waiting.node, waiting.planned_from
    waiting.planned_from = None
    if not isinstance(enriched, NodeEnriched | NodeUnreachable) or enriched.node.uid != node.uid:
        is_late = at - waiting.since >= FACTS_TIMEOUT_SECONDS
        blocker = block("NoFactsYet", seconds=FACTS_TIMEOUT_SECONDS) if is_late else None
        return plan_unreported_node(node, config, blocker)
    handler_is_late = (
        at - waiting.since >= RECONCILE_GRACE_SECONDS and at - waiting.facts_since >= HANDLER_GRACE_SECONDS
    )
    if isinstance(enriched, NodeEnriched) and not (
        waiting.failed_write or waiting.is_reconciled or handler_is_late
    ):
        return None
    inputs, plan = _PlanInput(node, enriched, waiting.failed_write, config), waiting.plan
    if before is None or any(one is not other for one, other in zip(before, inputs, strict=True)):
        plan = _plan_reported_node(inputs, provider_ids)
    waiting.planned_from = inputs
    return plan


def _plan_reported_node(inputs: _PlanInput, provider_ids: ProviderIDIndex) -> Plan:
    match inputs.enriched:
        case NodeUnreachable() as enriched:
            return plan_unreachable_node(inputs.node, enriched, inputs.config)
        case NodeEnriched(facts=facts, verified_by=verified_by):
            plan = plan_node(inputs.node, facts, verified_by, inputs.config)
            plan = provider_ids.withhold_from(plan, inputs.node, facts)
    if plan.outcome == "initialized" and inputs.failed_write:
        blocker = block(WRITE_FAILED, error=inputs.failed_write)
        return Plan(outcome="blocked", reason=blocker.message, blocker=blocker)
    return plan


def find_shared_blocker(reasons: Mapping[str, str], waiting_count: int) -> SharedBlocker | None:
    """Return the reason that more than ten and more than half of the waiting Nodes share, or None.

    `reasons`: the reason of each blocked Node, by name. `waiting_count`: all managed Nodes that wait.
    """
    if len(reasons) <= MAX_SEPARATE_REPORTS:
        return None
    [(reason, count)] = Counter(reasons.values()).most_common(1)
    if count <= MAX_SEPARATE_REPORTS or count * 2 <= waiting_count:
        return None
    first = min(name for name, each in reasons.items() if each == reason)
    return SharedBlocker(reason=reason, blocked_count=count, waiting_count=waiting_count, first_node=first)
