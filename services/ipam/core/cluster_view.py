"""The state of the cluster from the flow: pools, exclusions, and what is unknown yet."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
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
from libs.common.contract.ip_addresses import canonical_ip, list_node_ips
from libs.common.contract.machine import MachineFacts
from libs.common.contract.networks import parse_foreign_network
from libs.common.contract.node import Node
from libs.common.service.startup_gate import StartupGate
from services.ipam.core.effective_networks import NetworkFlags, resolve_networks
from services.ipam.core.ledger import Exclusions
from services.ipam.core.pools import Allocator as AllocatorType
from services.ipam.core.pools import CannotAllocate, EffectiveNetworks, NotReady, Pool, select_pools

_NO_FACTS: Final = (
    "Talos has reported nothing about its machine yet, and no block may contain an address of it"
)
_METADATA_INCOMPLETE: Final = (
    "metadata has not reported on all machines yet, and no block may contain an address of one"
)
# Addresses in a Node's status that count: its kubelet may write any, and each one reserves a block.
_MAX_ADDRESSES_PER_NODE: Final = 16
_MAX_ADDRESS_CHARS: Final = 64  # an IPv4-mapped address with a prefix length has 49


@dataclass(eq=False)
class ClusterView:
    """The view of one replica. Callers check that the stream cache is complete before they use it."""

    network_flags: NetworkFlags
    allocator: AllocatorType
    gate: StartupGate
    _: KW_ONLY
    on_change: Callable[[], None]  # waiting Nodes may now be served

    def __post_init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, NodeEnriched | NodeUnreachable] = {}  # metadata's last one, by Node
        self._addresses: dict[str, tuple[str, ...]] = {}  # of Node and machine, the most important ones first
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

    def get_node(self, name: str) -> Node | None:
        """Return the Node as last observed; None if it does not exist."""
        return self._nodes.get(name)

    def iter_pod_cidrs(self) -> Iterable[tuple[str, Node]]:
        """Return each podCIDR with its Node."""
        return ((cidr, node) for node in self._nodes.values() for cidr in node.spec.pod_cidrs)

    def list_nodes_without_pod_cidrs(self) -> list[str]:
        """Return the names of the Nodes that may need a block."""
        return [node.name for node in self._nodes.values() if not node.spec.pod_cidrs]

    def select_pools(
        self, node: Node, configured: Sequence[ConfiguredPool]
    ) -> tuple[Pool, ...] | NotReady | CannotAllocate:
        """Return the pools for that Node, or why there are none."""
        networks = self._networks
        if isinstance(networks, NotReady | CannotAllocate):
            return networks
        if self.gate.is_waiting:
            return NotReady(_METADATA_INCOMPLETE)
        report = self._reports.get(node.name)
        facts = _facts_of(report) if report is not None and report.node.uid == node.uid else None
        if facts is None:
            return NotReady(_NO_FACTS)
        return select_pools(node, facts, networks, configured, self.allocator)

    def get_exclusions(self) -> Exclusions:
        """Return what no block may overlap. Raises TemporaryError while a part of it is unknown."""
        networks = self._networks
        if not isinstance(networks, EffectiveNetworks):
            raise TemporaryError("ipam cannot claim blocks now", networks.reason)
        if why := self.gate.why_closed():
            raise TemporaryError("ipam cannot claim blocks now", f"ipam {why}")
        with_some = [node for node in self._nodes.values() if node.spec.pod_cidrs]
        return Exclusions(
            networks=networks.services,
            addresses_by_node=dict(self._addresses),
            pod_cidrs_by_uid={node.uid: node.spec.pod_cidrs for node in with_some},
            node_names_by_uid={node.uid: node.name for node in with_some},
        )

    # ---- messages of the flow

    def on_stream_replaced(self) -> None:
        """Drop everything except the networks: metadata soon publishes them to the new stream.

        The first snapshot of the new stream replaces the ranges of ServiceCIDRs, and ipam waits for it.
        """
        for table in (self._nodes, self._reports, self._addresses):
            table.clear()

    def apply(self, event: object) -> None:
        """Apply an event of the flow."""
        match event:
            case NodeObserved(node=node):
                before = self._nodes.get(node.name)
                self._nodes[node.name] = node
                if before is None or _address_fields(before) != _address_fields(node):  # rarely true
                    self._update_addresses(node.name)
            case NodeGone(name=name):
                self._nodes.pop(name, None)
                self._update_addresses(name)
            case NodeEnriched(node=node) | NodeUnreachable(node=node):
                self._reports[node.name] = event
                self._update_addresses(node.name)
            case EnrichedNodeGone(name=name):
                self._reports.pop(name, None)
                self._update_addresses(name)
            case ClusterNetworksObserved():
                self._update_networks(event, self._service_cidrs)
            case SnapshotComplete(service_cidrs=added):
                self._update_networks(self._observed, added)

    def _update_addresses(self, name: str) -> None:
        node, report = self._nodes.get(name), self._reports.get(name)
        of_node = _list_node_addresses(node) if node is not None else ()
        of_machine = _list_machine_addresses(_facts_of(report)) if report is not None else ()
        self._addresses.pop(name, None)
        if addresses := tuple(dict.fromkeys((*of_node, *of_machine))):
            self._addresses[name] = addresses

    def _update_networks(
        self, observed: ClusterNetworksObserved | None, service_cidrs: tuple[str, ...] | None
    ) -> None:
        self._observed, self._service_cidrs = observed, service_cidrs
        networks = resolve_networks(self.network_flags, observed, service_cidrs)
        if networks != self._networks:
            self._networks = networks
            self.on_change()


def _facts_of(report: NodeEnriched | NodeUnreachable) -> MachineFacts | None:
    """Return the current or last known facts of the machine; None if there are none."""
    return report.facts if isinstance(report, NodeEnriched) else report.last_known


def _address_fields(node: Node) -> tuple[object, ...]:
    return node.provided_node_ip, node.status.addresses


def _list_node_addresses(node: Node) -> tuple[str, ...]:
    provided = map(str, list_node_ips(node.provided_node_ip))
    reported = [a.address for a in node.status.addresses if a.type in ("InternalIP", "ExternalIP")]
    return _filter_canonical((*provided, *reported[:_MAX_ADDRESSES_PER_NODE]))


def _list_machine_addresses(facts: MachineFacts | None) -> tuple[str, ...]:
    """Return single addresses without their subnets: pods may get other blocks of a node's subnet."""
    if facts is None:
        return ()
    listed = (canonical_ip(status.address) for status in facts.addresses)
    return _filter_canonical((*facts.gateways, *listed))


def _filter_canonical(addresses: Iterable[str]) -> tuple[str, ...]:
    short = (text for text in addresses if len(text) <= _MAX_ADDRESS_CHARS)
    return tuple(text for text in map(_canonical, short) if text)


@lru_cache(maxsize=1 << 16)  # caches short texts only; each machine reports the same addresses repeatedly
def _canonical(address: str) -> str:
    """Return a network of one address; "" for a wider one: 0.0.0.0/0 must not reserve all blocks."""
    network = parse_foreign_network(address)
    return "" if network is None or network.prefix < network.bits else str(network)
