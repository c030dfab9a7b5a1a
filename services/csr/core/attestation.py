"""Checks a request against the facts of the node's machine and the claims of all other Nodes."""

from collections.abc import Iterator
from typing import Final

from libs.common.contract.dns_names import may_be_short_service_name
from libs.common.contract.events import CsrEnriched
from libs.common.contract.ip_addresses import canonical_ip
from libs.common.contract.machine import MachineFacts, why_metadata_incomplete
from libs.common.contract.node import Node
from services.csr.core.certificate_request import CertificateRequest, quote_untrusted
from services.csr.core.claim_index import (
    Claim,
    ClaimIndex,
    ClaimRank,
    collect_answered_ips,
    collect_attested_ips,
    collect_attested_names,
    parse_provided_ips,
)
from services.csr.core.decision import ApiEndpoint, Check, make_undecided
from services.csr.core.endpoint_checks import check_endpoint_address, check_endpoint_name

_MAX_FAULT_LENGTH: Final = 300  # characters of a fault's message, which quotes the machine's response
_RANK_TEXTS: Final = {
    ClaimRank.NODE_OBJECT: "has it in its status only",
    ClaimRank.UNVERIFIED: "has it in its status, and its machine has never been asked",
    ClaimRank.ATTESTED: "has it too, as its machine says",
    ClaimRank.ANSWERED: "answers there",
    ClaimRank.NODE_NAME_PREFIX: "has the name that it begins with",
    ClaimRank.NODE_NAME: "has it as its node name",
    ClaimRank.ANSWERED_NODE_NAME: "has it as its node name and answers under it",
}


def check_against_machine(
    enriched: CsrEnriched, requested: CertificateRequest, claim_index: ClaimIndex, endpoint: ApiEndpoint
) -> Iterator[Check]:
    """Check the facts first; if there are facts, check each name and each address separately."""
    name = enriched.request.node_name
    facts = enriched.facts
    node = claim_index.get_node(name)
    why_not = _check_facts(enriched, node)
    if why_not is not None or facts is None or node is None:
        yield why_not or make_undecided("machine", "no facts of its machine", name)
        return
    yield Check(
        name="machine", passed=True, text=f"the machine at {canonical_ip(facts.node_ip)} answers as {name}"
    )
    for dns in requested.dns_names:
        yield _check_name(dns, node, facts, claim_index, endpoint)
    answered = collect_answered_ips(facts) | frozenset(map(canonical_ip, enriched.answering_addresses))
    attested = collect_attested_ips(facts, answered)
    for ip in requested.ips:
        reserved = check_endpoint_address(ip, node, facts, answered, endpoint)
        if reserved is not None and _find_link(ip, facts):
            yield reserved
        elif ip not in attested:
            yield _check_missing_address(ip, name, facts, claim_index)
        else:
            is_answered = ip in answered
            yield check_pod_cidrs(ip, node, claim_index, answered) or _check_address(
                ip, name, ClaimRank.ANSWERED if is_answered else ClaimRank.ATTESTED, claim_index
            )


def check_pod_cidrs(
    ip: str, node: Node, claim_index: ClaimIndex, answered: frozenset[str] = frozenset()
) -> Check | None:
    """Check that no other Node's pods may have the address; None if none may, or if `node` itself has it.

    A node IP at which the machine answered passes: some CNIs ignore podCIDRs.
    """
    owner = claim_index.find_pod_cidr_owner(ip, node.name)
    if not owner or ip in answered & parse_provided_ips(node.provided_node_ip):
        return None
    text = (
        f"IP address {ip} is in a podCIDR of Node {owner}, and is no node IP at which the machine of "
        f"{node.name} answered"
    )
    return make_undecided("pod-cidrs", text, node.name, owner)


def _check_facts(enriched: CsrEnriched, node: Node | None) -> Check | None:
    name, facts = enriched.request.node_name, enriched.facts
    if node is None:
        return make_undecided("node", f"there is no Node {name} yet", name)
    if enriched.fault is not None:
        fault = enriched.fault
        return make_undecided(
            "unreachable",
            f"{fault.step} ({fault.kind}): {quote_untrusted(fault.message, _MAX_FAULT_LENGTH)}",
            name,
        )
    if facts is None:
        return make_undecided("asking", f"the machine of Node {name} has not been queried yet", name)
    if enriched.node_uid != node.uid:
        return make_undecided("asking", f"the facts are about the machine of an earlier Node {name}", name)
    if facts.node_name != name:
        text = (
            f"the machine at {quote_untrusted(facts.node_ip)} is node "
            f"{quote_untrusted(facts.node_name)}, not {name}"
        )
        return make_undecided("machine", text, name)
    return None


def _check_name(
    dns: str, node: Node, facts: MachineFacts, claim_index: ClaimIndex, endpoint: ApiEndpoint
) -> Check:
    name, what = node.name, f"DNS name {quote_untrusted(dns)}"
    if dns == name:
        return Check(name="names", passed=True, text=f"{what} is the node's name")
    mine, others = _split_own_claim(claim_index.find_by_name(dns), name)
    owner = next((claim for claim in others if claim.rank >= ClaimRank.NODE_NAME), None)
    is_attested = dns.lower() in collect_attested_names(facts)
    if owner is not None and owner.rank is ClaimRank.ANSWERED_NODE_NAME and not is_attested:
        return Check(name="names", passed=False, text=f"{what} is Node {owner.node}'s own name")
    if reserved := check_endpoint_name(dns, node, endpoint):
        return reserved
    # A Node of that name alone, whose machine is silent or was never queried, makes the request wait: every
    # holder of the join token can create one.
    if owner is None and not is_attested:
        return _check_unattested_name(what, name, facts)
    rank = (
        ClaimRank.NODE_NAME_PREFIX
        if mine is not None and mine.rank is ClaimRank.NODE_NAME_PREFIX
        else ClaimRank.ATTESTED
    )
    result = _check_rivals(what, "names", name, rank, others)
    if result.passed and may_be_short_service_name(dns, name):
        text = f"{what} may be a Service's: its first label is not that of the node name {name}"
        return make_undecided("names", text, name)
    return result


def _check_unattested_name(what: str, name: str, facts: MachineFacts) -> Check:
    text = f"{what} is not attested by the machine of {name}"
    if more := why_metadata_incomplete(facts.platform):
        return make_undecided("names", f"{text}: {quote_untrusted(more)}", name)
    return Check(name="names", passed=False, text=text)


def _check_address(ip: str, name: str, rank: ClaimRank, claim_index: ClaimIndex) -> Check:
    """Check an address that the machine attests with that rank."""
    what = f"IP address {ip}"
    mine, others = _split_own_claim(claim_index.find_by_address(ip), name)
    former = tuple(claim for claim in others if claim.was_answered)
    if former:
        text = f"{what} was Node {former[0].node}'s, which does not answer any more and still exists"
        return make_undecided("former", text, name, *(claim.node for claim in former))
    return _check_rivals(what, "addresses", name, rank, others, mine=mine)


def _check_missing_address(ip: str, name: str, facts: MachineFacts, claim_index: ClaimIndex) -> Check:
    """Check an address that the machine does not list, or lists where any address can be."""
    what, link = f"IP address {ip}", _find_link(ip, facts)
    _, others = _split_own_claim(claim_index.find_by_address(ip), name)
    owner = max(others, key=lambda claim: claim.rank, default=None)
    if not link and owner is not None and owner.rank is ClaimRank.ANSWERED:
        return Check(name="addresses", passed=False, text=f"{what} is Node {owner.node}'s: it answers there")
    text = f"{what} is not on the machine of {name} (yet)"
    if link:
        text = (
            f"{what} is only on link {quote_untrusted(link)} of {name}, which accepts any address, and the "
            "machine has not answered there"
        )
    if owner is None:
        return make_undecided("addresses", text, name)
    return make_undecided(
        "addresses", f"{text}; Node {owner.node} {_RANK_TEXTS[owner.rank]}", name, owner.node
    )


def _find_link(ip: str, facts: MachineFacts) -> str:
    return next((status.link for status in facts.addresses if canonical_ip(status.address) == ip), "")


def _check_rivals(
    what: str,
    check: str,
    name: str,
    rank: ClaimRank,
    others: tuple[Claim, ...],
    *,
    mine: Claim | None = None,
) -> Check:
    """Check a claim of `rank` by Node `name`, whose indexed claim is `mine`, against those of other Nodes."""
    rivals = tuple(claim for claim in others if _is_rival(claim, rank, mine))
    if not rivals:
        how = "answered there" if rank is ClaimRank.ANSWERED else "attests it"
        return Check(name=check, passed=True, text=f"{what}: the machine of {name} {how}")
    holders = tuple(claim for claim in rivals if claim.rank is rank and _is_holder(claim, mine))
    first = max(rivals, key=lambda claim: (claim.rank, claim in holders))
    text = f"{what} is claimed by Node {first.node}, too, which {_RANK_TEXTS[first.rank]}"
    if first in holders:
        text += " since before this Node"
    equal = tuple(claim.node for claim in rivals if claim.rank <= rank and claim not in holders)
    nodes = frozenset({name, *(claim.node for claim in rivals)})
    return Check(name="rivals", passed=None, text=text, nodes=nodes, rivals=equal)


def _is_rival(other: Claim, rank: ClaimRank, mine: Claim | None) -> bool:
    if rank is not ClaimRank.ATTESTED or other.rank > rank:
        return other.rank >= rank
    # A machine that was never queried may attest the claim later.
    return other.rank >= ClaimRank.UNVERIFIED and not (mine is not None and _is_holder(mine, other))


def _is_holder(claim: Claim, other: Claim | None) -> bool:
    """Whether the flow showed this claim first. Only an attested claim makes a holder."""
    is_attested = claim.rank is ClaimRank.ATTESTED
    return is_attested and other is not None and claim.first_shown.precedes(other.first_shown)


def _split_own_claim(claims: tuple[Claim, ...], name: str) -> tuple[Claim | None, tuple[Claim, ...]]:
    mine = next((claim for claim in claims if claim.node == name), None)
    return mine, tuple(claim for claim in claims if claim.node != name)
