"""The networks that blocks come from, and how much of them is in use."""

from datetime import UTC, datetime, timedelta

import pytest

from libs.common.cloud_config.model import Pool as PoolSpec
from libs.common.contract.events import MAX_QUARANTINED_BLOCKS, Pulse, QuarantinedBlock, encode
from libs.common.settings.read_settings import SettingsError, read_settings
from services.ipam.core.effective_networks import (
    NetworkFlags,
    resolve_networks,
    validate_network_flags,
)
from services.ipam.core.pages import Claim, Page
from services.ipam.core.pool_usage import (
    PoolUsage,
    build_quarantine,
    find_refused_shrinks,
    measure_usage,
)
from services.ipam.core.pools import CannotAllocate, EffectiveNetworks, NotReady, Pool
from services.ipam.settings import IpamSettings
from tests.builders import NOW
from tests.builders import make_cluster_networks as observe

V4, V6 = "10.244.0.0/16", "fd00:10:244::/48"


def settings(*flags: str) -> IpamSettings:
    return read_settings([IpamSettings], flags, {}).get(IpamSettings)


def mistake(*flags: str) -> str:
    with pytest.raises(SettingsError) as refused:
        settings(*flags)
    return str(refused.value)


def found(said: NetworkFlags, **observed: object) -> EffectiveNetworks:
    networks = resolve_networks(said, observe(**observed), ())  # type: ignore[arg-type]
    assert isinstance(networks, EffectiveNetworks), networks
    return networks


def test_nothing_is_known_before_a_control_plane_reports_or_the_flags_say_both():
    for said in (
        NetworkFlags(),
        NetworkFlags(cluster_cidrs=(V4,)),
        NetworkFlags(service_cidrs=("10.96.0.0/12",)),
    ):
        assert isinstance(resolve_networks(said, None, ()), NotReady)
    said = NetworkFlags(cluster_cidrs=(V4,), service_cidrs=("10.96.0.0/12",))
    networks = resolve_networks(said, None, ())
    assert isinstance(networks, EffectiveNetworks)
    assert (networks.cidrs, networks.services) == ((V4,), ("10.96.0.0/12",))


def test_ranges_of_service_cidrs_are_spared_and_nothing_is_known_without_them():
    said = NetworkFlags(cluster_cidrs=(V4,), service_cidrs=("10.96.0.0/12",))
    networks = resolve_networks(said, None, ("10.200.0.0/16",))
    assert isinstance(networks, EffectiveNetworks)
    assert networks.services == ("10.96.0.0/12", "10.200.0.0/16")
    assert isinstance(resolve_networks(said, observe(), None), NotReady)


def test_flags_go_before_and_services_of_either_are_spared():
    networks = found(NetworkFlags(cluster_cidrs=(V4,), service_cidrs=("10.97.0.0/16",)), pod_cidrs=(V6,))
    assert networks.cidrs == (V4,)
    assert networks.services == ("10.97.0.0/16", "10.96.0.0/12")
    assert found(NetworkFlags(), pod_cidrs=(V4, V6)).cidrs == (V4, V6)


@pytest.mark.parametrize(
    ("said", "observed", "masks"),
    [
        ({}, {}, (24, 80)),
        ({}, {"node_cidr_mask_size_ipv4": 25, "node_cidr_mask_size_ipv6": 72}, (25, 72)),
        ({"mask_size": 26}, {"node_cidr_mask_size_ipv4": 25}, (26, 26)),
        ({"mask_size_ipv4": 26}, {"node_cidr_mask_size_ipv4": 25}, (26, 80)),
        (
            {"mask_size_ipv4": 26, "mask_size_ipv6": 64, "cluster_cidrs": (V4, V6)},
            {"node_cidr_mask_size_ipv6": 72},
            (26, 64),
        ),
    ],
)
def test_a_block_is_as_large_as_the_flags_say_or_the_machine_config_or_24_and_80(
    said: dict[str, object], observed: dict[str, int], masks: tuple[int, int]
):
    if "mask_size" in said:  # one family; a /26 is invalid for IPv6, which is not configured
        assert isinstance(resolve_networks(NetworkFlags(**said), observe(**observed), ()), EffectiveNetworks)  # type: ignore[arg-type]
        return
    pods = found(NetworkFlags(**said), **observed)  # type: ignore[arg-type]
    assert (pods.mask_size_ipv4, pods.mask_size_ipv6) == masks


def test_what_a_control_plane_says_and_cannot_be_obeyed_is_no_end_of_the_process():
    for observed in (
        {"service_cidrs": ("nonsense",)},
        {"node_cidr_mask_size_ipv4": 8},
        {"pod_cidrs": (V4, V6), "said": NetworkFlags(mask_size=24)},
    ):
        said = observed.pop("said", NetworkFlags())
        assert isinstance(resolve_networks(said, observe(**observed), ()), CannotAllocate), observed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((f"--cluster-cidr={V4},10.8.0.0/16",), "have several of one family"),
        ((f"--cluster-cidr={V4},{V6},10.8.0.0/16",), "have several of one family"),
        (("--cluster-cidr=10.244.0.0/16/3",), "is not a network"),
        (("--service-cluster-ip-range=services",), "'services' is not a network"),
        ((f"--cluster-cidr={V4},{V6}", "--node-cidr-mask-size=24"), "cannot be used with dual-stack"),
        (
            (f"--cluster-cidr={V4}", "--node-cidr-mask-size=24", "--node-cidr-mask-size-ipv4=24"),
            "cannot be used together",
        ),
        ((f"--cluster-cidr={V4}", "--node-cidr-mask-size-ipv6=80"), "single-stack IPv4"),
        ((f"--cluster-cidr={V6}", "--node-cidr-mask-size-ipv4=24"), "single-stack IPv6"),
        ((f"--cluster-cidr={V4}", "--node-cidr-mask-size-ipv4=15"), "larger than all of 10.244.0.0/16"),
        (("--cluster-cidr=10.0.0.0/8", "--node-cidr-mask-size=10"), "allowed are 12 to 32 bits"),
        (("--node-cidr-mask-size=24", "--node-cidr-mask-size-ipv6=80"), "cannot be used together"),
        (("--node-cidr-mask-size=8",), "--node-cidr-mask-size: /8 is no prefix length"),
        (("--node-cidr-mask-size=129",), "--node-cidr-mask-size: /129 is no prefix length"),
        (("--node-cidr-mask-size-ipv4=8",), "allowed are 12 to 32 bits"),
        (("--node-cidr-mask-size-ipv6=40",), "allowed are 48 to 128 bits"),
        (("--cidr-allocator-type=IPAMFromCluster",), "is not one of RangeAllocator, CloudAllocator"),
    ],
)
def test_flags_that_cannot_be_obeyed_are_refused_at_the_start(flags: tuple[str, ...], words: str):
    assert words in mistake(*flags)


def test_the_reference_s_flags_are_read_as_they_are():
    read = settings(
        "--allocate-node-cidrs",
        f"--cluster-cidr={V4}, {V6}",
        "--cidr-allocator-type=CloudAllocator",
        "--node-cidr-mask-size-ipv4=25",
        "--node-cidr-mask-size=0",
        "--service-cluster-ip-range=10.96.0.5/12",
    )
    assert read.is_enabled
    assert read.network_flags == NetworkFlags(
        cluster_cidrs=(V4, V6), service_cidrs=("10.96.0.5/12",), mask_size_ipv4=25
    )
    assert validate_network_flags(read.network_flags) == ()


# ---- usage


def a_page(page_range: str, *blocks: str, gone: str = "") -> Page:
    claims = {
        block: Claim(block=block, uid=f"uid of {block}", node="n", gone_since=NOW if block == gone else None)
        for block in blocks
    }
    return Page(range=page_range, claims=claims)


WEB, REST, SIX = (
    Pool("web", 4, "10.244.0.0/22", 24),
    Pool("rest", 4, "10.245.0.0/16", 24),
    Pool("web", 6, "fd00::/64", 80),
)


def test_each_block_counts_in_its_pool_and_once_whatever_its_size():
    pages = [
        a_page("10.240.0.0/12", "10.244.1.0/24", "10.244.2.0/26", "10.244.2.64/26", "10.245.0.0/17"),
        a_page("fd00::/48", "fd00::/80", "fd00:0:0:1::/80", gone="fd00::/80"),
    ]
    found = measure_usage([WEB, REST, SIX], pages)
    assert found.pools == {
        "10.244.0.0/22": PoolUsage(2, 4),
        "10.245.0.0/16": PoolUsage(128, 256),
        "fd00::/64": PoolUsage(1, 65536),
    }
    assert found.quarantined == 1


# ---- blocks in use that a new configuration removes


def a_pool(name: str, *cidrs: str) -> PoolSpec:
    return PoolSpec(name=name, index=0, cidrs=cidrs)


OLD = (a_pool("gpu", "10.1.0.0/16", "fd01::/56"), a_pool("rest", "10.9.0.0/16"))
IN_USE = {"10.1.0.0/24": "gpu-1", "10.1.200.0/24": "gpu-2", "fd01::/80": "gpu-1", "10.9.0.0/24": "web-1"}


def test_a_pool_that_loses_blocks_in_use_is_refused_with_the_nodes_named():
    new = (a_pool("gpu", "10.1.0.0/17", "fd01::/56"), OLD[1])
    assert find_refused_shrinks(OLD, new, IN_USE) == (
        "pool gpu would lose 1 block that a node has: gpu-2 (10.1.200.0/24)",
    )


def test_a_pool_that_disappears_is_refused_while_nodes_have_blocks_of_it():
    blocks = "gpu-1 (10.1.0.0/24), gpu-1 (fd01::/80), gpu-2 (10.1.200.0/24)"
    problem = f"pool gpu would lose 3 blocks that nodes have: {blocks}"
    assert find_refused_shrinks(OLD, OLD[1:], IN_USE) == (problem,)
    assert len(find_refused_shrinks(OLD, (), IN_USE)) == 2


def test_what_nobody_uses_may_go_and_what_is_used_may_move():
    new = (a_pool("all", "10.1.0.0/24", "10.1.200.0/24", "fd01::/64", "10.9.0.0/16"),)
    assert find_refused_shrinks(OLD, new, IN_USE) == ()
    assert find_refused_shrinks(OLD, (), {}) == ()
    assert find_refused_shrinks((), OLD, IN_USE) == ()


def test_a_block_that_only_partly_stays_is_lost():
    assert find_refused_shrinks(OLD, (a_pool("gpu", "10.1.0.0/25"),), {"10.1.0.0/24": "gpu-1"})


def test_blocks_from_elsewhere_and_odd_ones_refuse_nothing():
    assert (
        find_refused_shrinks(OLD, (), {"10.244.0.0/24": "web-1", "rubbish": "web-2", "0.0.0.0/0": "web-3"})
        == ()
    )


def test_of_many_nodes_ten_are_named():
    many = {f"10.1.{n}.0/24": f"gpu-{n:03}" for n in range(200)}
    (sentence,) = find_refused_shrinks(OLD, OLD[1:], many)
    assert sentence.startswith(
        "pool gpu would lose 200 blocks that nodes have: gpu-000 (10.1.0.0/24), gpu-001 "
    )
    assert sentence.endswith("gpu-009 (10.1.9.0/24) and 190 more")


PERIOD = timedelta(minutes=10)


def make_gone(block: str, node: str, since: datetime | None) -> Claim:
    return Claim(block=block, uid=block, node=node, gone_since=since)


def test_the_quarantine_has_the_blocks_of_deleted_nodes_and_when_each_ends_at_the_earliest():
    claims = [
        make_gone("10.244.0.0/24", "web-0", None),
        make_gone("10.244.1.0/24", "web-1", NOW),
        make_gone("10.244.2.0/24", "web-2", NOW - timedelta(minutes=1)),
    ]
    page = Page(range="10.240.0.0/12", claims={claim.block: claim for claim in claims})
    found = build_quarantine([page, Page(range="10.0.0.0/12")], PERIOD, NOW)
    assert (found.count, found.read_at) == (2, NOW)
    assert [(each.node, each.until - NOW) for each in found.blocks] == [
        ("web-2", timedelta(minutes=9)),
        ("web-1", PERIOD),
    ]


@pytest.mark.parametrize("since", [NOW, datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_a_pulse_stays_small_however_many_blocks_with_whatever_names_are_in_quarantine(since: datetime):
    names = ("\x01" * 9_000, "n" * 300, "ü", "n" * 253)
    claims = [
        make_gone(f"fd00:1111:2222:3333:{number:x}::/80", names[number % 4], since) for number in range(9_000)
    ]
    page = Page(range="fd00:1111:2222::/48", claims={claim.block: claim for claim in claims})
    found = build_quarantine([page], PERIOD, NOW)
    assert (found.count, len(found.blocks)) == (9_000, MAX_QUARANTINED_BLOCKS)
    assert {len(each.node) for each in found.blocks} == {0, 253}, "no other name is one of a Node"
    assert isinstance(found.blocks[0], QuarantinedBlock)
    assert len(encode(Pulse(service="ipam", instance="host_1", quarantine=found))) < 48 * 1024
