"""Keeps the Nodes that still have the uninitialized taint, and evaluates what blocks them."""

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Final

import msgspec

from libs.common.contract.events import Event, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.node import Node, has_same_planned_fields
from services.labeler.core.blocker import Blocker, block_on_failed_write, block_on_missing_facts
from services.labeler.core.plan import (
    ClusterConfig,
    Notice,
    is_excluded,
    is_managed,
    plan_node,
    plan_unreachable_node,
    why_not_managed,
    why_not_managed_by_rules,
)
from services.labeler.core.plan.provider_id_conflict import FindProviderIDConflict, find_no_conflict

FACTS_TIMEOUT_SECONDS: Final = 20.0  # metadata answers within 10 s, with facts or with a fault
# From the first observation of a Node until a replica has applied its machine's facts.
RECONCILE_GRACE_SECONDS: Final = 10.0
HANDLER_GRACE_SECONDS: Final = 3.0  # in addition from the arrival of the facts, which are late in a burst
MAX_SEPARATE_REPORTS: Final = 10  # up to this number, each Node gets its own Event


class BlockerEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """A blocker and the input from which it was evaluated."""

    node: Node
    enriched: Event
    failed_write: str
    config: ClusterConfig
    blocker: Blocker | None


class UninitializedNode(msgspec.Struct, kw_only=True):
    """One Node that has not been initialized."""

    uid: str
    since: float  # monotonic seconds
    facts_since: float = -inf  # monotonic seconds: arrival of the first facts; unknown before a start
    failed_write: str = ""  # the error of the last write, and when the labeler retries
    reported_reason: str = ""  # the reason written by this replica, perhaps not observed on the Node yet
    report_at: float | None = None  # monotonic seconds of the next report; None: nothing to report
    last_evaluation: BlockerEvaluation | None = None  # valid while its input is unchanged
    is_reconciled: bool = False  # whether this replica has applied the plan of an event about its machine


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
        self.without_node_ip: set[str] = set()  # Nodes without provided-node-ip, not reported yet

    def apply(self, event: object, at: float) -> None:
        """Apply an event of the flow; `at` is in monotonic seconds."""
        match event:
            case NodeObserved(node=node):
                self._upsert(node, at)
            case NodeEnriched(node=node):
                self._record_facts(node, at)
            case NodeGone(name=name):
                self.by_name.pop(name, None)
                self.without_node_ip.discard(name)

    def record_failed_write(self, name: str, uid: str, description: str) -> None:
        """Record a failed write of the Node; `description` is from `blocker.describe_failed_write`."""
        waiting = self.by_name.get(name)
        if waiting is not None and waiting.uid == uid:
            waiting.failed_write = description

    def record_write(self, name: str) -> None:
        """Record that the plan for the Node was applied."""
        waiting = self.by_name.get(name)
        if waiting is not None:
            waiting.failed_write, waiting.is_reconciled = "", True
            waiting.last_evaluation = None  # other Nodes may have changed, too

    def clear(self) -> None:
        """Forget all Nodes."""
        self.by_name.clear()
        self.without_node_ip.clear()

    def _upsert(self, node: Node, at: float) -> None:
        if node.provided_node_ip:
            self.without_node_ip.discard(node.name)
        else:
            self.without_node_ip.add(node.name)
        known = self.by_name.get(node.name)
        if node.is_initialized:
            self.by_name.pop(node.name, None)
        elif known is None or known.uid != node.uid:
            self.by_name[node.name] = UninitializedNode(uid=node.uid, since=at)

    def _record_facts(self, node: Node, at: float) -> None:
        waiting = self.by_name.get(node.name)
        if waiting is not None and waiting.uid == node.uid and waiting.facts_since < waiting.since:
            waiting.facts_since = at


def build_foreign_notice(node: Node, enriched: Event | None, config: ClusterConfig) -> Notice | None:
    """Build the notice for a Node that the labeler will never initialize; None if it may be managed.

    A Node that --cloud-config excludes gets none, because its owner knows. A providerID is foreign only after
    the machine or the rules have given another one.
    """
    if node.metadata.deletion_timestamp is not None:
        return None
    if is_excluded(node, enriched, config):
        return None
    if not node.provided_node_ip:
        return Notice(reason="ProvidedNodeIPMissing", message=why_not_managed(node, None))
    if not isinstance(enriched, NodeEnriched) or enriched.node.uid != node.uid:
        return None
    foreign = why_not_managed_by_rules(node, enriched.facts, config)
    return Notice(reason="ProviderIDOfAnother", message=f"not managed: {foreign}") if foreign else None


def find_blocker(
    node: Node,
    enriched: Event | None,
    config: ClusterConfig,
    *,
    waited_seconds: float,
    failed_write: str = "",
    find_conflict: FindProviderIDConflict = find_no_conflict,
) -> Blocker | None:
    """Return what prevents the initialization of this Node; None if nothing does or it is not managed.

    `enriched` is metadata's last event about a Node of that name.
    """
    match enriched:
        case NodeEnriched(node=of, facts=facts, verified_by=verified_by) if of.uid == node.uid:
            plan = plan_node(node, facts, verified_by, config, find_conflict=find_conflict)
            if plan.outcome == "initialized" and failed_write:
                return block_on_failed_write(failed_write)
            return plan.blocker
        case NodeUnreachable(node=of) if of.uid == node.uid:
            return plan_unreachable_node(node, enriched, config).blocker
    waits = not node.is_initialized and is_managed(node, None, config)
    return (
        block_on_missing_facts(FACTS_TIMEOUT_SECONDS)
        if waits and waited_seconds >= FACTS_TIMEOUT_SECONDS
        else None
    )


def find_blocker_cached(
    waiting_node: UninitializedNode,
    node: Node,
    enriched: Event | None,
    config: ClusterConfig,
    *,
    at: float,
    find_conflict: FindProviderIDConflict = find_no_conflict,
) -> Blocker | None:
    """Return `find_blocker` at that monotonic time, evaluated again only if its input has changed.

    The monitor calls this once a second for each waiting Node, and a thousand evaluations must not slow down
    a thousand joins. The handler therefore applies machine facts first. This function evaluates facts only
    after a write or a failed write, or after RECONCILE_GRACE_SECONDS and HANDLER_GRACE_SECONDS.
    """
    failed = waiting_node.failed_write
    handler_is_late = (
        at - waiting_node.since >= RECONCILE_GRACE_SECONDS
        and at - waiting_node.facts_since >= HANDLER_GRACE_SECONDS
    )
    is_due = failed or waiting_node.is_reconciled or handler_is_late
    if isinstance(enriched, NodeEnriched) and not is_due:
        return None
    if not isinstance(enriched, NodeEnriched | NodeUnreachable) or enriched.node.uid != node.uid:
        return find_blocker(
            node, enriched, config, waited_seconds=at - waiting_node.since, failed_write=failed
        )
    last = waiting_node.last_evaluation
    if last is None or not _is_unchanged(last, node, enriched, config, failed):
        blocker = find_blocker(
            node,
            enriched,
            config,
            waited_seconds=at - waiting_node.since,  # does not count with an event about its machine
            failed_write=failed,
            find_conflict=find_conflict,
        )
        last = BlockerEvaluation(
            node=node, enriched=enriched, failed_write=failed, config=config, blocker=blocker
        )
    elif last.node is not node or last.enriched is not enriched:
        last = msgspec.structs.replace(last, node=node, enriched=enriched)  # the next comparison is quick
    waiting_node.last_evaluation = last
    return last.blocker


def _is_unchanged(
    last: BlockerEvaluation, node: Node, enriched: Event, config: ClusterConfig, failed_write: str
) -> bool:
    same_report = last.enriched is enriched or _reports_same_facts(last.enriched, enriched)
    same_input = same_report and last.failed_write == failed_write and last.config is config
    return same_input and has_same_planned_fields(last.node, node)


def _reports_same_facts(one: Event, other: Event) -> bool:
    """Return whether both report the same query of the machine: the settling period counts to its time."""
    if not isinstance(one, NodeEnriched) or not isinstance(other, NodeEnriched):
        return False
    return (one.node.uid, one.verified_by) == (other.node.uid, other.verified_by) and one.facts == other.facts


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
