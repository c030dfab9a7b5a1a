"""The podCIDRs of Nodes, the state of their claims, and the conflicts between both. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from libs.common.cloud_config.findings import truncate_line
from libs.common.contract.networks import (
    Network,
    NetworkSet,
    overlaps,
    parse_cached_network,
    parse_foreign_network,
)
from libs.common.contract.node import Node
from services.ipam.core.pages import PAGE_LENGTHS, Claim, UnreadablePage, page_name, page_range_of

PodCidrState = Literal[
    "claimed", "unclaimed", "claimedForAnother", "odd", "unknown", "unwritten", "leftover", "none", "foreign"
]
ConflictKind = Literal[
    "overlap", "odd", "claimedForAnother", "unclaimed", "claimWithoutNode", "unreadablePage"
]
TITLES: Final[dict[ConflictKind, str]] = {
    "overlap": "Overlapping pod CIDRs",
    "odd": "Invalid pod CIDRs",
    "claimedForAnother": "Pod CIDRs claimed for another Node",
    "unclaimed": "Nodes without a claim",
    "claimWithoutNode": "Claims without a Node",
    "unreadablePage": "Unreadable claim pages",
}
ADVICE: Final[dict[ConflictKind, str]] = {
    "overlap": "Pods of both Nodes may get the same addresses: drain and delete one of the Nodes, and "
    "reboot its machine, which joins again.",
    "odd": "ipam neither allocates this block nor changes the Node; the conflict ends when the Node is "
    "deleted.",
    "claimedForAnother": "Another allocator set the pod CIDR of the Node: drain and delete the Node, and "
    "reboot its machine, which joins again.",
    "unclaimed": "Another allocator set it, or a ConfigMap with claims was deleted. ipam adopts it at its "
    "next garbage collection. Check that kube-controller-manager has -node-ipam-controller in "
    "its --controllers.",
    "claimWithoutNode": "The Node is deleted: ipam quarantines the block within seconds. If the claim "
    "remains, ipam is not running.",
    "unreadablePage": "ipam allocates and frees nothing in it until an operator repairs the ConfigMap.",
}


class ClaimedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A claim, reduced to its block and Node."""

    block: str
    node: str
    uid: str


class PodCidrStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One podCIDR of a Node and its claim; or, without a podCIDR, a claim that the Node does not use."""

    node: str
    uid: str
    pod_cidr: str | None = msgspec.field(name="podCIDR", default=None)  # as written in the Node
    state: PodCidrState
    claim: ClaimedBlock | None = None  # the Node's own claim, or the one that conflicts
    why: str | None = None


class ClaimConflict(msgspec.Struct, frozen=True, kw_only=True):
    """One conflict, with the Nodes and blocks concerned and a text for the operator."""

    kind: ConflictKind
    nodes: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    text: str


def list_pod_cidrs(
    nodes: Iterable[Node], claims: Mapping[str, Claim], unreadable: Collection[str], foreign: Collection[str]
) -> Iterator[PodCidrStatus]:
    """Yield the podCIDRs and unused claims of each Node, by name.

    `unreadable` are names of pages. `foreign` are UIDs of Nodes for which ipam correctly has no claim.
    """
    spans = NetworkSet(claims)
    own: dict[str, list[Claim]] = {}
    for claim in claims.values():
        own.setdefault(claim.uid, []).append(claim)
    for node in sorted(nodes, key=lambda node: node.name):
        is_foreign = node.uid in foreign
        for cidr in node.spec.pod_cidrs:
            found = _judge_pod_cidr(node, cidr, claims, spans, unreadable)
            is_theirs = is_foreign and found.state == "unclaimed"
            yield msgspec.structs.replace(found, state="foreign") if is_theirs else found
        networks = [n for cidr in node.spec.pod_cidrs if (n := parse_foreign_network(cidr)) is not None]
        beside = [
            claim
            for claim in own.get(node.uid, ())
            if not any(overlaps(parse_cached_network(claim.block), network) for network in networks)
        ]
        for claim in beside:
            unused: PodCidrState = "leftover" if node.spec.pod_cidrs else "unwritten"
            yield PodCidrStatus(node=node.name, uid=node.uid, state=unused, claim=reduce_claim(claim))
        if not node.spec.pod_cidrs and not beside:
            yield PodCidrStatus(node=node.name, uid=node.uid, state="foreign" if is_foreign else "none")


def _judge_pod_cidr(
    node: Node, cidr: str, claims: Mapping[str, Claim], spans: NetworkSet, unreadable: Collection[str]
) -> PodCidrStatus:
    network = parse_foreign_network(cidr)
    state: PodCidrState = "unclaimed"
    claim: Claim | None = None
    why = why_invalid(network)
    if network is None or why:
        state = "odd"
    elif (exact := claims.get(str(network))) is not None and exact.uid == node.uid:
        state, claim = "claimed", exact
    elif (other := spans.find_overlap(network)) is not None:
        state, claim = "claimedForAnother", claims[str(other)]
    elif page_name(page_range_of(str(network))) in unreadable:
        state = "unknown"
    return PodCidrStatus(
        node=node.name,
        uid=node.uid,
        pod_cidr=cidr,
        state=state,
        claim=reduce_claim(claim) if claim else None,
        why=why or None,
    )


def reduce_claim(claim: Claim) -> ClaimedBlock:
    """Return block and Node of the claim."""
    return ClaimedBlock(block=claim.block, node=claim.node, uid=claim.uid)


def why_invalid(network: Network | None) -> str:
    """Return why a podCIDR fits into no page, or "" if it does. None is an unparseable network."""
    if network is None:
        return "it is not a network"
    widest = PAGE_LENGTHS[network.family]
    return f"it is larger than /{widest}" if network.prefix < widest else ""


def find_conflicts(
    held: Sequence[PodCidrStatus],
    orphans: Iterable[Claim],
    unreadable: Iterable[UnreadablePage],
    *,
    took_over: bool,
) -> tuple[ClaimConflict, ...]:
    """Return all conflicts: overlaps first, then by Node, then orphaned claims, then unreadable pages.

    `orphans` are claims of deleted Nodes that are not marked as quarantined. `took_over` is true if ipam has
    claims at all: before that, no claim for a Node's podCIDR can exist.
    """
    overlaps_found = tuple(_find_overlaps(held))
    return (
        *overlaps_found,
        *_find_node_conflicts(held, overlaps_found, took_over=took_over),
        *map(_make_orphan_conflict, orphans),
        *map(_make_page_conflict, unreadable),
    )


def _find_overlaps(held: Iterable[PodCidrStatus]) -> Iterator[ClaimConflict]:
    """Yield each overlap once.

    Two networks are nested or disjoint. So each is compared with the narrowest earlier network that reaches
    as far.
    """
    networks = [(n, one) for one in held if (n := parse_foreign_network(one.pod_cidr or "")) is not None]
    networks.sort(key=lambda each: (each[0].family, each[0].first, each[0].prefix, each[1].node))
    around: list[tuple[int, int, PodCidrStatus]] = []  # family, end
    for network, one in networks:
        while around and (around[-1][0] != network.family or around[-1][1] <= network.first):
            around.pop()
        if around:
            other = around[-1][2]
            yield ClaimConflict(
                kind="overlap",
                nodes=(other.node, one.node),
                blocks=(other.pod_cidr or "", one.pod_cidr or ""),
                text=f"Node {other.node} has {other.pod_cidr}, Node {one.node} has {one.pod_cidr}",
            )
        around.append((network.family, network.end, one))


def _find_node_conflicts(
    held: Iterable[PodCidrStatus], found: Iterable[ClaimConflict], *, took_over: bool
) -> Iterator[ClaimConflict]:
    overlapping = {frozenset(conflict.nodes) for conflict in found}
    for one in held:
        cidr = one.pod_cidr or ""
        where = f"Node {one.node} has {truncate_line(cidr)}"
        kind: ConflictKind
        match one.state:
            case "odd":
                kind, text = one.state, f"{where}: {one.why}"
            case "unclaimed" if took_over:
                kind, text = one.state, f"{where}, which has no claim"
            case "claimedForAnother" if one.claim and {one.node, one.claim.node} not in overlapping:
                whose = "itself" if one.claim.uid == one.uid else truncate_line(one.claim.node)
                kind, text = one.state, f"{where}, but {one.claim.block} is claimed for {whose}"
            case _:
                continue
        yield ClaimConflict(kind=kind, nodes=(one.node,), blocks=(cidr,), text=text)


def _make_orphan_conflict(claim: Claim) -> ClaimConflict:
    whose = f"{truncate_line(claim.node)} (uid {truncate_line(claim.uid)})"
    text = f"{claim.block} is claimed for {whose}, but that Node does not exist"
    return ClaimConflict(kind="claimWithoutNode", nodes=(claim.node,), blocks=(claim.block,), text=text)


def _make_page_conflict(page: UnreadablePage) -> ClaimConflict:
    return ClaimConflict(
        kind="unreadablePage", text=f"ConfigMap {page.name} is unreadable: {truncate_line(page.reason)}"
    )
