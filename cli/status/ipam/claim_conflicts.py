"""Conflicts between the claims of ipam and the podCIDRs of Nodes. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from cli.status.ipam.pod_cidr_status import PodCidrStatus
from libs.common.cloud_config.findings import truncate_line
from services.ipam.network_set import parse_foreign_network
from services.ipam.pages import Claim, UnreadablePage

ConflictKind = Literal[
    "overlap", "odd", "claimedForAnother", "unclaimed", "claimWithoutNode", "unreadablePage"
]

ADVICE: Final[dict[ConflictKind, str]] = {
    "overlap": "Pods of both Nodes may get the same addresses: delete one of the Nodes, and let it join "
    "again.",
    "odd": "ipam neither allocates this block nor changes the Node; the conflict ends when the Node is "
    "deleted.",
    "claimedForAnother": "Another allocator set the pod CIDR of the Node: delete the Node, and let it "
    "join again.",
    "unclaimed": "Another allocator set it, or a ConfigMap with claims was deleted. ipam adopts it at its "
    "next garbage collection. Check that kube-controller-manager runs with controllers: "
    '"*,-node-ipam-controller".',
    "claimWithoutNode": "The Node is deleted: ipam quarantines the block within seconds. If the claim "
    "remains, ipam "
    "is not running.",
    "unreadablePage": "ipam allocates and frees nothing in it until an operator repairs the ConfigMap.",
}


class ClaimConflict(msgspec.Struct, frozen=True, kw_only=True):
    """One conflict, with the Nodes and blocks concerned and a text for the operator."""

    kind: ConflictKind
    nodes: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    text: str


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
    overlaps = tuple(_find_overlaps(held))
    return (
        *overlaps,
        *_find_node_conflicts(held, overlaps, took_over=took_over),
        *map(_make_orphan_conflict, orphans),
        *map(_make_page_conflict, unreadable),
    )


def _find_overlaps(held: Iterable[PodCidrStatus]) -> Iterator[ClaimConflict]:
    """Yield each overlap once.

    Two networks are nested or disjoint. So each is compared with the narrowest earlier network that reaches
    as far.
    """
    networks = [
        (network, one) for one in held if (network := parse_foreign_network(one.pod_cidr)) is not None
    ]
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
                blocks=(other.pod_cidr, one.pod_cidr),
                text=f"Node {other.node} has {other.pod_cidr}, Node {one.node} has {one.pod_cidr}",
            )
        around.append((network.family, network.end, one))


def _find_node_conflicts(
    held: Iterable[PodCidrStatus], overlaps: Iterable[ClaimConflict], *, took_over: bool
) -> Iterator[ClaimConflict]:
    told = {frozenset(conflict.nodes) for conflict in overlaps}
    for one in held:
        cidr, where = truncate_line(one.pod_cidr), f"Node {one.node}"
        if one.state == "odd":
            yield _make_conflict(one, "odd", f"{where} has {cidr}: {one.why}")
        elif one.state == "unclaimed" and took_over:
            yield _make_conflict(one, "unclaimed", f"{where} has {cidr}, which has no claim")
        elif one.state == "claimedForAnother" and one.claim is not None:
            whose = "itself" if one.claim.uid == one.uid else truncate_line(one.claim.node)
            if frozenset((one.node, one.claim.node)) not in told:
                text = f"{where} has {cidr}, but {one.claim.block} is claimed for {whose}"
                yield _make_conflict(one, "claimedForAnother", text)


def _make_conflict(one: PodCidrStatus, kind: ConflictKind, text: str) -> ClaimConflict:
    return ClaimConflict(kind=kind, nodes=(one.node,), blocks=(one.pod_cidr,), text=text)


def _make_orphan_conflict(claim: Claim) -> ClaimConflict:
    whose = f"{truncate_line(claim.node)} (uid {truncate_line(claim.uid)})"
    text = f"{claim.block} is claimed for {whose}, but that Node does not exist"
    return ClaimConflict(kind="claimWithoutNode", nodes=(claim.node,), blocks=(claim.block,), text=text)


def _make_page_conflict(page: UnreadablePage) -> ClaimConflict:
    return ClaimConflict(
        kind="unreadablePage", text=f"ConfigMap {page.name} is unreadable: {truncate_line(page.reason)}"
    )
