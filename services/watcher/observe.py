"""What is worth saying of a Node: it as Kubernetes holds it, against what the stream holds of it."""

from datetime import datetime
from typing import Final

import msgspec

from libs.common.events import NodeGone, NodeObserved, ObservedNode, ObservedOrder
from libs.common.node import Node, same_to_us
from libs.common.subjects import is_publishable_name

BYTES_PER_NODE: Final = 20_000  # a Node, its facts and its decisions, with room for large labels
STREAM_STEP_BYTES: Final = 64 * 1024 * 1024  # the least, and the step in which the stream grows


class Stamp(msgspec.Struct, frozen=True, kw_only=True):
    """What every observation of one term bears: into which stream, by which leader."""

    incarnation: str
    epoch: int


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """It is to be said."""

    event: ObservedNode
    reason: str


class Unchanged(msgspec.Struct, frozen=True, kw_only=True):
    """The stream already says it."""

    reason: str


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """That object cannot be said, whatever we do; the others can."""

    reason: str


Observation = Publish | Unchanged | Skipped


def observe(
    node: Node, held: ObservedNode | None, stamp: Stamp, *, now: datetime, anyway: bool = False
) -> Observation:
    """Judge a Node that exists; `node` is what_we_read of it, `held` the last said of its name.

    `anyway` says it again although nothing changed (resync, a new leader, a new stream). A new uid under an
    old name is news like any other: consumers take it as the old one's NodeGone.
    """
    if not is_publishable_name(node.name):
        return Skipped(reason=f"the name {node.name!r} cannot be the end of a subject")
    if not node.version:
        version = node.metadata.resource_version
        return Skipped(reason=f"its resourceVersion {version!r} is no number, so it has no place in an order")
    order = ObservedOrder(epoch=stamp.epoch, resource_version=node.version)
    why = _why_say(node, held, order, anyway=anyway)
    if why is None:
        return Unchanged(reason="the stream holds it, or something newer")
    event = NodeObserved(incarnation=stamp.incarnation, order=order, node=node, observed_at=now)
    return Publish(event=event, reason=why)


def observe_absence(
    held: ObservedNode | None, stamp: Stamp, *, seen_version: int, now: datetime
) -> Publish | Unchanged:
    """Judge a name that no Node bears as of `seen_version`, the last resourceVersion that was heard."""
    order = ObservedOrder(epoch=stamp.epoch, resource_version=seen_version)
    if not isinstance(held, NodeObserved):
        return Unchanged(reason="the stream holds no Node of that name")
    if held.order > order:
        return Unchanged(reason="the stream holds an observation from after we looked")
    event = NodeGone(
        incarnation=stamp.incarnation, order=order, name=held.node.name, uid=held.node.uid, observed_at=now
    )
    return Publish(event=event, reason="deleted")


def next_epoch(*, heard: int, lease_transitions: int) -> int:
    """The epoch of a new leader: above every leader that this stream or the Lease remembers."""
    return 1 + max(heard, lease_transitions)


def stream_bytes(nodes: int) -> int:
    """Room for that many Nodes, in whole steps, so that a growing cluster does not resize it per Node."""
    steps = -(-nodes * BYTES_PER_NODE // STREAM_STEP_BYTES)
    return max(1, steps) * STREAM_STEP_BYTES


def _why_say(node: Node, held: ObservedNode | None, order: ObservedOrder, *, anyway: bool) -> str | None:
    if held is None:
        return "new to the stream"
    if held.order > order:
        return None
    if isinstance(held, NodeGone):
        return "exists again"
    if not same_to_us(held.node, node):
        return "changed"
    return "said again" if anyway else None
