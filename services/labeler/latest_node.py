"""Selects the newest view of a Node, which avoids a failed fence and another request."""

from libs.common.bus.protocol import Message
from libs.common.contract.events import NodeEnriched, NodeObserved, NodeUnreachable
from libs.common.contract.node import Node


def select_latest_node(event: NodeEnriched | NodeUnreachable, observed: Message | None) -> Node | None:
    """Return the Node as last observed; None if the event's Node no longer exists.

    `observed` is the watcher's last message about that name. It is newer if its sequence is above the
    event's `observed_sequence`; another UID is another Node.
    """
    if observed is None or observed.sequence <= event.observed_sequence:
        return event.node
    if isinstance(observed.event, NodeObserved) and observed.event.node.uid == event.node.uid:
        return observed.event.node
    return None
