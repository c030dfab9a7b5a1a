"""Whether a node is what its request asks for: by its machine's word, against every other Node's claim."""

from collections.abc import Iterator
from typing import Final

from libs.common.events import CsrEnriched
from libs.common.machine import MachineFacts, metadata_incomplete
from libs.common.node import Node
from services.csr.attested import attested_ips, attested_names, bare
from services.csr.claims import Claim, Claims, Rank
from services.csr.endpoint import Endpoint
from services.csr.judgement import Check
from services.csr.request import Asked, shown
from services.csr.reserved import check_of_endpoint_address, check_of_endpoint_name

_FAULT_SHOWN: Final = 300  # characters of a fault's message, which quotes what a machine sent
_IN_WORDS: Final = {
    Rank.WRITTEN: "has it in its status only",
    Rank.UNCHECKED: "has it in its status, and its machine has never been asked",
    Rank.ATTESTED: "has it too, as its machine says",
    Rank.ANSWERED: "answers there",
    Rank.NAMESAKE: "has the name that it begins with",
    Rank.NODE_NAME: "has it as its node name",
}


def checks_of_machine(
    enriched: CsrEnriched, asked: Asked, claims: Claims, endpoint: Endpoint
) -> Iterator[Check]:
    """Facts first; with them, each name and each address on its own."""
    name = enriched.request.node_name
    facts = enriched.facts
    node = claims.node(name)
    why_not = _why_no_facts(enriched, node)
    if why_not is not None or facts is None or node is None:
        yield why_not or _waits("machine", "no facts of its machine", name)
        return
    yield Check(name="machine", passed=True, text=f"the machine at {bare(facts.node_ip)} answers as {name}")
    for dns in asked.dns_names:
        yield _check_of_name(dns, node, facts, claims, endpoint)
    answered = frozenset(map(bare, (facts.node_ip, *enriched.answered_at)))
    for ip in asked.ips:
        is_attested = ip in attested_ips(facts)
        reserved = check_of_endpoint_address(ip, node, facts, answered, endpoint) if is_attested else None
        yield reserved or _check_of_address(ip, name, facts, answered, claims)


def _why_no_facts(enriched: CsrEnriched, node: Node | None) -> Check | None:
    name, facts = enriched.request.node_name, enriched.facts
    if node is None:
        return _waits("node", f"there is no Node {name} yet", name)
    if enriched.fault is not None:
        fault = enriched.fault
        return _waits(
            "unreachable", f"{fault.step} ({fault.kind}): {shown(fault.message, _FAULT_SHOWN)}", name
        )
    if facts is None:
        return _waits("asking", f"the machine of Node {name} has not been asked yet", name)
    if enriched.node_uid != node.uid:
        return _waits("asking", f"what was asked was the machine of an earlier Node {name}", name)
    if facts.node_name != name:
        text = f"the machine at {shown(facts.node_ip)} bears node {shown(facts.node_name)}, not {name}"
        return _waits("machine", text, name)
    return None


def _check_of_name(dns: str, node: Node, facts: MachineFacts, claims: Claims, endpoint: Endpoint) -> Check:
    name, lower, what = node.name, dns.lower(), f"DNS name {shown(dns)}"
    if dns == name:
        return Check(name="names", passed=True, text=f"{what} is the node's name")
    mine, others = _split(claims.of_name(dns), name)
    owner = next((claim for claim in others if claim.rank is Rank.NODE_NAME), None)
    if owner is not None:
        return Check(name="names", passed=False, text=f"{what} is Node {owner.node}'s own name")
    if reserved := check_of_endpoint_name(dns, node, endpoint):
        return reserved
    if lower not in attested_names(facts):
        more = metadata_incomplete(facts.platform)
        if more:
            return _waits("names", f"{what} is not attested by the machine of {name}: {shown(more)}", name)
        return Check(name="names", passed=False, text=f"{what} is not attested by the machine of {name}")
    rank = Rank.NAMESAKE if mine is not None and mine.rank is Rank.NAMESAKE else Rank.ATTESTED
    return _against(f"{what}", "names", name, rank, others)


def _check_of_address(
    ip: str, name: str, facts: MachineFacts, answered: frozenset[str], claims: Claims
) -> Check:
    what = f"IP address {ip}"
    _, others = _split(claims.of_address(ip), name)
    if ip not in attested_ips(facts):
        owner = next((claim for claim in others if claim.rank is Rank.ANSWERED), None)
        if owner is not None:
            return Check(
                name="addresses", passed=False, text=f"{what} is Node {owner.node}'s: it answers there"
            )
        return _waits("addresses", f"{what} is not on the machine of {name} (yet)", name)
    former = tuple(claim for claim in others if claim.was_answered)
    if former:
        text = f"{what} was Node {former[0].node}'s, which does not answer any more and still exists"
        return _waits("former", text, name, *(claim.node for claim in former))
    return _against(what, "addresses", name, Rank.ANSWERED if ip in answered else Rank.ATTESTED, others)


def _against(what: str, check: str, name: str, rank: Rank, others: tuple[Claim, ...]) -> Check:
    """My claim of that rank beside those of others."""
    rivals = tuple(claim for claim in others if _stands_against(claim.rank, rank))
    if not rivals:
        how = "answered there" if rank is Rank.ANSWERED else "says so"
        return Check(name=check, passed=True, text=f"{what}: the machine of {name} {how}")
    first = max(rivals, key=lambda claim: claim.rank)
    text = f"{what} is claimed by Node {first.node}, too, which {_IN_WORDS[first.rank]}"
    equal = tuple(claim.node for claim in rivals if claim.rank <= rank)
    nodes = frozenset({name, *(claim.node for claim in rivals)})
    return Check(name="rivals", passed=None, text=text, nodes=nodes, rivals=equal)


def _stands_against(other: Rank, mine: Rank) -> bool:
    # What was never asked may attest it when it is: it loses to what stands above attestation only.
    return other >= mine or (other is Rank.UNCHECKED and mine is Rank.ATTESTED)


def _split(claims: tuple[Claim, ...], name: str) -> tuple[Claim | None, tuple[Claim, ...]]:
    mine = next((claim for claim in claims if claim.node == name), None)
    return mine, tuple(claim for claim in claims if claim.node != name)


def _waits(check: str, text: str, *nodes: str) -> Check:
    return Check(name=check, passed=None, text=text, nodes=frozenset(nodes))
