"""Which view of a Node to plan on: the newest one at hand spares a failed fence and the read after it."""

from libs.common.bus.protocol import Message
from libs.common.contract.events import NodeEnriched, NodeObserved, NodeUnreachable
from libs.common.contract.node import Node


def select_latest_node(event: NodeEnriched | NodeUnreachable, observed: Message | None) -> Node | None:
    """The Node as it was last seen, None if the event's Node exists no more.

    `heard` is the last that the watcher has said of that name: what comes after the observation that the
    event enriches is newer, and another uid is another Node.
    """
    if observed is None or observed.sequence <= event.observed_sequence:
        return event.node
    if isinstance(observed.event, NodeObserved) and observed.event.node.uid == event.node.uid:
        return observed.event.node
    return None
