"""The Nodes of the cluster as the API server last told them, and as of when."""

from collections.abc import Iterable, KeysView

from libs.common.node import Node, same_to_us, version_number, what_we_read


class Cluster:
    """A list, kept up to date by what a watch tells; each change names the nodes that it concerns."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._unreadable: set[str] = set()
        self._seen_version = 0
        self._listed = False

    @property
    def listed(self) -> bool:
        """Whether there has been a list: before it, no name that is missing has gone."""
        return self._listed

    @property
    def seen_version(self) -> int:
        """The last resourceVersion heard: who is missing here did not exist as of it."""
        return self._seen_version

    def __len__(self) -> int:
        return len(self._nodes)

    def names(self) -> KeysView[str]:
        """Of every Node that can be read."""
        return self._nodes.keys()

    def node(self, name: str) -> Node | None:
        """What we read of that Node, None if there is none or it cannot be read."""
        return self._nodes.get(name)

    def is_unreadable(self, name: str) -> bool:
        """Whether a Node of that name exists which cannot be read: it has not gone."""
        return name in self._unreadable

    def names_by_uid(self) -> dict[str, str]:
        """For the resync, whose turns belong to uids."""
        return {node.uid: name for name, node in self._nodes.items()}

    def replace(self, nodes: Iterable[Node], unreadable: Iterable[str], resource_version: str) -> set[str]:
        """A list; returns the names that it changed, those that are no more included."""
        before = self._nodes
        self._nodes = {node.name: what_we_read(node) for node in nodes}
        self._unreadable = set(unreadable)
        self._listed = True
        self._seen_version = version_number(resource_version)
        kept = {name for name in before.keys() & self._nodes.keys() if before[name] == self._nodes[name]}
        return (before.keys() | self._nodes.keys()) - kept

    def put(self, node: Node) -> bool:
        """A Node was added or modified; returns whether in a way that we read."""
        known = self._nodes.get(node.name)
        read = what_we_read(node)
        self._nodes[node.name] = read
        self._unreadable.discard(node.name)
        self.saw(node.metadata.resource_version)
        return known is None or not same_to_us(known, read)

    def remove(self, name: str, resource_version: str) -> None:
        """A Node was deleted."""
        self._nodes.pop(name, None)
        self._unreadable.discard(name)
        self.saw(resource_version)

    def cannot_read(self, name: str) -> None:
        """A Node exists, but not in a shape that we read; what was known of it is old."""
        self._nodes.pop(name, None)
        self._unreadable.add(name)

    def saw(self, resource_version: str) -> None:
        """A bookmark, or any other object of the watch, bore this version."""
        self._seen_version = max(self._seen_version, version_number(resource_version))
