"""What the API server last answered of each Node, until the watcher tells as much.

Whatever changes on a joining Node within the same second (its kubelet reports, a controller rewrites taints)
brings word of it that was observed before our own writes: a plan made on that would write all of it again.
"""

from collections.abc import Callable
from typing import Final

from libs.common.events import NodeGone, NodeObserved
from libs.common.node import Node, what_we_read

BELIEVED_SECONDS: Final = 12.0  # the watcher tells within eight; an etcd restored from a backup goes back


class Answers:
    """Nodes as of our own requests, by name; resourceVersions tell which of two views is newer (KEP-5504)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._answers: dict[str, tuple[float, Node]] = {}

    def keep(self, node: Node) -> None:
        """The API server has answered with this."""
        self._answers[node.name] = (self._clock(), what_we_read(self.newest(node)))

    def newest(self, node: Node) -> Node:
        """The answer about this very Node if it is newer than this view of it, else this view."""
        at, answer = self._answers.get(node.name, (0.0, node))
        fresh = answer.uid == node.uid and self._clock() - at <= BELIEVED_SECONDS
        return answer if fresh and answer.version > node.version else node

    def heard(self, event: object) -> None:
        """The flow has said this: an answer that tells nothing more is dropped."""
        match event:
            case NodeObserved(node=node):
                if self.newest(node) is node:
                    self._answers.pop(node.name, None)
            case NodeGone(name=name):
                self._answers.pop(name, None)
