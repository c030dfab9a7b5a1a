"""Where pods may be: the flags go before what a control plane says; the reference's mistakes are mistakes."""

import pytest

from libs.common.settings.read_settings import SettingsError, read_settings
from services.ipam.core.effective_networks import (
    EffectiveNetworks,
    NetworkFlags,
    resolve_networks,
    validate_network_flags,
)
from services.ipam.core.pools import CannotAllocate, NotReady
from services.ipam.settings import IpamSettings
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
    assert (networks.pods.cidrs, networks.services) == ((V4,), ("10.96.0.0/12",))


def test_ranges_of_service_cidrs_are_spared_and_nothing_is_known_without_them():
    said = NetworkFlags(cluster_cidrs=(V4,), service_cidrs=("10.96.0.0/12",))
    networks = resolve_networks(said, None, ("10.200.0.0/16",))
    assert isinstance(networks, EffectiveNetworks)
    assert networks.services == ("10.96.0.0/12", "10.200.0.0/16")
    assert isinstance(resolve_networks(said, observe(), None), NotReady)


def test_flags_go_before_and_services_of_either_are_spared():
    networks = found(NetworkFlags(cluster_cidrs=(V4,), service_cidrs=("10.97.0.0/16",)), pod_cidrs=(V6,))
    assert networks.pods.cidrs == (V4,)
    assert networks.services == ("10.97.0.0/16", "10.96.0.0/12")
    assert found(NetworkFlags(), pod_cidrs=(V4, V6)).pods.cidrs == (V4, V6)


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
    pods = found(NetworkFlags(**said), **observed).pods  # type: ignore[arg-type]
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


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), False),
        (("--controllers=*",), False),
        (("--controllers=*,node-ipam-controller",), True),
        (("--controllers=cloud-node", "--allocate-node-cidrs"), True),
        (("--allocate-node-cidrs=false",), False),
    ],
)
def test_pod_cidrs_are_allocated_only_where_that_is_asked_for(flags: tuple[str, ...], wanted: bool):
    assert settings(*flags).is_enabled is wanted
