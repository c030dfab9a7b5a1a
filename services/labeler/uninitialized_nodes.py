"""The Nodes that nobody has initialised yet: since when they wait, and what for."""

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
# From the first word of a Node until what its machine says has been carried out, by this replica or another.
RECONCILE_GRACE_SECONDS: Final = 10.0


class BlockerEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """How a waiting Node was judged, and on what."""

    node: Node
    enriched: Event
    failed_write: str
    config: ClusterConfig
    blocker: Blocker | None


class UninitializedNode(msgspec.Struct, kw_only=True):
    """One Node that has not been initialised."""

    uid: str
    since: float  # monotonic seconds
    failed_write: str = ""  # what Kubernetes said to our last try, and when the next one is
    reported_reason: str = ""  # the reason that we have written and may not have seen on the Node yet
    report_at: float | None = None  # when what blocks it is to be said, None if there is nothing to say
    last_evaluation: BlockerEvaluation | None = (
        None  # the last judgement, for as long as nothing else is known
    )
    is_reconciled: bool = False  # whether word of its machine has been here, and all was done that could be


class UninitializedNodes:
    """Kept from what the watcher says; a Node of another uid under the same name waits anew."""

    def __init__(self) -> None:
        self.by_name: dict[str, UninitializedNode] = {}
        self.without_node_ip: set[str] = set()  # Nodes without provided-node-ip that nobody has been told of

    def apply(self, event: object, at: float) -> None:
        """The flow has said this, at that monotonic time."""
        match event:
            case NodeObserved(node=node):
                self._upsert(node, at)
            case NodeGone(name=name):
                self.by_name.pop(name, None)
                self.without_node_ip.discard(name)

    def record_failed_write(self, name: str, uid: str, description: str) -> None:
        """Kubernetes did not take what this Node needs; `said` as `blocked.failed_write` tells it."""
        waiting = self.by_name.get(name)
        if waiting is not None and waiting.uid == uid:
            waiting.failed_write = description

    def record_write(self, name: str) -> None:
        """Kubernetes has taken what there was to write."""
        waiting = self.by_name.get(name)
        if waiting is not None:
            waiting.failed_write, waiting.is_reconciled = "", True

    def clear(self) -> None:
        """Everything known is void."""
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
    """Whether the Node is ours to initialise, as far as anybody knows by now.

    What a machine's providerID will be is for its plan to say, which is not made once a second.
    """
    facts = _known_facts(node, enriched)
    if (why_not_selected if facts else why_not_owned)(config.ownership, node):
        return False
    return not why_not_managed(node, facts.platform if facts else None, configured=config.ownership)


def may_be_excluded(node: Node, config: ClusterConfig) -> bool:
    """Whether by the Node alone it may be another's: where it cannot be planned, nothing is written on it."""
    return bool(why_not_owned(config.ownership, node))


def is_excluded(node: Node, enriched: Event | UnreadablePayload | None, config: ClusterConfig) -> bool:
    """Whether the file has it be another's, as far as anybody knows by now: nothing is written on it."""
    return bool(why_excluded(node, _known_facts(node, enriched), config))


def build_foreign_notice(node: Node, enriched: Event | None, config: ClusterConfig) -> Notice | None:
    """What to tell on a Node that waits for us in vain; None if it is ours, or may yet turn out to be.

    Nothing on one that the file has be another's: its owner knows. A foreign providerID is certain once the
    machine has said its own, or the rules have.
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
    """What keeps this Node from being initialised; None while nothing does, or if it is not ours.

    `enriched` is the last that metadata has said of a Node of that name.
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
    """`find_blocker` as of that monotonic time, judged anew only when something else is known than before.

    All waiting Nodes are asked about once a second: a thousand of them that wait for an API server which is
    busy with a thousand joins must not take its time, too. So what a machine says is carried out first, and
    judged here only if that has led to nothing by then.
    """
    failed = waiting_node.failed_write
    tried = failed or waiting_node.is_reconciled or at - waiting_node.since >= RECONCILE_GRACE_SECONDS
    if isinstance(enriched, NodeEnriched) and not tried:
        return None
    if not isinstance(enriched, NodeEnriched | NodeUnreachable) or enriched.node.uid != node.uid:
        return find_blocker(
            node, enriched, config, waited_seconds=at - waiting_node.since, failed_write=failed
        )
    last = waiting_node.last_evaluation
    if last is None or not _is_unchanged(last, node, enriched, config, failed):
        blocked = find_blocker(
            node, enriched, config, waited_seconds=at - waiting_node.since, failed_write=failed
        )  # with word of its machine, how long it has waited does not count
        last = waiting_node.last_evaluation = BlockerEvaluation(
            node=node, enriched=enriched, failed_write=failed, config=config, blocker=blocked
        )
    return last.blocker


def _is_unchanged(
    last: BlockerEvaluation, node: Node, enriched: Event, config: ClusterConfig, failed_write: str
) -> bool:
    same_words = last.node is node and last.enriched is enriched and last.failed_write == failed_write
    return same_words and last.config is config


def _known_facts(node: Node, enriched: Event | UnreadablePayload | None) -> MachineFacts | None:
    match enriched:
        case NodeEnriched(node=of, facts=facts) if of.uid == node.uid:
            return facts
        case NodeUnreachable(node=of, last_known=facts) if of.uid == node.uid:
            return facts
        case _:
            return None
