"""The states of all Nodes, for the parts of metadata that need more than one of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.node import Node
from services.metadata.core.node_state import NodeState
from services.metadata.core.object_state import Timing

if TYPE_CHECKING:  # the reconciler imports the registry
    from services.metadata.on_node_observed import NodeReconciler


class NodeRegistry(Mapping[str, NodeState]):
    """The state of each Node by name. It tells one listener which state changed."""

    def __init__(self, nodes: "Mapping[str, NodeReconciler]", stream_cache: StreamCache) -> None:
        self._nodes = nodes
        self._stream_cache = stream_cache
        # Called with the name of each Node whose state changed or was removed.
        self.notify: Callable[[str], None] = lambda name: None

    def __getitem__(self, name: str) -> NodeState:
        return self._nodes[name].state

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def apply(self, name: str, change: Callable[[NodeState, Timing], NodeState]) -> None:
        """Apply a change to the state of that Node, if it still exists."""
        if name in self._nodes:
            self._nodes[name].apply(change)

    def expedite_poll(self, name: str, within_seconds: float = 0.0) -> None:
        """Poll the machine of that Node within that time."""
        self.apply(name, lambda state, timing: state.poll_within(within_seconds, timing))

    @property
    def is_complete(self) -> bool:
        """Whether all Nodes of the stream are known."""
        return self._stream_cache.is_complete

    def list_nodes(self) -> Iterable[Node] | None:
        """Return all Nodes; None while not all of them are known."""
        if not self.is_complete:
            return None
        return (node.state.node for node in self._nodes.values() if node.state.node is not None)

    def list_reachable(self) -> frozenset[str]:
        """Return the Nodes whose machines were verified by node name."""
        identities = ((name, state.identity) for name, state in self.items())
        return frozenset(name for name, by in identities if by is not None and by.method == "nodename")
