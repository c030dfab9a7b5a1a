"""Finds the Nodes whose pod CIDR contains an address, among thousands of Nodes."""

from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from libs.common.contract.ip_addresses import CACHE_SIZE, parse_ip

_MAX_LENGTH: Final = 64  # characters; a Node may be created with any number of leading zeros


@dataclass
class PodCidrIndex:
    """The pod CIDRs of all Nodes. A lookup takes one step per prefix length, of which a cluster has a few."""

    _by_node: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # (IP version, prefix length) -> first bits of the CIDR -> Nodes; nearly always one
    _nodes: dict[tuple[int, int], dict[int, tuple[str, ...]]] = field(default_factory=dict)

    def update(self, name: str, cidrs: tuple[str, ...]) -> bool:
        """Store the pod CIDRs of a Node, () for none; ignore invalid ones. Return whether they changed."""
        before = self._by_node.get(name, ())
        if cidrs == before:
            return False
        for key, bits in map(_split, _parse_all(before)):
            others = tuple(each for each in self._nodes[key].pop(bits) if each != name)
            if others:
                self._nodes[key][bits] = others
            elif not self._nodes[key]:
                del self._nodes[key]
        self._by_node.pop(name, None)
        if cidrs:
            self._by_node[name] = cidrs
        for key, bits in map(_split, _parse_all(cidrs)):
            nodes = self._nodes.setdefault(key, {})
            nodes[bits] = (*nodes.get(bits, ()), name)
        return True

    def find_others(self, address: str, name: str) -> list[str]:
        """Return the Nodes other than `name` whose pod CIDRs contain the address, sorted."""
        ip = parse_ip(address)
        if ip is None:
            return []
        found: set[str] = set()
        for (version, prefix), nodes in self._nodes.items():
            if version == ip.version:
                found.update(nodes.get(int(ip) >> (ip.max_prefixlen - prefix), ()))
        return sorted(found - {name})

    def clear(self) -> None:
        """Remove all Nodes."""
        self._by_node.clear()
        self._nodes.clear()


def _parse_all(cidrs: tuple[str, ...]) -> frozenset[IPv4Network | IPv6Network]:
    found = (_parse(cidr) for cidr in cidrs if len(cidr) <= _MAX_LENGTH)
    return frozenset(network for network in found if network is not None)


@lru_cache(maxsize=CACHE_SIZE)
def _parse(cidr: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(cidr, strict=False)
    except ValueError:
        return None


def _split(network: IPv4Network | IPv6Network) -> tuple[tuple[int, int], int]:
    first = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
    return (network.version, network.prefixlen), first
