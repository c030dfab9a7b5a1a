"""Indexes the addresses and names that Nodes claim, by the Node objects and the facts of the machines."""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

import msgspec

from libs.common.contract.address_history import AddressHistory, FirstShown
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node, NodeAddress
from libs.common.contract.node_ips import InvalidNodeIP, parse_node_ips
from libs.common.contract.pod_cidrs import PodCidrIndex
from libs.common.contract.public_addresses import parse_public_ip
from services.csr.attested_identity import (
    collect_answered_ips,
    collect_attested_ips,
    collect_attested_names,
    is_possible_name,
)


class ClaimRank(IntEnum):
    """How strong a claim is; a higher rank wins. Of two attested addresses, the one shown first wins."""

    NODE_OBJECT = 1  # in the Node object, but not in the facts of its machine
    UNVERIFIED = 2  # in the Node object; the machine was never queried, so the claim may be rightful
    ATTESTED = 3  # by the machine, now or in its last response
    ANSWERED = 4  # addresses only: the machine of that node name answered there
    NODE_NAME_PREFIX = 5  # names only: the name begins with the node's own name and a dot
    NODE_NAME = 6  # names only: the name is the node's own name
    ANSWERED_NODE_NAME = 7  # names only: the machine of the node answers under that name


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The claim of one existing Node to one address or name."""

    node: str
    rank: ClaimRank
    is_unreachable: bool = False  # the machine does not answer now
    was_answered: bool = False  # addresses only: the machine answered there in its last response
    first_shown: FirstShown = FirstShown()  # addresses only: when the flow first showed the claim


class _IndexEntry(msgspec.Struct, frozen=True):
    """The last known Node and the last report about its machine, for one node name."""

    node: Node | None = None
    enriched: NodeEnriched | NodeUnreachable | None = None


_NO_ENTRY: Final = _IndexEntry()
_NO_HISTORY: Final = AddressHistory()
_ClaimsByKey = dict[str, Claim]  # address or name -> the claim of a node
_Keys = tuple[str, ...]
# Address or name -> its only claim, as nearly always, or the claims by node. Every machine has the loopback
# addresses, so a change of one claim must not copy those of all other Nodes.
_Index = dict[str, Claim | dict[str, Claim]]


class ClaimIndex:
    """Indexes the last known state of each Node, in any order. Only existing Nodes have claims."""

    def __init__(self) -> None:
        self._entries: dict[str, _IndexEntry] = {}
        self._keys_by_node: dict[str, tuple[_Keys, _Keys]] = {}  # node -> addresses and names it claims
        self._by_address: _Index = {}
        self._by_name: _Index = {}
        self._pod_cidrs = PodCidrIndex()

    def upsert_node(self, node: Node) -> None:
        """Store the Node's current state."""
        self._pod_cidrs.update(node.name, node.spec.pod_cidrs)
        self._update(node.name, msgspec.structs.replace(self._entry(node.name), node=node))

    def remove_node(self, name: str) -> None:
        """Record that no Node of that name exists."""
        self._pod_cidrs.update(name, ())
        self._update(name, msgspec.structs.replace(self._entry(name), node=None))

    def upsert_report(self, event: NodeEnriched | NodeUnreachable) -> None:
        """Store metadata's last report about the Node's machine."""
        self._update(event.node.name, msgspec.structs.replace(self._entry(event.node.name), enriched=event))

    def remove_report(self, name: str) -> None:
        """Drop metadata's report about a Node of that name."""
        self._update(name, msgspec.structs.replace(self._entry(name), enriched=None))

    def clear(self) -> None:
        """Drop all Nodes and reports."""
        for index in (self._entries, self._keys_by_node, self._by_address, self._by_name, self._pod_cidrs):
            index.clear()

    def get_node(self, name: str) -> Node | None:
        """Return the Node of that name; None if there is none."""
        return self._entry(name).node

    def find_by_address(self, ip: str) -> tuple[Claim, ...]:
        """Return every Node's claim to an address in canonical form, sorted by node."""
        return _sort_by_node(_list_claims(self._by_address, ip))

    def find_pod_cidr_owner(self, ip: str, name: str) -> str:
        """Return a Node other than `name` whose pods may have the address; "" if there is none.

        A podCIDR does not count for a public IPv4 address that the flow showed on the machine of `name`
        before: every holder of the join token can register a Node with any podCIDR.
        """
        others = self._pod_cidrs.find_others(ip, name)
        if others and (public := parse_public_ip(ip)) is not None and public.version == 4:
            others = [other for other in others if not self._precedes_pod_cidrs(ip, name, other)]
        return others[0] if others else ""

    def _precedes_pod_cidrs(self, ip: str, name: str, other: str) -> bool:
        claims = (claim for claim in _list_claims(self._by_address, ip) if claim.node == name)
        mine, entry = next(claims, None), self._entry(other)
        if mine is None or mine.rank < ClaimRank.ATTESTED or entry.node is None:
            return False
        history = _select_history(entry.node, entry.enriched)
        return all(mine.first_shown.precedes(history.get(cidr)) for cidr in entry.node.spec.pod_cidrs)

    def find_by_name(self, dns: str) -> tuple[Claim, ...]:
        """Return each Node's strongest claim to a DNS name in any case, sorted by node."""
        name = dns.lower()
        claims = {claim.node: claim for claim in _list_claims(self._by_name, name)}
        for owner in _iterate_prefixes(name):
            if self.get_node(owner) is not None:
                claims[owner] = Claim(node=owner, rank=ClaimRank.NODE_NAME_PREFIX)
        return _sort_by_node(claims.values())

    def _entry(self, name: str) -> _IndexEntry:
        return self._entries.get(name, _NO_ENTRY)

    def _update(self, name: str, entry: _IndexEntry) -> None:
        replaced = self._entry(name)
        if entry == _NO_ENTRY:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry
        if _select_claim_sources(entry) == _select_claim_sources(replaced):
            return  # most events report something else, such as a heartbeat or a label
        before = self._keys_by_node.pop(name, ((), ()))
        by_address, by_name = _derive_claims(entry)
        _update_index(self._by_address, name, before[0], by_address)
        _update_index(self._by_name, name, before[1], by_name)
        if by_address or by_name:
            self._keys_by_node[name] = (tuple(by_address), tuple(by_name))


def _list_claims(index: _Index, key: str) -> Iterable[Claim]:
    found = index.get(key, {})
    return (found,) if isinstance(found, Claim) else found.values()


def _update_index(index: _Index, node: str, was: _Keys, is_now: _ClaimsByKey) -> None:
    for key in was:
        if key not in is_now:
            _remove_claim(index, key, node)
    for key, claim in is_now.items():
        _set_claim(index, key, claim)


def _remove_claim(index: _Index, key: str, node: str) -> None:
    found = index[key]
    if isinstance(found, dict) and len(found) > 1:
        del found[node]
    else:
        del index[key]


def _set_claim(index: _Index, key: str, claim: Claim) -> None:
    found = index.get(key)
    if isinstance(found, dict):
        found[claim.node] = claim
    elif found is None or found.node == claim.node:
        index[key] = claim
    else:
        index[key] = {found.node: found, claim.node: claim}


def _select_claim_sources(
    entry: _IndexEntry,
) -> tuple[str, tuple[NodeAddress, ...], MachineFacts | None, bool, AddressHistory] | None:
    """Return all that the claims of one node name depend on; None if no Node of that name exists."""
    if entry.node is None:
        return None
    facts, unreachable = _select_facts(entry.node, entry.enriched)
    history = _select_history(entry.node, entry.enriched)
    return entry.node.provided_node_ip, entry.node.status.addresses, facts, unreachable, history


def _select_facts(
    node: Node, report: NodeEnriched | NodeUnreachable | None
) -> tuple[MachineFacts | None, bool]:
    """Return the last facts of the Node's machine, and whether it is unreachable now."""
    if report is None or report.node.uid != node.uid:
        return None, False  # a report about an earlier Node of that name does not apply to this Node
    if isinstance(report, NodeEnriched):
        return report.facts, False
    return report.last_known, True


def _select_history(node: Node, report: NodeEnriched | NodeUnreachable | None) -> AddressHistory:
    is_about_node = report is not None and report.node.uid == node.uid
    return report.address_history if report is not None and is_about_node else _NO_HISTORY


def _derive_claims(entry: _IndexEntry) -> tuple[_ClaimsByKey, _ClaimsByKey]:
    node = entry.node
    if node is None:
        return {}, {}
    facts, unreachable = _select_facts(node, entry.enriched)
    history = _select_history(node, entry.enriched)
    by_address = _derive_address_claims(node, facts, unreachable, history)
    return by_address, _derive_name_claims(node, facts, unreachable)


def _derive_address_claims(
    node: Node, facts: MachineFacts | None, unreachable: bool, history: AddressHistory
) -> _ClaimsByKey:
    ranks = dict.fromkeys(_iterate_object_ips(node), ClaimRank.NODE_OBJECT if facts else ClaimRank.UNVERIFIED)
    answered: frozenset[str] = frozenset()
    if facts is not None:
        ranks.update(dict.fromkeys(collect_attested_ips(facts), ClaimRank.ATTESTED))
        # A machine that is identified only by its UUID has not answered as this node.
        if facts.node_name == node.name:
            answered = collect_answered_ips(facts)
            rank = ClaimRank.ATTESTED if unreachable else ClaimRank.ANSWERED
            ranks.update(dict.fromkeys(answered, rank))
    return {
        ip: Claim(
            node=node.name,
            rank=rank,
            is_unreachable=unreachable,
            was_answered=unreachable and ip in answered,
            first_shown=history.get(ip),
        )
        for ip, rank in ranks.items()
    }


def _derive_name_claims(node: Node, facts: MachineFacts | None, unreachable: bool) -> _ClaimsByKey:
    ranks = dict.fromkeys(
        _iterate_object_names(node), ClaimRank.NODE_OBJECT if facts else ClaimRank.UNVERIFIED
    )
    if facts is not None:
        ranks.update(dict.fromkeys(collect_attested_names(facts), ClaimRank.ATTESTED))
    answers = facts is not None and facts.node_name == node.name and not unreachable
    ranks[node.name.lower()] = ClaimRank.ANSWERED_NODE_NAME if answers else ClaimRank.NODE_NAME
    return {dns: Claim(node=node.name, rank=rank, is_unreachable=unreachable) for dns, rank in ranks.items()}


def parse_provided_ips(node: Node) -> frozenset[str]:
    """Return the node IPs in the kubelet's annotation, in canonical form; none if it is malformed."""
    provided = parse_node_ips(node.provided_node_ip) if node.provided_node_ip else ()
    return frozenset() if isinstance(provided, InvalidNodeIP) else frozenset(map(str, provided))


def collect_object_ips(node: Node) -> frozenset[str]:
    """Return every address in a Node object, in canonical form."""
    return frozenset(_iterate_object_ips(node))


def _iterate_object_ips(node: Node) -> Iterator[str]:
    yield from parse_provided_ips(node)
    yield from (ip for address in node.status.addresses if (ip := canonical_ip(address.address)))


def collect_object_names(node: Node) -> frozenset[str]:
    """Return every DNS name in a Node object's status, in lower case."""
    return frozenset(_iterate_object_names(node))


def _iterate_object_names(node: Node) -> Iterator[str]:
    for address in node.status.addresses:
        if is_possible_name(address.address) and not canonical_ip(address.address):
            yield address.address.lower()


def _iterate_prefixes(name: str) -> Iterator[str]:
    """Yield the part of a name before each dot."""
    at = name.find(".")
    while at >= 0:
        yield name[:at]
        at = name.find(".", at + 1)


def _sort_by_node(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    return tuple(sorted(claims, key=lambda claim: claim.node))
