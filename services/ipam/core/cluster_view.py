"""The state of the cluster from the flow: pools, exclusions, and what is unknown yet."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from libs.common.bus.delivery import TemporaryError
from libs.common.cloud_config.model import Pool as ConfiguredPool
from libs.common.contract.events import (
    ClusterNetworksObserved,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    SnapshotComplete,
)
from libs.common.contract.node import Node
from libs.common.service.startup_gate import StartupGate
from services.ipam.core.effective_networks import EffectiveNetworks, NetworkFlags, resolve_networks
from services.ipam.core.ledger import Exclusions
from services.ipam.core.node_index import NodeIndex
from services.ipam.core.pools import Allocator as AllocatorType
from services.ipam.core.pools import CannotAllocate, NotReady, Pool, select_pools

_NO_FACTS: Final = (
    "Talos has reported nothing about its machine yet, and no block may contain an address of it"
)
_METADATA_INCOMPLETE: Final = (
    "metadata has not reported on all machines yet, and no block may contain an address of one"
)


@dataclass(eq=False)
class ClusterView:
    """The view of one replica. Callers check that the stream cache is complete before they use it."""

    network_flags: NetworkFlags
    allocator: AllocatorType
    gate: StartupGate
    _: KW_ONLY
    on_node_deleted: Callable[[str], None]  # receives a deleted Node's name
    on_pod_cidrs_removed: Callable[[Node], None]
    on_change: Callable[[], None]  # waiting Nodes may now be served

    def __post_init__(self) -> None:
        self.nodes = NodeIndex()
        self._networks: EffectiveNetworks | NotReady | CannotAllocate = resolve_networks(
            self.network_flags, None, None
        )
        self._observed: ClusterNetworksObserved | None = None
        self._service_cidrs: tuple[str, ...] | None = None

    def problems(self) -> tuple[str, ...]:
        """Return why ipam can serve no Node, in words for /readyz."""
        closed = self.gate.why_closed()
        return (*self._list_unknown(), *((closed,) if closed else ()))

    def cluster_wide_reasons(self) -> tuple[str, ...]:
        """Return the reasons without an Event on Nodes: /readyz or the labeler already reports them."""
        return (_NO_FACTS, _METADATA_INCOMPLETE, *self._list_unknown())

    def _list_unknown(self) -> tuple[str, ...]:
        networks = self._networks
        return () if isinstance(networks, EffectiveNetworks) else (networks.reason,)

    def select_pools(
        self, node: Node, configured: Sequence[ConfiguredPool]
    ) -> tuple[Pool, ...] | NotReady | CannotAllocate:
        """Return the pools for that Node, or why there are none."""
        networks = self._networks
        if isinstance(networks, NotReady | CannotAllocate):
            return networks
        if self.gate.is_waiting:
            return NotReady(_METADATA_INCOMPLETE)
        facts = self.nodes.get_facts(node.name, node.uid)
        if facts is None:
            return NotReady(_NO_FACTS)
        return select_pools(node, facts, networks.pods, configured, self.allocator)

    def get_exclusions(self) -> Exclusions:
        """Return what no block may overlap. Raises TemporaryError while a part of it is unknown."""
        networks = self._networks
        if not isinstance(networks, EffectiveNetworks):
            raise TemporaryError("ipam cannot claim blocks now", networks.reason)
        if why := self.gate.why_closed():
            raise TemporaryError("ipam cannot claim blocks now", f"ipam {why}")
        return self.nodes.build_exclusions(networks.services)

    # ---- messages of the flow

    def on_stream_replaced(self) -> None:
        """Drop everything except the networks: metadata soon publishes them to the new stream.

        The first snapshot of the new stream replaces the ranges of ServiceCIDRs, and ipam waits for it.
        """
        self.nodes.clear()

    def apply(self, event: object) -> None:
        """Apply an event of the flow."""
        match event:
            case NodeObserved(node=node):
                before = self.nodes.get(node.name)
                self.nodes.update_node(node)
                if before is not None and before.uid != node.uid:
                    self.on_node_deleted(before.name)
                elif before is not None and before.spec.pod_cidrs and not node.spec.pod_cidrs:
                    self.on_pod_cidrs_removed(node)
            case NodeGone(name=name) if self.nodes.get(name) is not None:
                self.nodes.delete_node(name)
                self.on_node_deleted(name)
            case NodeEnriched() | NodeUnreachable():
                self.nodes.update_facts(event)
            case EnrichedNodeGone(name=name):
                self.nodes.delete_facts(name)
            case ClusterNetworksObserved():
                self._update_networks(event, self._service_cidrs)
            case SnapshotComplete(service_cidrs=added):
                self._update_networks(self._observed, added)

    def _update_networks(
        self, observed: ClusterNetworksObserved | None, service_cidrs: tuple[str, ...] | None
    ) -> None:
        self._observed, self._service_cidrs = observed, service_cidrs
        networks = resolve_networks(self.network_flags, observed, service_cidrs)
        if networks != self._networks:
            self._networks = networks
            self.on_change()
