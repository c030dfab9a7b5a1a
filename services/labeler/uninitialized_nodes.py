"""Keeps the Nodes that still have the uninitialized taint, and evaluates what blocks them."""

from typing import Final

import msgspec

from libs.common.bus.protocol import UnreadablePayload
from libs.common.cloud_config.ownership import why_not_owned, why_not_selected
from libs.common.contract.events import Event, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from services.labeler.blocker import Blocker, block_on_failed_write, block_on_missing_facts
from services.labeler.node_ownership import why_not_managed
from services.labeler.plan import (
    ClusterConfig,
    Notice,
    plan_node,
    plan_unreachable_node,
    why_excluded,
    why_not_managed_by_rules,
)

FACTS_TIMEOUT_SECONDS: Final = 20.0  # metadata answers within 10 s, with facts or with a fault
# From the first observation of a Node until a replica has applied its machine's facts.
RECONCILE_GRACE_SECONDS: Final = 10.0


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
    failed_write: str = ""  # the error of the last write, and when the labeler retries
    reported_reason: str = ""  # the reason written by this replica, perhaps not observed on the Node yet
    report_at: float | None = None  # monotonic seconds of the next report; None: nothing to report
    last_evaluation: BlockerEvaluation | None = None  # valid while its input is unchanged
    is_reconciled: bool = False  # whether this replica has applied the plan of an event about its machine


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


def is_managed(node: Node, enriched: Event | None, config: ClusterConfig) -> bool:
    """Return whether the labeler manages the Node, by the facts that are known now.

    This check runs once a second, so it does not derive the future providerID as a plan does.
    """
    facts = _known_facts(node, enriched)
    if (why_not_selected if facts else why_not_owned)(config.ownership, node):
        return False
    return not why_not_managed(node, facts.platform if facts else None, configured=config.ownership)


def may_be_excluded(node: Node, config: ClusterConfig) -> bool:
    """Return whether ownership may exclude the Node, judged without facts.

    The labeler writes nothing to such a Node when planning fails.
    """
    return bool(why_not_owned(config.ownership, node))


def is_excluded(node: Node, enriched: Event | UnreadablePayload | None, config: ClusterConfig) -> bool:
    """Return whether --cloud-config excludes the Node, by the facts that are known now."""
    return bool(why_excluded(node, _known_facts(node, enriched), config))


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
    return Notice(reason="ProviderIDOfAnother", message=f"left alone: {foreign}") if foreign else None


def find_blocker(
    node: Node,
    enriched: Event | None,
    config: ClusterConfig,
    *,
    waited_seconds: float,
    failed_write: str = "",
) -> Blocker | None:
    """Return what prevents the initialization of this Node; None if nothing does or it is not managed.

    `enriched` is metadata's last event about a Node of that name.
    """
    match enriched:
        case NodeEnriched(node=of, facts=facts, verified_by=recognized_by) if of.uid == node.uid:
            plan = plan_node(node, facts, recognized_by, config)
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
    waiting_node: UninitializedNode, node: Node, enriched: Event | None, config: ClusterConfig, *, at: float
) -> Blocker | None:
    """Return `find_blocker` at that monotonic time, evaluated again only if its input has changed.

    The monitor calls this once a second for each waiting Node, and a thousand evaluations must not slow down
    a thousand joins. The handler therefore applies machine facts first. This function evaluates facts only
    after a write, a failed write or RECONCILE_GRACE_SECONDS.
    """
    failed = waiting_node.failed_write
    is_due = failed or waiting_node.is_reconciled or at - waiting_node.since >= RECONCILE_GRACE_SECONDS
    if isinstance(enriched, NodeEnriched) and not is_due:
        return None
    if not isinstance(enriched, NodeEnriched | NodeUnreachable) or enriched.node.uid != node.uid:
        return find_blocker(
            node, enriched, config, waited_seconds=at - waiting_node.since, failed_write=failed
        )
    last = waiting_node.last_evaluation
    if last is None or not _is_unchanged(last, node, enriched, config, failed):
        blocker = find_blocker(
            node, enriched, config, waited_seconds=at - waiting_node.since, failed_write=failed
        )  # with an event about its machine, the waiting time does not count
        last = waiting_node.last_evaluation = BlockerEvaluation(
            node=node, enriched=enriched, failed_write=failed, config=config, blocker=blocker
        )
    return last.blocker


def _is_unchanged(
    last: BlockerEvaluation, node: Node, enriched: Event, config: ClusterConfig, failed_write: str
) -> bool:
    same_events = last.node is node and last.enriched is enriched and last.failed_write == failed_write
    return same_events and last.config is config


def _known_facts(node: Node, enriched: Event | UnreadablePayload | None) -> MachineFacts | None:
    match enriched:
        case NodeEnriched(node=of, facts=facts) if of.uid == node.uid:
            return facts
        case NodeUnreachable(node=of, last_known=facts) if of.uid == node.uid:
            return facts
        case _:
            return None
