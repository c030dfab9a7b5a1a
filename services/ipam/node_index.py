"""What the flow says of all Nodes, as far as it decides which blocks are free."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.node_ips import InvalidNodeIP, parse_node_ips
from services.ipam.address_reservations import MAX_BLOCKS_PER_NODE
from services.ipam.allocation_plan import Exclusions
from services.ipam.network_set import parse_foreign_network

# Addresses in a Node's status: its kubelet may write any, and each keeps a block from everybody.
_MAX_ADDRESSES_PER_NODE = 16
_MAX_ADDRESS_CHARS = 64  # characters of an address: an IPv4-mapped one with a prefix length has 49


class _Machine(msgspec.Struct, frozen=True):
    uid: str
    facts: MachineFacts | None
    addresses: tuple[str, ...]


class NodeIndex:
    """By name; the addresses of all, each once."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._machines: dict[str, _Machine] = {}
        self._address_counts: Counter[str] = Counter()
        self._node_addresses: dict[str, tuple[str, ...]] = {}
        self._addresses_by_node: dict[str, tuple[str, ...]] = {}  # of each Node, what matters most first
        self._nodes_with_many_addresses: set[str] = (
            set()
        )  # Nodes with more addresses than a bound; not in `_addresses`
        self._cached_exclusions: tuple[str, ...] | None = None  # of `_addresses`, made when it is asked for

    def get(self, name: str) -> Node | None:
        """As the watcher told it last, None if there is none."""
        return self._nodes.get(name)

    def get_facts(self, name: str, uid: str) -> MachineFacts | None:
        """Of that Node's machine, now or at any time earlier."""
        enriched = self._machines.get(name)
        return enriched.facts if enriched is not None and enriched.uid == uid else None

    def build_exclusions(self, services: Sequence[str]) -> Exclusions:
        """What no block may touch."""
        if self._cached_exclusions is None:
            self._cached_exclusions = tuple(self._address_counts)
        with_some = [node for node in self._nodes.values() if node.spec.pod_cidrs]
        return Exclusions(
            networks=(*services, *self._cached_exclusions),
            addresses_by_node=dict(self._addresses_by_node),
            nodes_with_many_addresses=frozenset(self._nodes_with_many_addresses),
            pod_cidrs_by_uid={node.uid: node.spec.pod_cidrs for node in with_some},
            node_names_by_uid={node.uid: node.name for node in with_some},
        )

    def iter_pod_cidrs(self) -> Iterable[tuple[str, Node]]:
        """Each podCIDR with the Node that carries it."""
        return ((cidr, node) for node in self._nodes.values() for cidr in node.spec.pod_cidrs)

    # ---- what the flow says

    def update_node(self, node: Node) -> None:
        """The Node is like that."""
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if before is None or _node_address_fields(before) != _node_address_fields(node):  # seldom it does
            self._node_addresses[node.name] = _list_node_addresses(node)
            self._update_addresses(node.name)

    def delete_node(self, name: str) -> None:
        """There is no Node of that name."""
        self._nodes.pop(name, None)
        self._node_addresses.pop(name, None)
        self._update_addresses(name)

    def update_facts(self, event: NodeEnriched | NodeUnreachable) -> None:
        """The Node's machine is like that, or was."""
        node = event.node
        facts = event.facts if isinstance(event, NodeEnriched) else event.last_known
        self._set_machine(node.name, _Machine(node.uid, facts, _list_machine_addresses(facts)))

    def delete_facts(self, name: str) -> None:
        """Nothing is known of the machine."""
        self._set_machine(name, None)

    def clear(self) -> None:
        """Everything known is void."""
        for table in (
            self._nodes,
            self._machines,
            self._address_counts,
            self._node_addresses,
            self._addresses_by_node,
            self._nodes_with_many_addresses,
        ):
            table.clear()
        self._cached_exclusions = None

    def _set_machine(self, name: str, enriched: _Machine | None) -> None:
        self._machines.pop(name, None)
        if enriched is not None:
            self._machines[name] = enriched
        self._update_addresses(name)

    def _update_addresses(self, name: str) -> None:
        enriched = self._machines.get(name)
        of_machine = enriched.addresses if enriched is not None else ()
        after = tuple(dict.fromkeys((*self._node_addresses.get(name, ()), *of_machine)))
        before = self._addresses_by_node.pop(name, ())
        if after:
            self._addresses_by_node[name] = after
        self._update_counts(
            before if name not in self._nodes_with_many_addresses else (),
            after if len(after) <= MAX_BLOCKS_PER_NODE else (),
        )
        if len(after) > MAX_BLOCKS_PER_NODE:
            self._nodes_with_many_addresses.add(name)
        else:
            self._nodes_with_many_addresses.discard(name)

    def _update_counts(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        if before == after:
            return
        self._address_counts.update(after)
        for address in before:
            self._address_counts[address] -= 1
            if not self._address_counts[address]:
                del self._address_counts[address]
        self._cached_exclusions = None


def _node_address_fields(node: Node) -> tuple[object, ...]:
    return node.provided_node_ip, node.status.addresses


def _list_node_addresses(node: Node) -> tuple[str, ...]:
    ips = parse_node_ips(node.provided_node_ip) if node.provided_node_ip else ()
    provided = () if isinstance(ips, InvalidNodeIP) else tuple(map(str, ips))
    told = [a.address for a in node.status.addresses if a.type in ("InternalIP", "ExternalIP")]
    return _filter_canonical((*provided, *told[:_MAX_ADDRESSES_PER_NODE]))


def _list_machine_addresses(facts: MachineFacts | None) -> tuple[str, ...]:
    """Addresses alone: a node's subnets do not reserve blocks."""
    if facts is None:
        return ()
    listed = (canonical_ip(status.address) for status in facts.addresses)
    return _filter_canonical((*facts.gateways, *listed))


def _filter_canonical(addresses: Iterable[str]) -> tuple[str, ...]:
    short = (text for text in addresses if len(text) <= _MAX_ADDRESS_CHARS)
    return tuple(dict.fromkeys(text for text in map(_canonical, short) if text))


@lru_cache(maxsize=1 << 16)  # of short texts only; each machine tells its addresses again and again
def _canonical(address: str) -> str:
    """As a network of one; "" for a wider one: who says 0.0.0.0/0 must not keep all blocks from everybody."""
    network = parse_foreign_network(address)
    return "" if network is None or network.prefix < network.bits else str(network)
