"""What is claimed for whom, from pages as they were read."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.networks import Network, overlaps, parse_network
from services.ipam.core.allocation import (
    AllocationPlan,
    AllocationRequest,
    AllocationResult,
    Assignment,
    ExistingAssignment,
    NoBlock,
    plan_claims,
)
from services.ipam.core.ledger import Exclusions, Ledger
from services.ipam.core.pages import Claim, Page, page_name, page_range_of
from services.ipam.core.pools import Pool

IPV4 = Pool(name="default", family=4, cidr="10.0.0.0/22", mask=24)
IPV6 = Pool(name="default", family=6, cidr="fd00::/62", mask=64)
NOTHING = Exclusions()


def want(uid: str, *pools: Pool) -> AllocationRequest:
    return AllocationRequest(uid=uid, node=f"node-{uid}", pools=pools or (IPV4, IPV6))


def planned(
    *wants: AllocationRequest,
    pages: tuple[Page, ...] = (),
    occupied: Exclusions = NOTHING,
    closed: dict[str, str] | None = None,
    cursors: dict[tuple[str, int], str] | None = None,
    page_bytes: int = 1_000_000,
) -> AllocationPlan:
    return plan_claims(
        {page.range: page for page in pages},
        wants,
        occupied,
        closed_pages=closed or {},
        cursors=cursors or {},
        page_bytes=page_bytes,
    )


def a_page(**claims: str) -> Page:
    """10.0.<third>.0/24, named t<third>, claimed for that uid."""
    blocks = {f"10.0.{third[1:]}.0/24": uid for third, uid in claims.items()}
    return Page(
        range="10.0.0.0/12",
        resource_version="7",
        claims={block: Claim(block=block, uid=uid, node=uid) for block, uid in blocks.items()},
    )


def given_to(answer: AllocationResult) -> tuple[str, ...]:
    assert isinstance(answer, Assignment), answer
    return answer.pod_cidrs


def test_a_node_gets_a_block_of_each_family_in_the_order_of_its_pools():
    assert given_to(planned(want("u")).results["u"]) == ("10.0.0.0/24", "fd00::/64")
    assert given_to(planned(want("u", IPV6, IPV4)).results["u"]) == ("fd00::/64", "10.0.0.0/24")


def test_the_next_block_is_the_one_after_the_last_given():
    after_it = planned(want("u", IPV4), cursors={("10.0.0.0/22", 24): "10.0.1.0/24"})
    assert given_to(after_it.results["u"]) == ("10.0.2.0/24",)
    assert after_it.cursors == {("10.0.0.0/22", 24): "10.0.2.0/24"}


def test_a_claim_of_another_mask_stays_and_another_block_is_claimed():
    other_mask = Pool(name="new", family=4, cidr="10.0.0.0/22", mask=23)
    plan = planned(want("u", other_mask), pages=(a_page(t0="u"),))
    assert given_to(plan.results["u"]) == ("10.0.2.0/23",)
    assert set(plan.changed_pages[0].claims) == {"10.0.0.0/24", "10.0.2.0/23"}


def test_where_there_is_no_room_a_claim_of_another_mask_will_do():
    other_mask = Pool(name="new", family=4, cidr="10.0.0.0/23", mask=23)
    plan = planned(want("u", other_mask), want("v", other_mask), pages=(a_page(t0="u"),))
    assert given_to(plan.results["u"]) == ("10.0.0.0/24",)
    assert isinstance(plan.results["v"], NoBlock)
    assert plan.changed_pages == ()


@pytest.mark.parametrize("lies_in_it", ["10.0.0.9", "10.0.0.0/8", "10.0.0.128/25"])
def test_a_claim_in_which_something_has_come_to_lie_is_not_used(lies_in_it):
    free_again = Exclusions(networks=("10.0.0.77",)) if lies_in_it == "10.0.0.0/8" else NOTHING
    occupied = Exclusions(networks=(*free_again.networks, lies_in_it))
    answer = planned(want("u", IPV4), pages=(a_page(t0="u"),), occupied=occupied).results["u"]
    assert isinstance(answer, NoBlock) if lies_in_it == "10.0.0.0/8" else given_to(answer) == ("10.0.1.0/24",)


def test_what_others_carry_is_given_to_nobody_even_if_it_is_odd():
    carried = {"v": ("10.0.0.0/23", "not a network"), "w": ("10.0.2.7/26",)}
    answer = planned(want("u", IPV4), occupied=Exclusions(pod_cidrs_by_uid=carried)).results["u"]
    assert given_to(answer) == ("10.0.3.0/24",)


@pytest.mark.parametrize(
    ("wide", "shown"),
    [("10.0.0.0/22", "10.0.0.0/22"), ("0.0.0.0/0", "0.0.0.0/0"), ("010.0.0.9/8", "10.0.0.0/8")],
)
def test_a_node_that_carries_a_whole_pool_is_named_with_what_to_do_to_those_who_get_no_block(wide, shown):
    carries = Exclusions(
        pod_cidrs_by_uid={"x": ("fd00::/64",), "v": ("192.168.0.0/24", wide)},
        node_names_by_uid={"v": "web-1"},
    )
    assert planned(want("u", IPV4), occupied=carries).results["u"] == NoBlock(
        reason=f"no free IPv4 block of /24 in 10.0.0.0/22 (pool default), all of which is in {shown}, the "
        "pod CIDR of node web-1: Kubernetes does not let it change, so delete this Node and let its kubelet "
        "register without it, or add another network for pods",
        is_exhausted=True,
    )


def test_a_claim_that_takes_a_whole_pool_is_named_to_those_who_get_no_block():
    wide = Claim(block="10.0.0.0/22", uid="v", node="web-1")
    page = Page(range="10.0.0.0/12", resource_version="7", claims={wide.block: wide})
    assert planned(want("u", IPV4), pages=(page,)).results["u"] == NoBlock(
        reason="no free IPv4 block of /24 in 10.0.0.0/22 (pool default), all of which is in 10.0.0.0/22, "
        "which is claimed for node web-1",
        is_exhausted=True,
    )


def test_who_carries_something_keeps_it():
    answer = planned(want("u"), occupied=Exclusions(pod_cidrs_by_uid={"u": ("192.168.0.0/24",)})).results["u"]
    assert answer == ExistingAssignment(pod_cidrs=("192.168.0.0/24",))


def test_all_families_or_none_and_the_other_block_goes_back():
    no_ipv6 = Exclusions(networks=("fd00::/48",))
    plan = planned(
        *(want(f"u{i}") for i in range(9)), *(want(f"v{i}", IPV4) for i in range(4)), occupied=no_ipv6
    )
    assert all(isinstance(plan.results[f"u{i}"], NoBlock) for i in range(9))
    assert {given_to(plan.results[f"v{i}"])[0] for i in range(4)} == {f"10.0.{i}.0/24" for i in range(4)}
    none, why = "no free IPv6 block of /64 in fd00::/62 (pool default)", "all of which is in fd00::/48"
    assert plan.results["u0"] == NoBlock(reason=f"{none}, {why}, a service network", is_exhausted=True)


class CountingLedger(Ledger):
    examined = 0

    def find_obstacle(self, block: Network, pool: Pool) -> Network | None:
        self.examined += 1
        return super().find_obstacle(block, pool)


def test_nodes_that_find_a_block_and_claim_none_examine_claimed_blocks_once():
    pool = Pool(name="default", family=4, cidr="10.0.0.0/16", mask=24)
    claimed = a_page(**{f"t{third}": f"uid-{third}" for third in range(200)})
    ledger = CountingLedger(
        {claimed.range: claimed}, NOTHING, closed_pages={}, cursors={}, page_bytes=1_000_000
    )
    assert {ledger.next_free((pool,), f"u{i}", f"n{i}") for i in range(100)} == {("10.0.200.0/24", pool)}
    assert ledger.examined == 200 + 100


def test_a_pool_that_is_used_up_is_followed_by_the_next_of_its_family():
    second = Pool(name="second", family=4, cidr="172.16.0.0/24", mask=24)
    full = a_page(t0="a", t1="b", t2="c", t3="d")
    plan = planned(want("u", IPV4, second), want("v", IPV4, second), pages=(full,))
    assert given_to(plan.results["u"]) == ("172.16.0.0/24",)
    both = "no free IPv4 block of /24 in 10.0.0.0/22 (pool default) and /24 in 172.16.0.0/24 (pool second)"
    assert plan.results["v"] == NoBlock(reason=both, is_exhausted=True)


def test_a_closed_page_is_passed_over_and_named_when_there_is_no_other():
    over_two = Pool(name="wide", family=4, cidr="10.0.0.0/11", mask=24)
    closed = {page_name("10.0.0.0/12"): "it is unreadable"}
    assert given_to(planned(want("u", over_two), closed=closed).results["u"]) == ("10.16.0.0/24",)
    answer = planned(want("u", IPV4), closed=closed).results["u"]
    assert isinstance(answer, NoBlock)
    assert answer.reason.endswith("(pool default): it is unreadable")
    assert not answer.is_exhausted


def test_a_full_page_takes_no_more():
    plan = planned(*(want(f"u{i}", IPV4) for i in range(4)), page_bytes=64 + 3 * 125)
    assert sum(isinstance(answer, Assignment) for answer in plan.results.values()) == 3
    assert plan.changed_pages[0].size <= 64 + 3 * 125
    refused = plan.results["u3"]
    assert isinstance(refused, NoBlock)
    assert refused.reason.endswith("the page of claims 10.0.0.0/12 is full")
    assert not refused.is_exhausted


blocks = st.builds(
    lambda number, mask: str(parse_network(f"10.0.{number // 256}.{number % 256}/{mask}")),
    st.integers(0, 1023),
    st.integers(20, 32),
)


@given(
    st.lists(blocks, max_size=8),
    st.lists(blocks, max_size=8),
    st.lists(st.integers(22, 27), min_size=1, max_size=8),
)
def test_whatever_is_taken_new_claims_touch_nothing_and_not_each_other(excluded, carried, masks):
    wants = [want(f"u{i}", Pool(name="p", family=4, cidr="10.0.0.0/22", mask=m)) for i, m in enumerate(masks)]
    plan = planned(
        *wants, occupied=Exclusions(networks=tuple(excluded), pod_cidrs_by_uid={"v": tuple(carried)})
    )
    claimed = [parse_network(block) for page in plan.changed_pages for block in page.claims]
    taken = [parse_network(cidr) for cidr in (*excluded, *carried)]
    for i, block in enumerate(claimed):
        assert not any(overlaps(block, other) for other in (*taken, *claimed[:i]))
        assert page_range_of(str(block)) == "10.0.0.0/12"


# ---- machines that report many addresses

WIDE = Pool(name="default", family=4, cidr="10.0.0.0/16", mask=24)
SMALL = Pool(name="default", family=4, cidr="10.0.0.0/20", mask=24)


def reporting(*thirds: int, **more: Any) -> Exclusions:
    """A Node with an address in each of these blocks, beside what else is taken."""
    return Exclusions(addresses_by_node={"greedy": tuple(f"10.0.{third}.9/32" for third in thirds)}, **more)


def test_one_node_keeps_sixteen_blocks_of_a_pool_from_others_at_most():
    plan = planned(*(want(f"u{i}", WIDE) for i in range(240)), occupied=reporting(*range(256)))
    given = {given_to(answer)[0] for answer in plan.results.values()}
    assert given == {f"10.0.{third}.0/24" for third in range(16, 256)}
    assert "in too many blocks of /24 in 10.0.0.0/16" in plan.ignored_addresses["greedy"]


def test_one_node_keeps_a_few_blocks_of_a_small_pool_while_others_are_free():
    """A gateway and the address of another network, in a pool for pods."""
    wants = [want(f"u{i}", SMALL) for i in range(16)]
    given = {block for block, _ in planned(*wants[:13], occupied=reporting(1, 2, 3)).new_blocks}
    assert given.isdisjoint(f"10.0.{third}.0/24" for third in (1, 2, 3))
    plan = planned(*wants, occupied=reporting(1, 2, 3))
    assert {block for block, _ in plan.new_blocks} == {f"10.0.{n}.0/24" for n in range(16) if n != 1}
    assert "only one while other Nodes find no free block" in plan.ignored_addresses["greedy"]


def test_the_node_that_reserves_most_yields_first():
    addresses = {
        "greedy": tuple(f"10.0.{n}.9/32" for n in range(2, 16)),
        "zealous": ("10.0.0.9/32", "10.0.1.9/32"),
    }
    plan = planned(
        *(want(f"u{i}", SMALL) for i in range(13)), occupied=Exclusions(addresses_by_node=addresses)
    )
    assert {block for block, _ in plan.new_blocks} == {f"10.0.{n}.0/24" for n in range(3, 16)}
    assert plan.ignored_addresses.keys() == {"greedy"}


def test_a_claim_in_a_block_that_a_node_yields_is_found_again():
    first = planned(*(want(f"u{i}", SMALL) for i in range(15)), occupied=reporting(*range(16)))
    again = planned(want("u7", SMALL), pages=first.changed_pages, occupied=reporting(*range(16)))
    assert again.results["u7"] == first.results["u7"]
    assert again.changed_pages == ()


def test_nothing_is_yielded_because_a_page_takes_no_claim():
    closed = {page_name("10.0.0.0/12"): "unreadable"}
    plan = planned(want("u", SMALL), occupied=reporting(1, 2, 3), closed=closed)
    assert isinstance(plan.results["u"], NoBlock)
    assert plan.ignored_addresses == {}


def test_nodes_that_share_their_networks_keep_all_of_them_in_a_small_pool():
    """Three networks with addresses of each machine and one with the gateway, in a pool for pods."""
    machines = {
        f"node-{n}": (f"10.0.4.{n}/32", f"10.0.5.{n}/32", f"10.0.6.{n}/32", "10.0.7.1/32") for n in range(5)
    }
    plan = planned(
        *(want(f"u{i}", SMALL) for i in range(12)), occupied=Exclusions(addresses_by_node=machines)
    )
    given = {given_to(answer)[0] for answer in plan.results.values()}
    assert given.isdisjoint(f"10.0.{third}.0/24" for third in (4, 5, 6, 7))
    assert plan.ignored_addresses == {}


@given(st.dictionaries(st.sampled_from("abcde"), st.lists(st.integers(0, 15), min_size=1, max_size=16)))
def test_whatever_nodes_report_each_keeps_its_first_block_and_one_more_of_a_small_pool_at_most(thirds):
    addresses = {name: tuple(f"10.0.{third}.9/32" for third in of_node) for name, of_node in thirds.items()}
    plan = planned(
        *(want(f"u{i}", SMALL) for i in range(16)), occupied=Exclusions(addresses_by_node=addresses)
    )
    given = {block for block, _ in plan.new_blocks}
    assert given.isdisjoint(f"10.0.{of_node[0]}.0/24" for of_node in thirds.values())
    assert len(given) >= 16 - len(thirds)


def test_addresses_in_pod_cidrs_and_outside_of_pools_use_up_no_bound():
    carried = {"uid": ("10.0.64.0/18",)}
    occupied = reporting(*range(64, 128), 3, pod_cidrs_by_uid=carried)
    outside = tuple(f"192.168.{n}.1/32" for n in range(200))
    occupied = msgspec.structs.replace(
        occupied, addresses_by_node={"greedy": (*outside, *occupied.addresses_by_node["greedy"])}
    )
    plan = planned(*(want(f"u{i}", WIDE) for i in range(4)), occupied=occupied)
    assert "10.0.3.0/24" not in {given_to(answer)[0] for answer in plan.results.values()}
    assert plan.ignored_addresses == {}


def test_the_reason_for_no_block_names_the_nodes_whose_addresses_are_in_them():
    four = tuple(f"10.0.{third}.9/32" for third in range(4))
    addresses = {"a": four, "b": four[1:2], "c": four[2:], "d": ("10.9.0.1/32",)}
    pool, ours = msgspec.structs.replace(IPV4, cidr="10.0.0.0/23"), Exclusions(addresses_by_node=addresses)
    answer = planned(want("u", pool), occupied=ours).results["u"]
    assert isinstance(answer, NoBlock)
    assert answer.reason.endswith(", whose blocks contain addresses of node a (in 2), b (in 1)")


def test_addresses_in_blocks_that_are_given_are_nobodys_fault():
    occupied = Exclusions(
        addresses_by_node={"a": ("10.0.0.1/32",)},
        pod_cidrs_by_uid={"v": ("10.0.0.0/22",)},
    )
    answer = planned(want("u", IPV4), occupied=occupied).results["u"]
    assert isinstance(answer, NoBlock)
    assert "addresses of node" not in answer.reason
