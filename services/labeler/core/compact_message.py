"""Stores each Node once, although both its observation and metadata's report contain it."""

from collections.abc import Callable

import msgspec

from libs.common.bus.protocol import Message
from libs.common.contract.events import Event, NodeEnriched, NodeObserved, NodeUnreachable
from libs.common.contract.node import share_equal_parts
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE


def compact_message(message: Message, get_event: Callable[[str], Event | None]) -> Message:
    """Return the message with the equal parts of the Node in the stored message of the other kind.

    `get_event` returns the stored event of a subject.
    """
    event = message.event
    match event:
        case NodeObserved(node=node):
            other = get_event(f"{ENRICHED_NODE}.{node.name}")
        case NodeEnriched(node=node) | NodeUnreachable(node=node):
            other = get_event(f"{OBSERVED_NODE}.{node.name}")
        case _:
            return message
    if not isinstance(other, NodeObserved | NodeEnriched | NodeUnreachable) or other.node is event.node:
        return message
    shared = share_equal_parts(event.node, other.node)
    return msgspec.structs.replace(message, event=msgspec.structs.replace(event, node=shared))
