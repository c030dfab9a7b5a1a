"""What the flow says of all Nodes, as far as it decides which blocks are free."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from libs.common.events import NodeEnriched, NodeUnreachable
from libs.common.machine import MachineFacts
from libs.common.node import Node
from libs.common.node_ips import BadNodeIP, node_ips
from libs.common.public_addresses import bare
from services.ipam.plan import Occupied
from services.ipam.reserved import MOST_BLOCKS
from services.ipam.spans import readable

# Addresses in a Node's status: its kubelet may write any, and each keeps a block from everybody.
_MOST_FROM_NODE = 16
_LONGEST = 64  # characters of an address: an IPv4-mapped one with a prefix length has 49


class _Enriched(msgspec.Struct, frozen=True):
    uid: str
    facts: MachineFacts | None
    addresses: tuple[str, ...]


class KnownNodes:
    """By name; the addresses of all, each once."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._enriched: dict[str, _Enriched] = {}
        self._addresses: Counter[str] = Counter()
        self._of_node: dict[str, tuple[str, ...]] = {}
        self._all: dict[str, tuple[str, ...]] = {}  # of each Node, what matters most first
        self._many: set[str] = set()  # Nodes with more addresses than a bound; not in `_addresses`
        self._excluded: tuple[str, ...] | None = None  # of `_addresses`, made when it is asked for

    def node(self, name: str) -> Node | None:
        """As the watcher told it last, None if there is none."""
        return self._nodes.get(name)

    def facts(self, name: str, uid: str) -> MachineFacts | None:
        """Of that Node's machine, now or at any time earlier."""
        enriched = self._enriched.get(name)
        return enriched.facts if enriched is not None and enriched.uid == uid else None

    def occupied(self, services: Sequence[str]) -> Occupied:
        """What no block may touch."""
        if self._excluded is None:
            self._excluded = tuple(self._addresses)
        with_some = [node for node in self._nodes.values() if node.spec.pod_cidrs]
        return Occupied(
            excluded=(*services, *self._excluded),
            addresses=dict(self._all),
            many=frozenset(self._many),
            carried={node.uid: node.spec.pod_cidrs for node in with_some},
            names={node.uid: node.name for node in with_some},
        )

    def carried(self) -> Iterable[tuple[str, Node]]:
        """Each podCIDR with the Node that carries it."""
        return ((cidr, node) for node in self._nodes.values() for cidr in node.spec.pod_cidrs)

    # ---- what the flow says

    def observed(self, node: Node) -> None:
        """The Node is like that."""
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if before is None or _says_of_itself(before) != _says_of_itself(node):  # seldom it does
            self._of_node[node.name] = _addresses_of(node)
            self._recount(node.name)

    def gone(self, name: str) -> None:
        """There is no Node of that name."""
        self._nodes.pop(name, None)
        self._of_node.pop(name, None)
        self._recount(name)

    def enriched(self, event: NodeEnriched | NodeUnreachable) -> None:
        """The Node's machine is like that, or was."""
        node = event.node
        facts = event.facts if isinstance(event, NodeEnriched) else event.last_known
        self._enrich(node.name, _Enriched(node.uid, facts, _addresses_in(facts)))

    def enriched_gone(self, name: str) -> None:
        """Nothing is known of the machine."""
        self._enrich(name, None)

    def clear(self) -> None:
        """Everything known is void."""
        for table in (self._nodes, self._enriched, self._addresses, self._of_node, self._all, self._many):
            table.clear()
        self._excluded = None

    def _enrich(self, name: str, enriched: _Enriched | None) -> None:
        self._enriched.pop(name, None)
        if enriched is not None:
            self._enriched[name] = enriched
        self._recount(name)

    def _recount(self, name: str) -> None:
        enriched = self._enriched.get(name)
        of_machine = enriched.addresses if enriched is not None else ()
        after = tuple(dict.fromkeys((*self._of_node.get(name, ()), *of_machine)))
        before = self._all.pop(name, ())
        if after:
            self._all[name] = after
        self._count(before if name not in self._many else (), after if len(after) <= MOST_BLOCKS else ())
        if len(after) > MOST_BLOCKS:
            self._many.add(name)
        else:
            self._many.discard(name)

    def _count(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        if before == after:
            return
        self._addresses.update(after)
        for address in before:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]
        self._excluded = None


def _says_of_itself(node: Node) -> tuple[object, ...]:
    return node.provided_node_ip, node.status.addresses


def _addresses_of(node: Node) -> tuple[str, ...]:
    ips = node_ips(node.provided_node_ip) if node.provided_node_ip else ()
    provided = () if isinstance(ips, BadNodeIP) else tuple(map(str, ips))
    told = [a.address for a in node.status.addresses if a.type in ("InternalIP", "ExternalIP")]
    return _readable((*provided, *told[:_MOST_FROM_NODE]))


def _addresses_in(facts: MachineFacts | None) -> tuple[str, ...]:
    """Addresses alone: that a node is in a subnet keeps nobody from giving blocks of it."""
    return () if facts is None else _readable((*facts.gateways, *map(bare, facts.addresses)))


def _readable(addresses: Iterable[str]) -> tuple[str, ...]:
    short = (text for text in addresses if len(text) <= _LONGEST)
    return tuple(dict.fromkeys(text for text in map(_canonical, short) if text))


@lru_cache(maxsize=1 << 16)  # of short texts only; each machine tells its addresses again and again
def _canonical(address: str) -> str:
    """As a network of one; "" for a wider one: who says 0.0.0.0/0 must not keep all blocks from everybody."""
    network = readable(address)
    return "" if network is None or network.prefix < network.bits else str(network)
