"""What the API server last answered of each Node, until the watcher tells as much.

Whatever changes on a joining Node within the same second (its kubelet reports, a controller rewrites taints)
brings word of it that was observed before our own writes: a plan made on that would write all of it again.
"""

from collections.abc import Callable
from typing import Final

from libs.common.contract.events import NodeGone, NodeObserved
from libs.common.contract.node import Node, trim_node

ENTRY_TTL_SECONDS: Final = 12.0  # the watcher tells within eight; an etcd restored from a backup goes back


class MutationCache:
    """Nodes as of our own requests, by name; resourceVersions tell which of two views is newer (KEP-5504)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._entries: dict[str, tuple[float, Node]] = {}

    def store(self, node: Node) -> None:
        """The API server has answered with this."""
        self._entries[node.name] = (self._clock(), trim_node(self.latest(node)))

    def latest(self, node: Node) -> Node:
        """The answer about this very Node if it is newer than this view of it, else this view."""
        at, answer = self._entries.get(node.name, (0.0, node))
        fresh = answer.uid == node.uid and self._clock() - at <= ENTRY_TTL_SECONDS
        return answer if fresh and answer.resource_version_number > node.resource_version_number else node

    def apply(self, event: object) -> None:
        """The flow has said this: an answer that tells nothing more is dropped."""
        match event:
            case NodeObserved(node=node):
                if self.latest(node) is node:
                    self._entries.pop(node.name, None)
            case NodeGone(name=name):
                self._entries.pop(name, None)
