"""The cluster as the flow tells it: where blocks come from, what none may touch, what is not known yet."""

from collections.abc import Callable, Sequence
from typing import Final

from libs.common.cloud_config.rule import Pool as ConfiguredPool
from libs.common.delivery import TemporaryError
from libs.common.events import (
    ClusterNetworksObserved,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.node import Node
from libs.common.startup_gate import StartupGate
from libs.common.subjects import ENRICHED_NODE, OBSERVED_NODE, name_in
from services.ipam.cluster_networks import ClusterNetworks, cluster_networks
from services.ipam.known_nodes import KnownNodes
from services.ipam.outcomes import Unserved, Wait
from services.ipam.plan import Occupied
from services.ipam.pools import Pool, pools_for
from services.ipam.settings import IpamSettings

_NO_FACTS: Final = "Talos has told nothing of its machine yet, and no block may hold an address of it"
_NO_WORD: Final = "metadata has not spoken of all machines yet, and no block may hold an address of one"


class Picture:
    """Of one replica. Nothing is concluded from it before the flow is complete: that is asked of the flow."""

    def __init__(
        self, settings: IpamSettings, *, left: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        """`left` hears which Node is there no more, `changed` that who waits may be served now."""
        self.nodes = KnownNodes()
        self._settings = settings
        self._left = left
        self._changed = changed
        self._networks: ClusterNetworks | Wait | Unserved = cluster_networks(settings.said, None)
        self._gate = StartupGate()

    def problems(self) -> tuple[str, ...]:
        """Why nobody can be served, in words for /readyz."""
        networks, closed = self._networks, self._gate.why_closed()
        unknown = (networks.reason,) if isinstance(networks, Wait | Unserved) else ()
        return (*unknown, *((closed,) if closed else ()))

    def everybodys(self) -> tuple[str, ...]:
        """The reasons that are on no Node: /readyz tells them, or the labeler that its machine is silent."""
        networks = self._networks
        unknown = (networks.reason,) if isinstance(networks, Wait | Unserved) else ()
        return (_NO_FACTS, _NO_WORD, *unknown)

    def pools_of(
        self, node: Node, configured: Sequence[ConfiguredPool]
    ) -> tuple[Pool, ...] | Wait | Unserved:
        """Where that Node's blocks come from."""
        networks = self._networks
        if isinstance(networks, Wait | Unserved):
            return networks
        if self._gate.is_waiting:
            return Wait(_NO_WORD)
        facts = self.nodes.facts(node.name, node.uid)
        if facts is None:
            return Wait(_NO_FACTS)
        return pools_for(node, facts, networks.pods, configured, self._settings.cidr_allocator_type)

    def occupied(self) -> Occupied:
        """What no block may touch. Raises TemporaryError while that is not all known."""
        networks = self._networks
        if not isinstance(networks, ClusterNetworks):
            raise TemporaryError("nothing can be claimed", networks.reason)
        if why := self._gate.why_closed():
            raise TemporaryError("nothing can be claimed", f"ipam {why}")
        return self.nodes.occupied(networks.services)

    # ---- what the flow says

    def complete(self) -> None:
        """All that the stream holds has been taken in, for the first time or again."""
        self._gate.set()

    def told_to_be_complete(self) -> None:
        """The watcher has named all Nodes; that counts once for each stream."""
        if not self._gate.is_set:
            self._gate.set()

    def incomplete(self) -> None:
        """What the stream holds was taken in, and it is not all: the next snapshot counts."""
        self._gate.unset()

    def void(self) -> None:
        """Everything known is void, but for the networks: those of another stream are told soon."""
        self.nodes.clear()
        self._gate.clear()

    def take_in(self, event: object) -> None:
        """The flow says that."""
        match event:
            case NodeObserved(node=node):
                before = self.nodes.node(node.name)
                self.nodes.observed(node)
                if before is not None and before.uid != node.uid:
                    self._left(before.name)
            case NodeGone(name=name):
                self._gone(name)
            case NodeEnriched() | NodeUnreachable():
                self.nodes.enriched(event)
            case EnrichedNodeGone(name=name):
                self.nodes.enriched_gone(name)
            case ClusterNetworksObserved():
                self._networks_observed(event)
        if self._gate.take_in(event):
            self._changed()

    def dropped(self, subject: str) -> None:
        """The stream holds it no more: that is how long it has been gone, or nobody said it again."""
        if subject.startswith(f"{OBSERVED_NODE}."):
            self._gone(name_in(subject, OBSERVED_NODE))
        elif subject.startswith(f"{ENRICHED_NODE}."):
            self.nodes.enriched_gone(name_in(subject, ENRICHED_NODE))
        if self._gate.dropped(subject):
            self._changed()

    def _gone(self, name: str) -> None:
        if self.nodes.node(name) is not None:
            self.nodes.gone(name)
            self._left(name)

    def _networks_observed(self, event: ClusterNetworksObserved) -> None:
        networks = cluster_networks(self._settings.said, event)
        if networks != self._networks:
            self._networks = networks
            self._changed()
