"""IPAM status: pools, podCIDRs of Nodes, quarantined blocks and conflicts. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from cli.cluster.installation import find_container, read_service_settings
from cli.cluster.snapshot import ClaimPages, ClusterSnapshot
from cli.cluster.unavailable import list_known
from cli.inside.flow_snapshot import FlowSnapshot
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
    Network,
    NetworkSet,
    contains,
    explain_no_blocks,
    parse_cached_network,
    parse_foreign_network,
    parse_network,
)
from libs.common.contract.node import Node
from libs.common.contract.services import IPAM
from libs.common.kube.objects import ConfigMap
from services.ipam.core.effective_networks import NetworkFlags
from services.ipam.core.pages import (
    Claim,
    Page,
    UnreadablePage,
    decode_page,
    page_range_of,
)
from services.ipam.core.pool_usage import end_quarantine, measure_usage
from services.ipam.core.pools import DEFAULT_POOL, EffectiveNetworks, Pool
from services.ipam.settings import IpamSettings

_DEFAULT_OWNERSHIP: Final = Ownership()
_DEFAULT_SETTINGS: Final = IpamSettings()


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


def read_pages(stored: Iterable[ConfigMap]) -> tuple[Page, ...]:
    """Return the readable pages."""
    return tuple(page for page in map(decode_page, stored) if isinstance(page, Page))


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
    flags = _add_published_networks(settings.network_flags, snapshot.flow_snapshot)
    found = build_ipam_status(
        stored,
        list_known(snapshot.nodes),
        resolve_pools(flags, file.pools, read_pages(stored.after)),
        at=snapshot.at,
        quarantine=settings.quarantine,
        ownership=file.ownership.for_controller(NODE_IPAM),
    )
    return msgspec.structs.replace(found, unavailable=tuple(filter(None, unavailable)))


def _add_published_networks(flags: NetworkFlags, flow: FlowSnapshot | None) -> NetworkFlags:
    networks = flow.networks.event if flow and flow.networks else None
    if not isinstance(networks, ClusterNetworksObserved):
        return flags
    masks = (networks.node_cidr_mask_size_ipv4, networks.node_cidr_mask_size_ipv6)
    ipv4, ipv6 = (0, 0) if flags.mask_size else masks
    return msgspec.structs.replace(
        flags,
        cluster_cidrs=flags.cluster_cidrs or networks.pod_cidrs,
        mask_size_ipv4=flags.mask_size_ipv4 or ipv4 or 0,
        mask_size_ipv6=flags.mask_size_ipv6 or ipv6 or 0,
    )


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
    pages = read_pages(stored.after)
    unreadable = [page for page in map(decode_page, stored.after) if isinstance(page, UnreadablePage)]
    foreign = {node.uid for node in nodes if why_not_owned(ownership, node)}
    claims = {claim.block: claim for page in pages for claim in page.claims.values()}
    present = {node.uid for node in nodes}
    gone = [claim for claim in claims.values() if claim.uid not in present]
    resting = [claim for claim in gone if claim.gone_since is not None]
    known_before = {
        (claim.block, claim.uid) for page in read_pages(stored.before) for claim in page.claims.values()
    }
    # A claim that is younger than the Node list may have a Node that is younger, too.
    orphans = [c for c in gone if c.gone_since is None and (c.block, c.uid) in known_before]
    held = tuple(list_pod_cidrs(nodes, claims, {page.name for page in unreadable}, foreign))
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
        conflicts=find_conflicts(held, orphans, unreadable, took_over=bool(stored.after)),
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


def resolve_pools(flags: NetworkFlags, specs: Sequence[PoolSpec], pages: Iterable[Page]) -> tuple[Pool, ...]:
    """Return the pools of the file, or of the cluster CIDRs if the file has none; () if neither names any.

    Raises ValueError if a network or a mask is unusable. For a mask that neither flags nor file set, ipam
    reads the machine config. This function uses the mask of most claims instead.
    """
    specs = specs or (PoolSpec(name=DEFAULT_POOL, index=0, cidrs=flags.cluster_cidrs),)
    usual = _get_default_masks(flags, specs, pages)
    return tuple(pool for spec in specs for pool in _make_pools(spec, usual))


def _make_pools(spec: PoolSpec, usual: dict[Family, int]) -> Iterator[Pool]:
    for network in map(parse_network, spec.cidrs):
        mask = _get_own_mask(spec, network.family) or usual[network.family]
        why = explain_no_blocks(network, mask)
        if why:
            raise ValueError(f"pool {spec.name} cannot be used: {why}")
        yield Pool(spec.name, network.family, str(network), mask)


def _get_default_masks(
    flags: NetworkFlags, specs: Sequence[PoolSpec], pages: Iterable[Page]
) -> dict[Family, int]:
    claimed = _count_claimed_masks(specs, pages)
    cidrs = flags.cluster_cidrs or [cidr for spec in specs for cidr in spec.cidrs]
    families = {network.family for network in map(parse_network, cidrs)}
    of_one: dict[Family, int] = dict.fromkeys(families, flags.mask_size) if len(families) == 1 else {}
    default = EffectiveNetworks(cidrs=())
    return {
        4: flags.mask_size_ipv4 or of_one.get(4) or claimed.get(4) or default.mask_size_ipv4,
        6: flags.mask_size_ipv6 or of_one.get(6) or claimed.get(6) or default.mask_size_ipv6,
    }


def _count_claimed_masks(specs: Sequence[PoolSpec], pages: Iterable[Page]) -> dict[Family, int]:
    """Return the mask of most claims, per IP family, in networks without a mask of their own."""
    usual: list[Network] = []
    for spec in specs:
        usual += [n for n in map(parse_network, spec.cidrs) if not _get_own_mask(spec, n.family)]
    counts = Counter(
        (block.family, block.prefix)
        for page in pages
        for block in map(parse_cached_network, page.claims)
        if any(contains(network, block) for network in usual)
    )
    most: dict[Family, int] = {}
    for (family, prefix), _ in counts.most_common():
        most.setdefault(family, prefix)
    return most


def _get_own_mask(spec: PoolSpec, family: Family) -> int | None:
    return spec.mask_size_ipv4 if family == 4 else spec.mask_size_ipv6
