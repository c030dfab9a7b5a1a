"""The podCIDRs of Nodes and the state of their claims. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from libs.common.contract.node import Node
from services.ipam.network_set import NetworkSet, overlaps, parse_cached_network, parse_foreign_network
from services.ipam.networks import Network
from services.ipam.pages import PAGE_LENGTHS, Claim, page_name, page_range_of

PodCidrState = Literal[
    "claimed", "unclaimed", "claimedForAnother", "odd", "unknown", "unwritten", "leftover", "none", "foreign"
]


class PodCidrStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One podCIDR of a Node and its claim; or, without a podCIDR, a claim that the Node does not use."""

    node: str
    uid: str
    pod_cidr: str = ""  # as written in the Node
    state: PodCidrState
    claim: Claim | None = None  # the Node's own claim, or the one that conflicts
    why: str = ""


def list_pod_cidrs(
    nodes: Iterable[Node], claims: Mapping[str, Claim], unreadable: set[str]
) -> Iterator[PodCidrStatus]:
    """Yield the podCIDRs and unused claims of each Node, by name. `unreadable` are names of pages."""
    spans = NetworkSet(claims)
    own: dict[str, list[Claim]] = {}
    for claim in claims.values():
        own.setdefault(claim.uid, []).append(claim)
    for node in sorted(nodes, key=lambda node: node.name):
        for cidr in node.spec.pod_cidrs:
            yield _judge_pod_cidr(node, cidr, claims, spans, unreadable)
        networks = [
            network for cidr in node.spec.pod_cidrs if (network := parse_foreign_network(cidr)) is not None
        ]
        beside = [
            c
            for c in own.get(node.uid, ())
            if not any(overlaps(parse_cached_network(c.block), n) for n in networks)
        ]
        for claim in beside:
            state: PodCidrState = "leftover" if node.spec.pod_cidrs else "unwritten"
            yield PodCidrStatus(node=node.name, uid=node.uid, state=state, claim=claim)
        if not node.spec.pod_cidrs and not beside:
            yield PodCidrStatus(node=node.name, uid=node.uid, state="none")


def _judge_pod_cidr(
    node: Node, cidr: str, claims: Mapping[str, Claim], spans: NetworkSet, unreadable: set[str]
) -> PodCidrStatus:
    network = parse_foreign_network(cidr)
    held = PodCidrStatus(node=node.name, uid=node.uid, pod_cidr=cidr, state="unclaimed")
    why = why_invalid(network)
    if network is None or why:
        return msgspec.structs.replace(held, state="odd", why=why)
    claim = claims.get(str(network))
    if claim is not None and claim.uid == node.uid:
        return msgspec.structs.replace(held, state="claimed", claim=claim)
    other = spans.find_overlap(network)
    if other is not None:
        return msgspec.structs.replace(held, state="claimedForAnother", claim=claims[str(other)])
    if page_name(page_range_of(str(network))) in unreadable:
        return msgspec.structs.replace(held, state="unknown")
    return held


def mark_foreign(held: Iterable[PodCidrStatus], foreign: Collection[str]) -> Iterator[PodCidrStatus]:
    """Mark Nodes with these UIDs as foreign: it is correct that ipam has no claim for them."""
    for one in held:
        is_theirs = one.uid in foreign and one.state in ("unclaimed", "none")
        yield msgspec.structs.replace(one, state="foreign") if is_theirs else one


def why_invalid(network: Network | None) -> str:
    """Return why a podCIDR fits into no page, or "" if it does. None is an unparseable network."""
    if network is None:
        return "it is not a network"
    widest = PAGE_LENGTHS[network.family]
    return f"it is larger than /{widest}" if network.prefix < widest else ""
