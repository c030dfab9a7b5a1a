"""Finds the Nodes whose pod CIDR contains an address, among thousands of Nodes."""

from dataclasses import dataclass, field

from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.networks import Family, Network, parse_foreign_network


@dataclass
class PodCidrIndex:
    """The pod CIDRs of all Nodes. A lookup takes one step per prefix length, of which a cluster has a few."""

    _by_node: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # family and prefix length -> first address of the CIDR -> Nodes; nearly always one
    _nodes: dict[tuple[Family, int], dict[int, tuple[str, ...]]] = field(default_factory=dict)

    def update(self, name: str, cidrs: tuple[str, ...]) -> bool:
        """Store the pod CIDRs of a Node, () for none; ignore invalid ones. Return whether they changed."""
        before = self._by_node.get(name, ())
        if cidrs == before:
            return False
        for each in _parse_all(before):
            key, first = (each.family, each.prefix), each.first
            others = tuple(other for other in self._nodes[key].pop(first) if other != name)
            if others:
                self._nodes[key][first] = others
            elif not self._nodes[key]:
                del self._nodes[key]
        self._by_node.pop(name, None)
        if cidrs:
            self._by_node[name] = cidrs
        for each in _parse_all(cidrs):
            nodes = self._nodes.setdefault((each.family, each.prefix), {})
            nodes[each.first] = (*nodes.get(each.first, ()), name)
        return True

    def find_others(self, address: str, name: str) -> list[str]:
        """Return the Nodes other than `name` whose pod CIDRs contain the address, sorted."""
        ip = parse_ip(address)
        if ip is None:
            return []
        found: set[str] = set()
        for (family, prefix), nodes in self._nodes.items():
            if family == ip.version:
                host_bits = ip.max_prefixlen - prefix
                found.update(nodes.get(int(ip) >> host_bits << host_bits, ()))
        return sorted(found - {name})

    def clear(self) -> None:
        """Remove all Nodes."""
        self._by_node.clear()
        self._nodes.clear()


def _parse_all(cidrs: tuple[str, ...]) -> frozenset[Network]:
    return frozenset(network for network in map(parse_foreign_network, cidrs) if network is not None)
