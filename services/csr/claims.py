"""Who lays claim to which address and name: all Nodes, and what all machines attest."""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

import msgspec

from libs.common.events import NodeEnriched, NodeUnreachable
from libs.common.machine import MachineFacts
from libs.common.node import Node
from libs.common.node_ips import BadNodeIP, node_ips
from services.csr.attested import attested_ips, attested_names, bare, could_be_a_name


class Rank(IntEnum):
    """How well founded a claim is."""

    WRITTEN = 1  # in the Node object, and facts of its machine do not say so
    UNCHECKED = 2  # in the Node object, and nothing is known of its machine: it may well be the rightful one
    ATTESTED = 3  # by the machine, now or when it last answered
    ANSWERED = 4  # of addresses: the machine of that node name answered there
    NAMESAKE = 5  # of names: a dot after the node's own name begins the rest of it
    NODE_NAME = 6  # of names: it is the node's own


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One existing Node's claim to one address or name."""

    node: str
    rank: Rank
    unreachable: bool = False  # its machine does not answer now
    was_answered: bool = False  # of addresses: that is where it answered when it last did


class _Known(msgspec.Struct, frozen=True):
    """What was last said of one name."""

    node: Node | None = None
    enriched: NodeEnriched | NodeUnreachable | None = None


_UNKNOWN: Final = _Known()
_Claims = dict[str, Claim]


class Claims:
    """An index, fed with what was last said of each Node, in any order. Only existing Nodes have claims."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._held: dict[str, tuple[_Claims, _Claims]] = {}  # node -> its claims by address and by name
        self._by_address: dict[str, _Claims] = {}  # address -> node -> claim
        self._by_name: dict[str, _Claims] = {}

    def observed(self, node: Node) -> None:
        """The Node is so now."""
        self._learn(node.name, msgspec.structs.replace(self._of(node.name), node=node))

    def node_gone(self, name: str) -> None:
        """No Node of that name exists any more."""
        self._learn(name, msgspec.structs.replace(self._of(name), node=None))

    def enriched(self, event: NodeEnriched | NodeUnreachable) -> None:
        """Metadata's last word of the Node's machine."""
        self._learn(event.node.name, msgspec.structs.replace(self._of(event.node.name), enriched=event))

    def enriched_gone(self, name: str) -> None:
        """Metadata has nothing to say of a Node of that name."""
        self._learn(name, msgspec.structs.replace(self._of(name), enriched=None))

    def clear(self) -> None:
        """Nothing is known."""
        for held in (self._known, self._held, self._by_address, self._by_name):
            held.clear()

    def node(self, name: str) -> Node | None:
        """The Node of that name, None if there is none."""
        return self._of(name).node

    def of_address(self, ip: str) -> tuple[Claim, ...]:
        """Every Node's claim to an address in canonical form, sorted by node."""
        return _sorted(self._by_address.get(ip, {}).values())

    def of_name(self, dns: str) -> tuple[Claim, ...]:
        """Every Node's claim to a DNS name in any case, sorted by node; a Node's highest one."""
        name = dns.lower()
        claims = dict(self._by_name.get(name, {}))
        for owner in _beginnings(name):
            if self.node(owner) is not None:
                claims[owner] = Claim(node=owner, rank=Rank.NAMESAKE)
        return _sorted(claims.values())

    def _of(self, name: str) -> _Known:
        return self._known.get(name, _UNKNOWN)

    def _learn(self, name: str, known: _Known) -> None:
        if known == _UNKNOWN:
            self._known.pop(name, None)
        else:
            self._known[name] = known
        before = self._held.pop(name, ({}, {}))
        now = _claims_of(known)
        for index, was, is_now in zip((self._by_address, self._by_name), before, now, strict=True):
            _exchange(index, name, was, is_now)
        if any(now):
            self._held[name] = now


def _exchange(index: dict[str, _Claims], node: str, was: _Claims, is_now: _Claims) -> None:
    for key in was.keys() - is_now.keys():
        del index[key][node]
        if not index[key]:
            del index[key]
    for key, claim in is_now.items():
        index.setdefault(key, {})[node] = claim


def _claims_of(known: _Known) -> tuple[_Claims, _Claims]:
    node = known.node
    if node is None:
        return {}, {}
    # what was said of an earlier Node of that name says nothing of this one
    enriched = known.enriched if known.enriched and known.enriched.node.uid == node.uid else None
    if isinstance(enriched, NodeEnriched):
        return _addresses(node, enriched.facts, False), _names(node, enriched.facts, False)
    facts = enriched.last_known if enriched else None
    unreachable = enriched is not None
    return _addresses(node, facts, unreachable), _names(node, facts, unreachable)


def _addresses(node: Node, facts: MachineFacts | None, unreachable: bool) -> _Claims:
    ranks = dict.fromkeys(_written_ips(node), Rank.WRITTEN if facts else Rank.UNCHECKED)
    answered = ""
    if facts is not None:
        ranks.update(dict.fromkeys(attested_ips(facts), Rank.ATTESTED))
        # recognized by its UUID only, a machine has not answered as this node
        answered = bare(facts.node_ip) if facts.node_name == node.name else ""
        if answered and not unreachable:
            ranks[answered] = Rank.ANSWERED
        elif answered:
            ranks[answered] = Rank.ATTESTED
    return {
        ip: Claim(
            node=node.name, rank=rank, unreachable=unreachable, was_answered=unreachable and ip == answered
        )
        for ip, rank in ranks.items()
    }


def _names(node: Node, facts: MachineFacts | None, unreachable: bool) -> _Claims:
    ranks = dict.fromkeys(_written_names(node), Rank.WRITTEN if facts else Rank.UNCHECKED)
    if facts is not None:
        ranks.update(dict.fromkeys(attested_names(facts), Rank.ATTESTED))
    ranks[node.name.lower()] = Rank.NODE_NAME
    return {dns: Claim(node=node.name, rank=rank, unreachable=unreachable) for dns, rank in ranks.items()}


def provided_ips(node: Node) -> frozenset[str]:
    """The node IPs in the kubelet's annotation, in canonical form; none if it is malformed."""
    provided = node_ips(node.provided_node_ip) if node.provided_node_ip else ()
    return frozenset() if isinstance(provided, BadNodeIP) else frozenset(map(str, provided))


def written_ips(node: Node) -> frozenset[str]:
    """Every address that a Node object names, in canonical form."""
    return frozenset(_written_ips(node))


def _written_ips(node: Node) -> Iterator[str]:
    yield from provided_ips(node)
    yield from (ip for address in node.status.addresses if (ip := bare(address.address)))


def written_names(node: Node) -> frozenset[str]:
    """Every name that a Node object's status gives it, in lower case."""
    return frozenset(_written_names(node))


def _written_names(node: Node) -> Iterator[str]:
    for address in node.status.addresses:
        if could_be_a_name(address.address) and not bare(address.address):
            yield address.address.lower()


def _beginnings(name: str) -> Iterator[str]:
    """What stands before each dot of a name."""
    at = name.find(".")
    while at >= 0:
        yield name[:at]
        at = name.find(".", at + 1)


def _sorted(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    return tuple(sorted(claims, key=lambda claim: claim.node))
