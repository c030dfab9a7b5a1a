"""IPAM status: pools, podCIDRs of Nodes, quarantined blocks and conflicts. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from cli.cluster.installation import find_container, read_service_settings
from cli.cluster.snapshot import ClaimPages, ClusterSnapshot
from cli.cluster.unavailable import list_known
from cli.status.ipam.pod_cidrs import (
    ClaimConflict,
    ClaimedBlock,
    PodCidrStatus,
    find_conflicts,
    list_pod_cidrs,
    why_invalid,
)
from libs.common.cloud_config.model import CloudConfig, Ownership
from libs.common.cloud_config.model import Pool as PoolSpec
from libs.common.cloud_config.ownership import why_not_owned
from libs.common.contract.controllers import NODE_IPAM
from libs.common.contract.events import ClusterNetworksObserved
from libs.common.contract.networks import (
    Family,
    NetworkSet,
    contains,
    parse_cached_network,
    parse_foreign_network,
    parse_network,
)
from libs.common.contract.node import Node
from libs.common.contract.services import IPAM
from services.ipam.core.effective_networks import NetworkFlags, resolve_networks
from services.ipam.core.pages import (
    Claim,
    Page,
    Pages,
    decode_pages,
    page_range_of,
)
from services.ipam.core.pool_usage import end_quarantine, measure_usage
from services.ipam.core.pools import DEFAULT_POOL, EffectiveNetworks, Pool, build_pools
from services.ipam.settings import IpamSettings

_DEFAULT_OWNERSHIP: Final = Ownership()
_DEFAULT_SETTINGS: Final = IpamSettings()
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The blocks of one network of a pool; outside all pools, the blocks of one size in one page."""

    name: str | None = None  # None = outside all pools
    network: str
    mask: int
    capacity: int | None = None  # None = unknown
    in_use: int  # blocks of existing Nodes
    free: int | None = None
    quarantined: int  # blocks of deleted Nodes


class QuarantinedClaim(ClaimedBlock, frozen=True, kw_only=True):
    """The claim of a deleted Node, whose block ipam does not allocate before `until`."""

    since: datetime
    until: datetime


class NodeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of Nodes, and of those without podCIDRs, except those of other controllers."""

    count: int
    waiting: int = msgspec.field(name="withoutPodCIDRs")


class IpamStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Pools, podCIDRs, quarantined blocks and conflicts at one moment, as in the JSON output."""

    at: datetime
    claim_pages: tuple[str, ...]  # names of the ConfigMaps, including unreadable ones
    claims: int
    nodes: NodeCounts
    pools: tuple[PoolStatus, ...]
    pod_cidrs: tuple[PodCidrStatus, ...] = msgspec.field(name="podCIDRs")
    quarantined: tuple[QuarantinedClaim, ...]
    conflicts: tuple[ClaimConflict, ...]
    unavailable: tuple[str, ...] = ()  # where settings or networks could not be read: defaults replace them

    @property
    def are_pools_known(self) -> bool:
        return any(pool.name for pool in self.pools)

    @property
    def exit_status(self) -> int:
        return 1 if self.conflicts else 0


def assess_pod_cidrs(
    snapshot: ClusterSnapshot, stored: ClaimPages, given: Mapping[str, str], file: CloudConfig | None = None
) -> IpamStatus:
    """Return the status by flags and file of ipam; `given` and `file` override those in the cluster.

    Without pools and --cluster-cidr, the networks are those that metadata published. Raises ValueError.
    """
    parts = ("pods",) if file else ("pods", "config")
    unavailable = (snapshot.flow_problem, *snapshot.list_unavailable_parts(*parts))
    file = file or snapshot.cloud_config
    settings = read_service_settings(IpamSettings, given, find_container(snapshot.pods, IPAM))
    flow, pages = snapshot.flow_snapshot, decode_pages(stored.after, Pages())
    networks = flow.networks.event if flow and flow.networks else None
    published = networks if isinstance(networks, ClusterNetworksObserved) else None
    found = build_ipam_status(
        stored,
        list_known(snapshot.nodes),
        list_pools(settings.network_flags, file.pools, published, tuple(pages.by_range.values())),
        at=snapshot.at,
        quarantine=settings.quarantine,
        ownership=file.ownership.for_controller(NODE_IPAM),
    )
    return msgspec.structs.replace(found, unavailable=tuple(filter(None, unavailable)))


def build_ipam_status(
    stored: ClaimPages,
    nodes: Sequence[Node],
    pools: Sequence[Pool],
    *,
    at: datetime,
    quarantine: timedelta = _DEFAULT_SETTINGS.quarantine,
    ownership: Ownership = _DEFAULT_OWNERSHIP,
) -> IpamStatus:
    """Return the status at one moment. `quarantine` is ipam's quarantine period."""
    pages, before = (decode_pages(each, Pages()) for each in (stored.after, stored.before))
    foreign = {node.uid for node in nodes if why_not_owned(ownership, node)}
    claims = {claim.block: claim for page in pages.by_range.values() for claim in page.claims.values()}
    present = {node.uid for node in nodes}
    gone = [claim for claim in claims.values() if claim.uid not in present]
    resting = [claim for claim in gone if claim.gone_since is not None]
    known_before = before.find_absent(present)
    # A claim that is younger than the Node list may have a Node that is younger, too.
    orphans = [c for c in gone if c.gone_since is None and (c.block, c.uid) in known_before]
    held = tuple(list_pod_cidrs(nodes, claims, {page.name for page in pages.unreadable}, foreign))
    carried = [str(n) for one in held if (n := parse_foreign_network(one.pod_cidr or "")) is not None]
    rests = {claim.block for claim in resting}
    return IpamStatus(
        at=at,
        claim_pages=tuple(sorted(page.metadata.name for page in stored.after)),
        claims=len(claims),
        nodes=NodeCounts(
            count=len(nodes),
            waiting=sum(not node.spec.pod_cidrs and node.uid not in foreign for node in nodes),
        ),
        pools=tuple(_count_pools(pools, {*(claims.keys() - rests), *carried}, rests)),
        pod_cidrs=held,
        quarantined=_list_quarantined(resting, quarantine),
        conflicts=find_conflicts(held, orphans, pages.unreadable, took_over=bool(stored.after)),
    )


def _list_quarantined(claims: Iterable[Claim], rest: timedelta) -> tuple[QuarantinedClaim, ...]:
    found = [
        QuarantinedClaim(
            block=claim.block,
            node=claim.node,
            uid=claim.uid,
            since=since,
            until=end_quarantine(since, rest),
        )
        for claim in claims
        if (since := claim.gone_since) is not None
    ]
    return tuple(sorted(found, key=lambda one: (one.until, one.block)))


def _count_pools(
    pools: Sequence[Pool], in_use: Collection[str], resting: Collection[str]
) -> Iterator[PoolStatus]:
    """Yield the usage of each pool. Blocks in use and in quarantine are counted separately.

    A block with both counts twice: in use, and in quarantine.
    """
    of_live, of_resting, of_all = (
        measure_usage(pools, [_make_counting_page(each)]).pools
        for each in (in_use, resting, [*in_use, *resting])
    )
    for pool in pools:
        capacity = of_all[pool.cidr].capacity
        yield PoolStatus(
            name=pool.name,
            network=pool.cidr,
            mask=pool.mask,
            capacity=capacity,
            in_use=of_live[pool.cidr].used,
            quarantined=of_resting[pool.cidr].used,
            free=capacity - of_all[pool.cidr].used,
        )
    yield from _count_outside_pools(in_use, resting, NetworkSet(pool.cidr for pool in pools))


def _make_counting_page(blocks: Iterable[str]) -> Page:
    """Return a page with these blocks: `measure_usage` counts nested blocks once."""
    return Page(range="", claims={block: Claim(block=block, uid="", node="") for block in blocks})


def _count_outside_pools(
    in_use: Iterable[str], resting: Iterable[str], pools: NetworkSet
) -> Iterator[PoolStatus]:
    """Yield the blocks outside all pools, by page and size."""
    counts: dict[tuple[int, str, int], list[int]] = {}
    for which, blocks in enumerate((in_use, resting)):
        for block in map(parse_cached_network, blocks):
            if not why_invalid(block) and pools.find_overlap(block) is None:
                key = (block.family, page_range_of(str(block)), block.prefix)
                counts.setdefault(key, [0, 0])[which] += 1
    for (_, where, prefix), (used, quarantined) in sorted(counts.items()):
        yield PoolStatus(network=where, mask=prefix, in_use=used, quarantined=quarantined)


def list_pools(
    flags: NetworkFlags,
    specs: Sequence[PoolSpec],
    published: ClusterNetworksObserved | None,
    pages: Sequence[Page],
) -> tuple[Pool, ...]:
    """Return the pools of the file, or of the cluster CIDRs if the file has none; () if neither names any.

    `published` are the networks of metadata. Without them, a mask that neither flags nor file set is that of
    most claims. Raises ValueError if ipam cannot use a network or a mask.
    """
    observed = published or _guess_networks(flags, specs, pages)
    # The networks of Services exclude blocks, and change no pool.
    match resolve_networks(flags, msgspec.structs.replace(observed, service_cidrs=()), added=()):
        case EffectiveNetworks() as networks:
            specs = specs or (PoolSpec(name=DEFAULT_POOL, index=0, cidrs=networks.cidrs),)
            return tuple(
                pool
                for spec in specs
                for family in dict.fromkeys(network.family for network in map(parse_network, spec.cidrs))
                for pool in build_pools(spec, family, networks)
            )
        case refused:
            raise ValueError(f"ipam cannot use its networks: {refused.reason}")


def _guess_networks(
    flags: NetworkFlags, specs: Sequence[PoolSpec], pages: Sequence[Page]
) -> ClusterNetworksObserved:
    """Return the mask of most claims, per IP family, in networks without a mask of their own.

    ipam uses --node-cidr-mask-size only if the cluster has one family. Pools of one family show which.
    """
    families = {network.family for spec in specs for network in map(parse_network, spec.cidrs)}
    usual = [parse_network(cidr) for cidr in (() if specs else flags.cluster_cidrs)]
    for spec in specs:
        own = {4: spec.mask_size_ipv4, 6: spec.mask_size_ipv6}
        usual += [network for network in map(parse_network, spec.cidrs) if not own[network.family]]
    counts = Counter(
        (block.family, block.prefix)
        for page in pages
        for block in map(parse_cached_network, page.claims)
        if any(contains(network, block) for network in usual)
    )
    most: dict[Family, int] = {}
    for (family, prefix), _ in counts.most_common():
        most.setdefault(family, prefix)
    return ClusterNetworksObserved(
        stream_id="",
        pod_cidrs=specs[0].cidrs[:1] if flags.mask_size and len(families) == 1 else (),
        node_cidr_mask_size_ipv4=most.get(4),
        node_cidr_mask_size_ipv6=most.get(6),
        observed_at=_LONG_AGO,
    )
