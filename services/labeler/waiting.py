"""The Nodes that nobody has initialised yet: since when they wait, and what for."""

from typing import Final

import msgspec

from libs.common.bus import Unreadable
from libs.common.events import Event, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.machine import MachineFacts
from libs.common.node import Node
from libs.common.ownership import why_not_owned, why_not_selected
from services.labeler.blocked import Blocked, by_failed_write, by_silence
from services.labeler.ownership import why_not_ours
from services.labeler.plan import (
    Global,
    Notice,
    plan_node,
    plan_unreachable,
    why_left_alone,
    why_not_ours_by_rules,
)

NO_FACTS_AFTER_SECONDS: Final = 20.0  # metadata answers within 10 s, with facts or with a fault
# From the first word of a Node until what its machine says has been carried out, by this replica or another.
CARRIED_OUT_SECONDS: Final = 10.0


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """How a waiting Node was judged, and on what."""

    node: Node
    enriched: Event
    failed_write: str
    config: Global
    blocked: Blocked | None


class Waiting(msgspec.Struct, kw_only=True):
    """One Node that has not been initialised."""

    uid: str
    since: float  # monotonic seconds
    failed_write: str = ""  # what Kubernetes said to our last try, and when the next one is
    written: str = ""  # the reason that we have written and may not have seen on the Node yet
    due: float | None = None  # when what blocks it is to be said, None if there is nothing to say
    judged: Judged | None = None  # the last judgement, for as long as nothing else is known
    carried_out: bool = False  # whether word of its machine has been here, and all was done that could be


class WaitingNodes:
    """Kept from what the watcher says; a Node of another uid under the same name waits anew."""

    def __init__(self) -> None:
        self.by_name: dict[str, Waiting] = {}
        self.unclaimed: set[str] = set()  # Nodes without provided-node-ip that nobody has been told of

    def heard(self, event: object, at: float) -> None:
        """The flow has said this, at that monotonic time."""
        match event:
            case NodeObserved(node=node):
                self._observed(node, at)
            case NodeGone(name=name):
                self.by_name.pop(name, None)
                self.unclaimed.discard(name)

    def write_failed(self, name: str, uid: str, said: str) -> None:
        """Kubernetes did not take what this Node needs; `said` as `blocked.failed_write` tells it."""
        waiting = self.by_name.get(name)
        if waiting is not None and waiting.uid == uid:
            waiting.failed_write = said

    def written(self, name: str) -> None:
        """Kubernetes has taken what there was to write."""
        waiting = self.by_name.get(name)
        if waiting is not None:
            waiting.failed_write, waiting.carried_out = "", True

    def clear(self) -> None:
        """Everything known is void."""
        self.by_name.clear()
        self.unclaimed.clear()

    def _observed(self, node: Node, at: float) -> None:
        if node.provided_node_ip:
            self.unclaimed.discard(node.name)
        else:
            self.unclaimed.add(node.name)
        known = self.by_name.get(node.name)
        if node.initialized:
            self.by_name.pop(node.name, None)
        elif known is None or known.uid != node.uid:
            self.by_name[node.name] = Waiting(uid=node.uid, since=at)


def is_ours(node: Node, enriched: Event | None, config: Global) -> bool:
    """Whether the Node is ours to initialise, as far as anybody knows by now.

    What a machine's providerID will be is for its plan to say, which is not made once a second.
    """
    facts = _facts(node, enriched)
    if (why_not_selected if facts else why_not_owned)(config.ownership, node):
        return False
    return not why_not_ours(node, facts.platform if facts else None, by_file=config.ownership)


def is_nobodys(node: Node, config: Global) -> bool:
    """Whether by the Node alone it may be another's: where it cannot be planned, nothing is written on it."""
    return bool(why_not_owned(config.ownership, node))


def is_left_alone(node: Node, enriched: Event | Unreadable | None, config: Global) -> bool:
    """Whether the file has it be another's, as far as anybody knows by now: nothing is written on it."""
    return bool(why_left_alone(node, _facts(node, enriched), config))


def not_ours_for_certain(node: Node, enriched: Event | None, config: Global) -> Notice | None:
    """What to tell on a Node that waits for us in vain; None if it is ours, or may yet turn out to be.

    Nothing on one that the file has be another's: its owner knows. A foreign providerID is certain once the
    machine has said its own, or the rules have.
    """
    if node.metadata.deletion_timestamp is not None:
        return None
    if is_left_alone(node, enriched, config):
        return None
    if not node.provided_node_ip:
        return Notice(reason="ProvidedNodeIPMissing", message=why_not_ours(node, None))
    if not isinstance(enriched, NodeEnriched) or enriched.node.uid != node.uid:
        return None
    foreign = why_not_ours_by_rules(node, enriched.facts, config)
    return Notice(reason="ProviderIDOfAnother", message=f"left alone: {foreign}") if foreign else None


def why_blocked(
    node: Node, enriched: Event | None, config: Global, *, waited_seconds: float, failed_write: str = ""
) -> Blocked | None:
    """What keeps this Node from being initialised; None while nothing does, or if it is not ours.

    `enriched` is the last that metadata has said of a Node of that name.
    """
    match enriched:
        case NodeEnriched(node=of, facts=facts, recognized_by=recognized_by) if of.uid == node.uid:
            plan = plan_node(node, facts, recognized_by, config)
            if plan.outcome == "initialized" and failed_write:
                return by_failed_write(failed_write)
            return plan.blocked
        case NodeUnreachable(node=of) if of.uid == node.uid:
            return plan_unreachable(node, enriched, config).blocked
    waits = not node.initialized and is_ours(node, None, config)
    return by_silence(NO_FACTS_AFTER_SECONDS) if waits and waited_seconds >= NO_FACTS_AFTER_SECONDS else None


def why_still_blocked(
    waiting: Waiting, node: Node, enriched: Event | None, config: Global, *, at: float
) -> Blocked | None:
    """`why_blocked` as of that monotonic time, judged anew only when something else is known than before.

    All waiting Nodes are asked about once a second: a thousand of them that wait for an API server which is
    busy with a thousand joins must not take its time, too. So what a machine says is carried out first, and
    judged here only if that has led to nothing by then.
    """
    failed = waiting.failed_write
    tried = failed or waiting.carried_out or at - waiting.since >= CARRIED_OUT_SECONDS
    if isinstance(enriched, NodeEnriched) and not tried:
        return None
    if not isinstance(enriched, NodeEnriched | NodeUnreachable) or enriched.node.uid != node.uid:
        return why_blocked(node, enriched, config, waited_seconds=at - waiting.since, failed_write=failed)
    last = waiting.judged
    if last is None or not _is_all_as_before(last, node, enriched, config, failed):
        blocked = why_blocked(
            node, enriched, config, waited_seconds=at - waiting.since, failed_write=failed
        )  # with word of its machine, how long it has waited does not count
        last = waiting.judged = Judged(
            node=node, enriched=enriched, failed_write=failed, config=config, blocked=blocked
        )
    return last.blocked


def _is_all_as_before(last: Judged, node: Node, enriched: Event, config: Global, failed_write: str) -> bool:
    same_words = last.node is node and last.enriched is enriched and last.failed_write == failed_write
    return same_words and last.config is config


def _facts(node: Node, enriched: Event | Unreadable | None) -> MachineFacts | None:
    match enriched:
        case NodeEnriched(node=of, facts=facts) if of.uid == node.uid:
            return facts
        case NodeUnreachable(node=of, last_known=facts) if of.uid == node.uid:
            return facts
        case _:
            return None
