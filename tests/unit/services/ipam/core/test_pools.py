"""From which pools a Node gets its pod CIDRs, of the cluster or of the configuration; or why from none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm, Operator
from libs.common.cloud_config.model import Pool as PoolSpec
from libs.common.contract.machine import AddressStatus, Inventory, MachineFacts
from libs.common.contract.networks import explain_no_blocks, parse_network
from services.ipam.core.pools import (
    Allocator,
    CannotAllocate,
    EffectiveNetworks,
    NotReady,
    Pool,
    select_pools,
)
from tests.builders import make_facts, make_node

V4, V6 = "10.244.0.0/16", "fd00:10:244::/56"
DUAL = EffectiveNetworks(cidrs=(V4, V6))
DEFAULT_V4 = Pool("default", 4, V4, 24)
DEFAULT_V6 = Pool("default", 6, V6, 80)
OWN_V6 = Pool("node-subnet", 6, "2001:db8:0:1::/64", 80)
INITIALIZED = make_node(taints=())
FACTS = make_facts()
IN_A_SUBNET = make_facts(
    addresses=(
        AddressStatus(address="10.0.0.5/24", link="eth0", flags=128),
        AddressStatus(address="2001:db8:0:1::5/64", link="eth0", flags=128),
    )
)


def on(key: str, *values: str, operator: Operator = "In") -> tuple[NodeSelectorTerm, ...]:
    return (
        NodeSelectorTerm(requirements=(NodeSelectorRequirement(key=key, operator=operator, values=values),)),
    )


def asked(
    facts: MachineFacts = FACTS,
    networks: EffectiveNetworks = DUAL,
    specs: tuple[PoolSpec, ...] = (),
    allocator: Allocator = "RangeAllocator",
):
    return select_pools(INITIALIZED, facts, networks, specs, allocator)


def names(answer) -> list[str]:
    assert isinstance(answer, tuple), answer
    return [f"{pool.name} {pool.cidr} /{pool.mask}" for pool in answer]


@pytest.mark.parametrize(
    ("networks", "pools"),
    [
        (DUAL, (DEFAULT_V4, DEFAULT_V6)),
        (EffectiveNetworks(cidrs=(V6, V4)), (DEFAULT_V6, DEFAULT_V4)),
        (EffectiveNetworks(cidrs=(V4,)), (DEFAULT_V4,)),
        (EffectiveNetworks(cidrs=(V6,)), (DEFAULT_V6,)),
        (EffectiveNetworks(cidrs=("10.244.7.7/16",), mask_size_ipv4=26), (Pool("default", 4, V4, 26),)),
        (EffectiveNetworks(cidrs=(V6,), mask_size_ipv6=64), (Pool("default", 6, V6, 64),)),
    ],
)
def test_range_allocator_takes_a_block_of_each_cluster_cidr_in_their_order(networks, pools):
    assert asked(networks=networks) == pools


def test_cloud_allocator_takes_ipv6_of_the_nodes_own_subnet_and_ipv4_of_the_clusters():
    assert asked(IN_A_SUBNET, allocator="CloudAllocator") == (DEFAULT_V4, OWN_V6)
    reverse = EffectiveNetworks(cidrs=(V6, V4))
    assert asked(IN_A_SUBNET, reverse, allocator="CloudAllocator") == (OWN_V6, DEFAULT_V4)


def test_cloud_allocator_serves_initialized_nodes_only():
    answer = select_pools(make_node(), IN_A_SUBNET, DUAL, (), "CloudAllocator")
    assert isinstance(answer, NotReady)
    assert "not initialized" in answer.reason


@pytest.mark.parametrize("address", ["2001:db8::5/128", "fd00::5/64"])
def test_a_machine_with_single_or_private_addresses_only_gets_a_block_of_the_clusters_ipv6_cidr(address: str):
    """The reference gave a nil CIDR to a node whose only global address is a /128 (defect 16)."""
    listed = (AddressStatus(address="10.0.0.5/24", link="eth0"), AddressStatus(address=address, link="eth0"))
    assert asked(make_facts(addresses=listed), allocator="CloudAllocator") == (DEFAULT_V4, DEFAULT_V6)


def test_a_cluster_without_ipv6_needs_no_subnet():
    unlisted = make_facts(addresses=())
    assert asked(unlisted, EffectiveNetworks(cidrs=(V4,)), allocator="CloudAllocator") == (DEFAULT_V4,)


@pytest.mark.parametrize(
    ("cidrs", "words"),
    [
        ((), "no CIDR for pods"),
        ((V4, "10.1.0.0/16"), "have several of one family"),
        ((V4, V6, "fd01::/56"), "have several of one family"),
        (("web-1",), "'web-1' is not a network"),
        (("10.0.0.0/25",), "pool default cannot be used: a block of /24 is larger than all of 10.0.0.0/25"),
        (("fd00::/96",), "a block of /80 is larger than all of fd00::/96"),
    ],
)
def test_cluster_cidrs_that_cannot_serve_are_reported(cidrs: tuple[str, ...], words: str):
    answer = asked(networks=EffectiveNetworks(cidrs=cidrs))
    assert isinstance(answer, CannotAllocate)
    assert words in answer.reason


POOLS = (
    PoolSpec(
        index=0, name="gpu", cidrs=("10.1.0.0/16", "10.3.0.0/24"), selector=on("zone", "a"), mask_size_ipv4=26
    ),
    PoolSpec(
        index=0,
        name="edge",
        cidrs=("10.2.0.0/16", "fd02::/56"),
        selector=on("zone", "a", "b"),
        mask_size_ipv6=72,
    ),
    PoolSpec(index=0, name="rest", cidrs=("10.9.0.0/16", "fd09::/56")),
)


@pytest.mark.parametrize(
    ("zone", "served_from"),
    [
        ("a", ["gpu 10.1.0.0/16 /26", "gpu 10.3.0.0/24 /26", "edge fd02::/56 /72"]),
        ("b", ["edge 10.2.0.0/16 /24", "edge fd02::/56 /72"]),
        ("c", ["rest 10.9.0.0/16 /24", "rest fd09::/56 /80"]),
    ],
)
def test_the_first_pool_that_selects_the_machine_and_has_the_family_serves_it(
    zone: str, served_from: list[str]
):
    assert names(asked(make_facts(zone=zone), specs=POOLS)) == served_from


def test_metadata_that_the_cloud_has_not_reported_yet_selects_no_pool():
    """The machine's zone comes seconds after its platform: what does not match yet is no answer."""
    early = make_facts(platform="aws")
    assert isinstance(asked(early, specs=POOLS), NotReady)
    assert names(asked(early, specs=(POOLS[2], *POOLS[:2])))[0] == "rest 10.9.0.0/16 /24", "not asked for"
    late = make_facts(platform="aws", zone="b", provider_id="aws:///b/i-1")
    assert names(asked(late, specs=POOLS))[0] == "edge 10.2.0.0/16 /24"


def test_a_fact_that_nobody_has_asked_talos_for_yet_is_waited_for():
    specs = (PoolSpec(index=0, name="control", cidrs=(V4, V6), selector=on("machinetype", "controlplane")),)
    answer = asked(make_facts(), specs=specs)
    assert isinstance(answer, NotReady)
    assert "MachineType" in answer.reason


def test_a_pool_may_select_by_what_talos_was_asked_for():
    specs = (PoolSpec(index=0, name="control", cidrs=(V4, V6), selector=on("machinetype", "controlplane")),)
    facts = make_facts()
    facts = MachineFacts(
        platform=facts.platform, queried_at=facts.queried_at, node_ip=facts.node_ip,
        inventory=Inventory(machine_type="controlplane"),
    )  # fmt: skip
    assert names(asked(facts, specs=specs)) == [f"control {V4} /24", f"control {V6} /80"]


@pytest.mark.parametrize("specs", [POOLS[:1], (PoolSpec(index=0, name="empty", cidrs=()),)])
def test_a_node_that_no_pool_selects_is_reported_and_never_given_half(specs: tuple[PoolSpec, ...]):
    for zone in ("a", "c"):  # gpu has no IPv6
        answer = asked(make_facts(zone=zone), specs=specs)
        assert isinstance(answer, CannotAllocate)
        assert "no configured pool that selects it has an IPv" in answer.reason


def test_a_cluster_without_cidrs_of_its_own_is_served_from_pools():
    none = EffectiveNetworks(cidrs=())
    assert names(asked(networks=none, specs=POOLS[2:])) == ["rest 10.9.0.0/16 /24", "rest fd09::/56 /80"]
    assert asked(make_facts(), none, POOLS[:2]) == CannotAllocate("no configured pool selects it")


def test_pools_may_add_a_family_that_the_cluster_does_not_have():
    answer = asked(networks=EffectiveNetworks(cidrs=(V6,)), specs=POOLS[2:])
    assert names(answer) == ["rest fd09::/56 /80", "rest 10.9.0.0/16 /24"]  # the cluster's own stays primary


def test_a_pool_too_small_for_its_blocks_is_reported_only_to_the_nodes_that_it_selects():
    small = PoolSpec(index=0, name="small", cidrs=("10.1.0.0/28", "fd01::/56"), selector=on("zone", "a"))
    answer = asked(make_facts(zone="a"), specs=(small, POOLS[2]))
    assert answer == CannotAllocate(
        "pool small cannot be used: a block of /24 is larger than all of 10.1.0.0/28"
    )
    assert names(asked(make_facts(zone="b"), specs=(small, POOLS[2]))) == [
        "rest 10.9.0.0/16 /24",
        "rest fd09::/56 /80",
    ]


CIDRS = st.lists(
    st.sampled_from([V4, V6, "10.1.0.0/25", "fd00::/100", "10.2.0.0/20", "bad"]), max_size=3
).map(tuple)
SPECS = st.builds(
    PoolSpec,
    index=st.just(0),
    name=st.sampled_from("ab"), cidrs=CIDRS, selector=st.sampled_from([(), on("zone", "a"), on("zone", "z")]),
    mask_size_ipv4=st.none() | st.integers(8, 33), mask_size_ipv6=st.none() | st.integers(40, 129),
)  # fmt: skip
SOME_FACTS = st.sampled_from([IN_A_SUBNET, make_facts(zone="a"), make_facts(zone="z", addresses=())])


@given(
    SOME_FACTS,
    CIDRS,
    st.lists(SPECS, max_size=3),
    st.sampled_from(["RangeAllocator", "CloudAllocator"]),
)
def test_whatever_is_configured_the_answer_is_pools_that_hold_blocks_of_every_family_or_a_reason(
    facts, cidrs, specs, allocator
):
    networks = EffectiveNetworks(cidrs=cidrs)
    answer = select_pools(INITIALIZED, facts, networks, specs, allocator)
    if isinstance(answer, NotReady | CannotAllocate):
        assert answer.reason
        return
    families = list(dict.fromkeys(pool.family for pool in answer))
    assert [pool.family for pool in answer] == sorted((p.family for p in answer), key=families.index)
    wanted = [6 if ":" in cidr else 4 for cidr in networks.cidrs]
    assert families[: len(wanted)] == wanted
    assert all(not explain_no_blocks(parse_network(pool.cidr), pool.mask) for pool in answer)
