"""Indexes the addresses and names that Nodes claim, by the Node objects and the facts of the machines."""

from collections.abc import Container, Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

import msgspec

from libs.common.contract.address_history import AddressHistory, FirstShown
from libs.common.contract.dns_names import MAX_NAME_LENGTH
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.ip_addresses import canonical_ip, list_node_ips
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import Node, NodeAddress
from libs.common.contract.pod_cidrs import PodCidrIndex
from libs.common.contract.public_addresses import counts, parse_public_ip


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
    was_answered: bool = False  # addresses only: the machine answered there in its last response
    first_shown: FirstShown = FirstShown()  # addresses only: when the flow first showed the claim


class _ClaimSources(NamedTuple):
    """All that the claims of one existing Node depend on."""

    node: str
    provided_node_ip: str
    addresses: tuple[NodeAddress, ...]
    facts: MachineFacts | None = None  # the last ones of its machine
    is_unreachable: bool = False  # the machine does not answer now
    history: AddressHistory = AddressHistory()


_Report = NodeEnriched | NodeUnreachable
_ClaimsByKey = dict[str, Claim]  # address or name -> the claim of a node
# Address or name -> its only claim, as nearly always, or the claims by node. Every machine has the loopback
# addresses, so a change of one claim must not copy those of all other Nodes.
_Index = dict[str, Claim | dict[str, Claim]]


class ClaimIndex:
    """Indexes the last known state of each Node, in any order. Only existing Nodes have claims."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reports: dict[str, _Report] = {}  # metadata's last one, by node
        self._by_address: _Index = {}
        self._by_name: _Index = {}
        self._pod_cidrs = PodCidrIndex()

    def upsert_node(self, node: Node) -> None:
        """Store the Node's current state."""
        before = self._find_sources(node.name)
        self._nodes[node.name] = node
        self._pod_cidrs.update(node.name, node.spec.pod_cidrs)
        self._update(node.name, before)

    def remove_node(self, name: str) -> None:
        """Record that no Node of that name exists."""
        before = self._find_sources(name)
        self._nodes.pop(name, None)
        self._pod_cidrs.update(name, ())
        self._update(name, before)

    def upsert_report(self, event: _Report) -> None:
        """Store metadata's last report about the Node's machine."""
        before = self._find_sources(event.node.name)
        self._reports[event.node.name] = event
        self._update(event.node.name, before)

    def remove_report(self, name: str) -> None:
        """Drop metadata's report about a Node of that name."""
        before = self._find_sources(name)
        self._reports.pop(name, None)
        self._update(name, before)

    def clear(self) -> None:
        """Drop all Nodes and reports."""
        for known in (self._nodes, self._reports, self._by_address, self._by_name):
            known.clear()
        self._pod_cidrs.clear()

    def get_node(self, name: str) -> Node | None:
        """Return the Node of that name; None if there is none."""
        return self._nodes.get(name)

    def find_by_address(self, ip: str) -> tuple[Claim, ...]:
        """Return every Node's claim to an address in canonical form, sorted by node."""
        return _sort_by_node(_list_claims(self._by_address, ip))

    def find_pod_cidr_owner(self, ip: str, name: str) -> str | None:
        """Return a Node other than `name` whose pods may have the address; None if there is none.

        A podCIDR does not count for a public IPv4 address that the flow showed on the machine of `name`
        before: every holder of the join token can register a Node with any podCIDR.
        """
        others = self._pod_cidrs.find_others(ip, name)
        if others and (public := parse_public_ip(ip)) is not None and public.version == 4:
            others = [other for other in others if not self._precedes_pod_cidrs(ip, name, other)]
        return others[0] if others else None

    def _precedes_pod_cidrs(self, ip: str, name: str, other: str) -> bool:
        claims = (claim for claim in _list_claims(self._by_address, ip) if claim.node == name)
        mine, theirs, node = next(claims, None), self._find_sources(other), self.get_node(other)
        if mine is None or mine.rank < ClaimRank.ATTESTED or theirs is None or node is None:
            return False
        return all(mine.first_shown.precedes(theirs.history.get(cidr)) for cidr in node.spec.pod_cidrs)

    def find_by_name(self, dns: str) -> tuple[Claim, ...]:
        """Return each Node's strongest claim to a DNS name in any case, sorted by node."""
        name = dns.lower()
        claims = {claim.node: claim for claim in _list_claims(self._by_name, name)}
        for owner in _iterate_prefixes(name):
            if self.get_node(owner) is not None:
                claims[owner] = Claim(node=owner, rank=ClaimRank.NODE_NAME_PREFIX)
        return _sort_by_node(claims.values())

    def _find_sources(self, name: str) -> _ClaimSources | None:
        return _select_sources(self._nodes.get(name), self._reports.get(name))

    def _update(self, name: str, before: _ClaimSources | None) -> None:
        after = self._find_sources(name)
        if after == before:
            return  # most events report something else, such as a heartbeat or a label
        _update_index(self._by_address, name, _derive_address_claims(before), _derive_address_claims(after))
        _update_index(self._by_name, name, _derive_name_claims(before), _derive_name_claims(after))


def _list_claims(index: _Index, key: str) -> Iterable[Claim]:
    found = index.get(key, {})
    return (found,) if isinstance(found, Claim) else found.values()


def _update_index(index: _Index, node: str, before: _ClaimsByKey, after: _ClaimsByKey) -> None:
    for key in before.keys() - after.keys():
        _remove_claim(index, key, node)
    for key, claim in after.items():
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


def _select_sources(node: Node | None, report: _Report | None) -> _ClaimSources | None:
    """Return the sources of the claims of one node name; None if no Node of that name exists.

    A report about an earlier Node of that name does not apply to this Node.
    """
    if node is None:
        return None
    facts, is_unreachable, history = None, False, AddressHistory()
    if report is not None and report.node.uid == node.uid:
        is_unreachable, history = isinstance(report, NodeUnreachable), report.address_history
        facts = report.last_known if isinstance(report, NodeUnreachable) else report.facts
    addresses = node.status.addresses
    return _ClaimSources(node.name, node.provided_node_ip, addresses, facts, is_unreachable, history)


def _derive_address_claims(sources: _ClaimSources | None) -> _ClaimsByKey:
    if sources is None:
        return {}
    facts = sources.facts
    by_object = ClaimRank.NODE_OBJECT if facts else ClaimRank.UNVERIFIED
    ips = _iterate_object_ips(sources.provided_node_ip, sources.addresses)
    ranks = dict.fromkeys(ips, by_object)
    answered: frozenset[str] = frozenset()
    if facts is not None:
        ranks.update(dict.fromkeys(collect_attested_ips(facts), ClaimRank.ATTESTED))
        # A machine that is identified only by its UUID has not answered as this node.
        if facts.node_name == sources.node:
            answered = collect_answered_ips(facts)
            rank = ClaimRank.ATTESTED if sources.is_unreachable else ClaimRank.ANSWERED
            ranks.update(dict.fromkeys(answered, rank))
    return {
        ip: Claim(
            node=sources.node,
            rank=rank,
            was_answered=sources.is_unreachable and ip in answered,
            first_shown=sources.history.get(ip),
        )
        for ip, rank in ranks.items()
    }


def _derive_name_claims(sources: _ClaimSources | None) -> _ClaimsByKey:
    if sources is None:
        return {}
    name, facts = sources.node, sources.facts
    by_object = ClaimRank.NODE_OBJECT if facts else ClaimRank.UNVERIFIED
    ranks = dict.fromkeys(_iterate_object_names(sources.addresses), by_object)
    if facts is not None:
        ranks.update(dict.fromkeys(collect_attested_names(facts), ClaimRank.ATTESTED))
    answers = facts is not None and facts.node_name == name and not sources.is_unreachable
    ranks[name.lower()] = ClaimRank.ANSWERED_NODE_NAME if answers else ClaimRank.NODE_NAME
    return {dns: Claim(node=name, rank=rank) for dns, rank in ranks.items()}


def parse_provided_ips(provided_node_ip: str) -> frozenset[str]:
    """Return the node IPs in the kubelet's annotation, in canonical form; none if it is malformed."""
    return frozenset(map(str, list_node_ips(provided_node_ip)))


def collect_object_ips(node: Node) -> frozenset[str]:
    """Return every address in a Node object, in canonical form."""
    return frozenset(_iterate_object_ips(node.provided_node_ip, node.status.addresses))


def _iterate_object_ips(provided_node_ip: str, addresses: tuple[NodeAddress, ...]) -> Iterator[str]:
    yield from parse_provided_ips(provided_node_ip)
    yield from (ip for address in addresses if (ip := canonical_ip(address.address)))


def collect_object_names(node: Node) -> frozenset[str]:
    """Return every DNS name in a Node object's status, in lower case."""
    return frozenset(_iterate_object_names(node.status.addresses))


def _iterate_object_names(addresses: tuple[NodeAddress, ...]) -> Iterator[str]:
    for address in addresses:
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


def collect_attested_ips(facts: MachineFacts, answered: Container[str] = ()) -> frozenset[str]:
    """Return every address on the machine that counts, in canonical form, without invalid ones.

    Those in `answered` count in any case: the machine answered there.
    """
    listed = ((canonical_ip(status.address), status) for status in facts.addresses)
    return frozenset(ip for ip, status in listed if ip and (ip in answered or counts(status, facts)))


def collect_answered_ips(facts: MachineFacts) -> frozenset[str]:
    """Return the node IPs at which the machine answered, in canonical form."""
    return frozenset(ip for text in (facts.node_ip, *facts.answering_addresses) if (ip := canonical_ip(text)))


def collect_attested_names(facts: MachineFacts) -> frozenset[str]:
    """Return every reported name of the machine, in lower case; a bare first label only if reported."""
    platform = facts.platform
    reported_names = (facts.node_name, platform.hostname, platform.internal_dns, platform.external_dns)
    return frozenset(name.lower() for name in reported_names if is_possible_name(name))


def is_possible_name(text: str) -> bool:
    """Whether the text is short enough to index as a claim to a name, and not empty."""
    return 0 < len(text) <= MAX_NAME_LENGTH
