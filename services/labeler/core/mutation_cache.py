"""Caches the API server's last response for each Node until the watcher has published the same state.

A joining Node often changes several times within a second: its kubelet reports, a controller rewrites taints.
These events were observed before the labeler's own writes, so a plan on them would repeat the writes.
"""

from collections.abc import Callable
from typing import Final

from libs.common.bus.protocol import Message
from libs.common.contract.events import NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.node import Node, trim_node

# The watcher publishes within 9 s. Entries expire because a restored etcd goes back to older versions.
ENTRY_TTL_SECONDS: Final = 12.0


class MutationCache:
    """The Nodes of the labeler's own responses, by name; resourceVersions order two views (KEP-5504)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._entries: dict[str, tuple[float, Node]] = {}

    def store(self, node: Node) -> None:
        """Store a response of the API server, unless a newer one is stored."""
        self._entries[node.name] = (self._clock(), trim_node(self.latest(node)))

    def latest(self, node: Node) -> Node:
        """Return the stored response if it has the same UID and is newer than this view, else this view."""
        at, response = self._entries.get(node.name, (0.0, node))
        valid = response.uid == node.uid and self._clock() - at <= ENTRY_TTL_SECONDS
        return response if valid and response.resource_version_number > node.resource_version_number else node

    def apply(self, event: object) -> None:
        """Apply an event of the flow: drop the response that it supersedes."""
        match event:
            case NodeObserved(node=node):
                if self.latest(node) is node:
                    self._entries.pop(node.name, None)
            case NodeGone(name=name):
                self._entries.pop(name, None)


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
