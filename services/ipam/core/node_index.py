"""The Nodes and their addresses, as published to the flow: they decide which blocks are free."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import canonical_ip, list_node_ips
from libs.common.contract.machine import MachineFacts
from libs.common.contract.networks import parse_foreign_network
from libs.common.contract.node import Node
from services.ipam.core.ledger import Exclusions

# Addresses in a Node's status that count: its kubelet may write any, and each one reserves a block.
_MAX_ADDRESSES_PER_NODE = 16
_MAX_ADDRESS_CHARS = 64  # an IPv4-mapped address with a prefix length has 49


class _Machine(msgspec.Struct, frozen=True):
    uid: str
    facts: MachineFacts | None
    addresses: tuple[str, ...]


class NodeIndex:
    """Nodes by name, and their addresses."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._machines: dict[str, _Machine] = {}
        self._node_addresses: dict[str, tuple[str, ...]] = {}
        self._addresses_by_node: dict[str, tuple[str, ...]] = {}  # the most important ones first

    def get(self, name: str) -> Node | None:
        """Return the Node as last observed; None if it does not exist."""
        return self._nodes.get(name)

    def get_facts(self, name: str, uid: str) -> MachineFacts | None:
        """Return the last known facts of that Node's machine; None if there are none."""
        enriched = self._machines.get(name)
        return enriched.facts if enriched is not None and enriched.uid == uid else None

    def build_exclusions(self, services: Sequence[str]) -> Exclusions:
        """Return the networks and addresses that no block may overlap."""
        with_some = [node for node in self._nodes.values() if node.spec.pod_cidrs]
        return Exclusions(
            networks=tuple(services),
            addresses_by_node=dict(self._addresses_by_node),
            pod_cidrs_by_uid={node.uid: node.spec.pod_cidrs for node in with_some},
            node_names_by_uid={node.uid: node.name for node in with_some},
        )

    def iter_pod_cidrs(self) -> Iterable[tuple[str, Node]]:
        """Return each podCIDR with its Node."""
        return ((cidr, node) for node in self._nodes.values() for cidr in node.spec.pod_cidrs)

    # ---- events of the flow

    def update_node(self, node: Node) -> None:
        """Store the Node's current state."""
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if before is None or _node_address_fields(before) != _node_address_fields(node):  # rarely true
            self._node_addresses[node.name] = _list_node_addresses(node)
            self._update_addresses(node.name)

    def delete_node(self, name: str) -> None:
        """Record that no Node of that name exists."""
        self._nodes.pop(name, None)
        self._node_addresses.pop(name, None)
        self._update_addresses(name)

    def update_facts(self, event: NodeEnriched | NodeUnreachable) -> None:
        """Store the current or last known facts of the Node's machine."""
        node = event.node
        facts = event.facts if isinstance(event, NodeEnriched) else event.last_known
        self._set_machine(node.name, _Machine(node.uid, facts, _list_machine_addresses(facts)))

    def delete_facts(self, name: str) -> None:
        """Drop the facts of the Node's machine."""
        self._set_machine(name, None)

    def clear(self) -> None:
        """Drop everything."""
        for table in (self._nodes, self._machines, self._node_addresses, self._addresses_by_node):
            table.clear()

    def _set_machine(self, name: str, enriched: _Machine | None) -> None:
        self._machines.pop(name, None)
        if enriched is not None:
            self._machines[name] = enriched
        self._update_addresses(name)

    def _update_addresses(self, name: str) -> None:
        enriched = self._machines.get(name)
        of_machine = enriched.addresses if enriched is not None else ()
        after = tuple(dict.fromkeys((*self._node_addresses.get(name, ()), *of_machine)))
        self._addresses_by_node.pop(name, None)
        if after:
            self._addresses_by_node[name] = after


def _node_address_fields(node: Node) -> tuple[object, ...]:
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
    return tuple(dict.fromkeys(text for text in map(_canonical, short) if text))


@lru_cache(maxsize=1 << 16)  # caches short texts only; each machine reports the same addresses repeatedly
def _canonical(address: str) -> str:
    """Return a network of one address; "" for a wider one: 0.0.0.0/0 must not reserve all blocks."""
    network = parse_foreign_network(address)
    return "" if network is None or network.prefix < network.bits else str(network)
