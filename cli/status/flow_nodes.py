"""Nodes: which are usable, and what each of the others waits for. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from cli.inside.seen import FlowSeen, ObjectSeen
from libs.common.events import Decided, NodeUnreachable
from libs.common.node import BLOCKED_CONDITION, PROVIDED_NODE_IP_ANNOTATION, Node

JOINING_SECONDS: Final = 60.0  # for so long a Node may be on its way without anything being wrong


class StuckNode(msgspec.Struct, frozen=True, kw_only=True):
    """A Node that bears the taint, and why."""

    name: str
    seconds: float | None  # since it was registered
    blocked: bool  # what has been tried failed
    why: str

    @property
    def joining(self) -> bool:
        """Whether it may yet be all right."""
        return not self.blocked and self.seconds is not None and self.seconds < JOINING_SECONDS


class NodesStanding(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    count: int
    usable: int
    not_ready: int  # of the usable ones: their kubelets say so, or nothing
    uninitialized: tuple[StuckNode, ...]  # the oldest first

    @property
    def stuck(self) -> tuple[StuckNode, ...]:
        """Those that are not merely joining."""
        return tuple(node for node in self.uninitialized if not node.joining)


def nodes_standing(nodes: Iterable[Node], flow: FlowSeen | None, at: datetime) -> NodesStanding:
    """`flow` may know the last words about those that are not usable."""
    everything = tuple(nodes)
    usable = [node for node in everything if node.is_initialized]
    stuck = [_stuck(node, flow, at) for node in everything if not node.is_initialized]
    return NodesStanding(
        count=len(everything),
        usable=len(usable),
        not_ready=sum(not _ready(node) for node in usable),
        uninitialized=tuple(sorted(stuck, key=lambda one: (-(one.seconds or 0.0), one.name))),
    )


def _ready(node: Node) -> bool:
    condition = node.find_condition("Ready")
    return condition is not None and condition.status == "True"


def _stuck(node: Node, flow: FlowSeen | None, at: datetime) -> StuckNode:
    created = node.metadata.creation_timestamp
    seconds = (at - created).total_seconds() if created else None
    said = flow.of("node", node.name) if flow else None
    blocked = node.find_condition(BLOCKED_CONDITION)
    is_blocked = blocked is not None and blocked.status == "True"
    if blocked is not None and is_blocked:
        why = f"{blocked.reason}: {blocked.message}" if blocked.message else blocked.reason
    else:
        why = _what_is_missing(node, said, flow, seconds)
    return StuckNode(name=node.name, seconds=seconds, blocked=is_blocked, why=why)


def _what_is_missing(
    node: Node, said: ObjectSeen | None, flow: FlowSeen | None, seconds: float | None
) -> str:
    """The first step of its way that has not been taken."""
    if not node.provided_node_ip:
        return f"its kubelet has set no annotation {PROVIDED_NODE_IP_ANNOTATION}: nobody asks its machine"
    if said is None and seconds is not None and seconds < JOINING_SECONDS:
        return "it has just joined"
    if flow is None or said is None:
        return "no condition says why: see talos-ccm explain node"
    if said.dead:
        return "a message about it could not be handled: see the dead letters"
    if said.enriched is None:
        missing = "the watcher has not told of it" if said.observed is None else "metadata has not asked it"
        return f"{missing}, as far as messages of the last hour tell"
    if isinstance(said.enriched.event, NodeUnreachable):
        return f"its machine does not answer: {said.enriched.event.fault.message}"
    for word in said.decided:
        if isinstance(word.event, Decided) and word.event.service == "labeler":
            return f"labeler, {word.event.outcome}: {word.event.reason}"
    return "its machine has answered, and the labeler has not decided"
