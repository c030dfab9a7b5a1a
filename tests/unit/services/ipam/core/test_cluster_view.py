"""What Nodes report of their addresses, and the subnet of a Node."""

from ipaddress import IPv6Network

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import EnrichedNodeGone
from libs.common.contract.machine import AddressStatus, Inventory, MachineFacts
from libs.common.contract.node import NodeAddress
from libs.common.service.startup_gate import StartupGate
from services.ipam.core import cluster_view
from services.ipam.core.cluster_view import ClusterView
from services.ipam.core.effective_networks import NetworkFlags
from services.ipam.core.pools import CannotAllocate, NotReady, derive_subnet_pool, find_node_subnet_pool
from tests.builders import (
    NOW,
    STREAM_ID,
    make_facts,
    make_node,
    make_node_enriched,
    make_node_gone,
    make_node_observed,
    make_snapshot,
)


def make_view() -> ClusterView:
    """It knows the networks, and no Node."""
    flags = NetworkFlags(cluster_cidrs=("10.244.0.0/16",), service_cidrs=("10.96.0.0/12",))
    view = ClusterView(flags, "RangeAllocator", StartupGate(), on_change=lambda: None)
    view.apply(make_snapshot(service_cidrs=()))
    return view


def addresses_of(view: ClusterView) -> set[str]:
    """The addresses of all Nodes."""
    return set().union(*view.get_exclusions().addresses_by_node.values())


def test_addresses_are_those_that_the_kubelet_the_node_and_its_machine_name_and_their_gateways():
    view = make_view()
    given = (
        NodeAddress(type="InternalIP", address="10.0.0.6"),
        NodeAddress(type="Hostname", address="web-1"),
    )
    view.apply(make_node_observed(make_node(ip="10.0.0.5", addresses=given)))
    facts = make_facts(
        addresses=(
            AddressStatus(address="10.0.0.7/24", link="eth0"),
            AddressStatus(address="fd00::7/64", link="eth0"),
        )
    )
    facts = msgspec.structs.replace(facts, inventory=Inventory(gateways=("10.0.0.1",)))
    view.apply(make_node_enriched(make_node(), facts))
    assert addresses_of(view) == {"10.0.0.5/32", "10.0.0.6/32", "10.0.0.7/32", "fd00::7/128", "10.0.0.1/32"}
    assert view.get_exclusions().networks == ("10.96.0.0/12",)


def test_what_a_kubelet_writes_is_bounded_and_what_nobody_can_read_is_passed_over():
    view = make_view()
    many = tuple(NodeAddress(type="InternalIP", address=f"10.1.{n // 250}.{n % 250}") for n in range(5000))
    odd = NodeAddress(type="InternalIP", address="no address")
    view.apply(make_node_observed(make_node(ip="::1", addresses=(odd, *many))))
    assert len(addresses_of(view)) == 15


def test_addresses_of_a_machine_are_those_that_it_reported_last():
    view = make_view()
    given = tuple(AddressStatus(address=f"10.1.{n}.9/24", link="eth0") for n in range(200))
    for count in (16, 200, 3):
        view.apply(make_node_enriched(make_node(), make_facts(addresses=given[:count])))
        assert len(view.get_exclusions().addresses_by_node["web-1"]) == count


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.0/" + "0" * 4000 + "8"])
def test_a_kubelet_that_writes_a_network_as_its_address_keeps_no_blocks_from_others(wide: str):
    view = make_view()
    given = (NodeAddress(type="InternalIP", address=wide), NodeAddress(type="InternalIP", address="10.0.0.6"))
    view.apply(make_node_observed(make_node(ip="", addresses=given)))
    machine = make_facts(addresses=(AddressStatus(address="10.0.0.7/24", link="eth0"),))
    gateways = Inventory(gateways=(wide, "10.0.0.1"))
    view.apply(make_node_enriched(make_node(), msgspec.structs.replace(machine, inventory=gateways)))
    assert addresses_of(view) == {"10.0.0.6/32", "10.0.0.7/32", "10.0.0.1/32"}


def test_long_texts_that_a_kubelet_writes_again_and_again_are_not_kept():
    kept = cluster_view._canonical.cache_info().currsize
    view = make_view()
    for number in range(200):
        given = NodeAddress(type="InternalIP", address=f"{number}-" + "x" * 20_000)
        view.apply(make_node_observed(make_node(ip="", addresses=(given,))))
    assert addresses_of(view) == set()
    assert cluster_view._canonical.cache_info().currsize == kept


def test_facts_count_only_for_the_node_that_they_are_of():
    view = make_view()
    view.apply(make_node_enriched(make_node(uid="old"), make_facts()))
    assert isinstance(view.select_pools(make_node(uid="old"), ()), tuple)
    assert isinstance(view.select_pools(make_node(uid="new"), ()), NotReady)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["node", "machine", "gone", "forgotten"]), st.integers(0, 3), st.integers(1, 5)
        ),
        max_size=40,
    )
)
def test_what_is_excluded_is_what_is_said_last_of_those_who_are_there(words: list[tuple[str, int, int]]):
    view = make_view()
    nodes: dict[int, str] = {}
    machines: dict[int, str] = {}
    for word, number, address in words:
        ip = f"10.0.0.{address}"
        node = make_node(f"web-{number}", uid=f"uid-{number}", ip=ip)
        if word == "node":
            view.apply(make_node_observed(node))
            nodes[number] = ip
        elif word == "machine":
            status = AddressStatus(address=f"{ip}/24", link="eth0")
            view.apply(make_node_enriched(node, make_facts(addresses=(status,), queried_at=NOW)))
            machines[number] = ip
        elif word == "gone":
            view.apply(make_node_gone(node))
            nodes.pop(number, None)
        else:
            gone = EnrichedNodeGone(stream_id=STREAM_ID, observed_sequence=1, name=node.name, uid=node.uid)
            view.apply(gone)
            machines.pop(number, None)
    said = {f"{ip}/32" for ip in (*nodes.values(), *machines.values())}
    assert addresses_of(view) == said


# ---- subnets


PERMANENT = 128
TEMPORARY = 1
IPV4 = AddressStatus(address="10.0.0.5/24", link="eth0", flags=PERMANENT)
POOL = ("2001:db8:0:1::/64", 80)


def on(address: str, link: str = "eth0", flags: int = PERMANENT) -> AddressStatus:
    return AddressStatus(address=address, link=link, flags=flags)


def facts_of(*addresses: AddressStatus) -> MachineFacts:
    return make_facts(addresses=(IPV4, *addresses))


@pytest.mark.parametrize(
    ("addresses", "pool"),
    [
        ((on("2001:db8:0:1::5/64"),), POOL),
        ((on("2001:db8:0:1::5/56"),), POOL),  # a wider subnet: the /64 around the address
        ((on("2001:db8:0:1::5/112"),), ("2001:db8:0:1::/112", 114)),
        ((on("2001:db8:0:9::5/64"), on("2001:db8:0:1::5/64")), POOL),  # the last permanent one
        ((on("2001:db8:0:1::5/64"), on("2001:db8:0:9::7/64", flags=TEMPORARY)), POOL),
        ((on("2001:db8:0:9::7/64", flags=TEMPORARY), on("2001:db8:0:1::5/64")), POOL),
        ((on("2001:db8:0:1::7/64", flags=TEMPORARY), on("2001:db8:0:9::7/64", flags=TEMPORARY)), POOL),
        ((on("2001:db8:0:1::5/64"), on("2001:db8:0:2::5/128")), POOL),  # single addresses are skipped
        ((on("2001:db8:0:1::5/64"), on("2001:db8:0:2::5")), POOL),
        ((on("2001:db8:0:1::5/64"), on("2001:db8:0:2::5/125")), POOL),  # a next one serves
        ((on("2001:db8:0:1::5/64"), on("2001:db8:0:2::5/120")), POOL),
    ],
)
def test_the_first_subnet_that_can_hold_pods_is_the_pool(
    addresses: tuple[AddressStatus, ...], pool: tuple[str, int]
):
    assert find_node_subnet_pool(make_node(), facts_of(*addresses)) == pool


@pytest.mark.parametrize("link", ["kubespan", "siderolink", "lo", "cilium_host", "dummy0", "kube-ipvs0"])
def test_links_of_the_cluster_itself_make_no_pool(link: str):
    assert find_node_subnet_pool(make_node(), facts_of(on("2001:db8:0:1::5/64", link))) is None


@pytest.mark.parametrize(
    "address", ["fd00::5/64", "fe80::5/64", "2001:db8::5/128", "203.0.113.5/24", "rubbish/64"]
)
def test_a_machine_without_a_public_subnet_has_no_pool_of_its_own(address: str):
    assert find_node_subnet_pool(make_node(), facts_of(on(address))) is None


@pytest.mark.parametrize(
    "node",
    [
        make_node(ip="10.0.0.5,2001:db8:0:1::5"),
        make_node(addresses=(NodeAddress(type="InternalIP", address="2001:db8:0:1::5"),)),
        make_node(addresses=(NodeAddress(type="ExternalIP", address="2001:db8:0:1::5"),)),
    ],
)
def test_of_several_subnets_the_one_in_which_kubernetes_knows_the_node_is_meant(node):
    facts = facts_of(on("2001:db8:0:1::5/64"), on("2001:db8:0:9::5/64"))
    assert find_node_subnet_pool(node, facts) == POOL


def test_a_node_that_is_known_by_private_addresses_only_has_the_choice_of_all():
    node = make_node(ip="10.0.0.5,fd00::5")
    facts = facts_of(on("2001:db8:0:1::5/64"), on("fd00::5/64"))
    assert find_node_subnet_pool(node, facts) == POOL


@pytest.mark.parametrize(
    "listed", [(), (IPV4,), (on("2001:db8:0:9::5/64"),), (IPV4, on("2001:db8::5/128", "external"))]
)
def test_a_list_that_lacks_the_kubelets_own_addresses_waits_and_is_never_the_reason_for_a_fallback(listed):
    """A link that is down, or an address being acquired: a fallback would be permanent (defect 16)."""
    answer = find_node_subnet_pool(make_node(ip="10.0.0.5,2001:db8::5"), make_facts(addresses=listed))
    assert isinstance(answer, NotReady)
    assert "does not list all its kubelet" in answer.reason


def test_an_annotation_that_is_no_address_waits():
    assert isinstance(
        find_node_subnet_pool(make_node(ip="127.0.0.1"), facts_of(on("2001:db8:0:1::5/64"))), NotReady
    )


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("2001:db8::5/125", "2001:db8::/125 is too small"),
        ("2001:db8::5/120", "2001:db8::/120 is a single block, which contains the node's own address"),
        ("2001:db8::5/123", "2001:db8::/123 is a single block"),
    ],
)
def test_a_subnet_that_cannot_hold_the_pods_of_any_node_is_reported(address: str, words: str):
    answer = find_node_subnet_pool(make_node(), facts_of(on(address), on("2001:db8:1::5/128")))
    assert isinstance(answer, CannotAllocate)
    assert words in answer.reason


# ---- the reference's table of per-node IPv6 subnets: every length, with its edges

ADDRESS = "2001:db8:1:1111:aaaa:bbbb:cccc:1d3"


@pytest.mark.parametrize(
    ("length", "pool", "mask", "nodes"),
    [
        (48, "2001:db8:1:1111::/64", 80, 65536),
        (56, "2001:db8:1:1111::/64", 80, 65536),
        (63, "2001:db8:1:1111::/64", 80, 65536),
        (64, "2001:db8:1:1111::/64", 80, 65536),
        (65, "2001:db8:1:1111:8000::/65", 81, 65536),
        (80, "2001:db8:1:1111:aaaa::/80", 96, 65536),
        (96, "2001:db8:1:1111:aaaa:bbbb::/96", 112, 65536),
        (99, "2001:db8:1:1111:aaaa:bbbb:c000:0/99", 115, 65536),
        (100, "2001:db8:1:1111:aaaa:bbbb:c000:0/100", 108, 256),
        (105, "2001:db8:1:1111:aaaa:bbbb:cc80:0/105", 113, 256),
        (106, "2001:db8:1:1111:aaaa:bbbb:ccc0:0/106", 110, 16),
        (111, "2001:db8:1:1111:aaaa:bbbb:cccc:0/111", 115, 16),
        (112, "2001:db8:1:1111:aaaa:bbbb:cccc:0/112", 114, 4),
        (118, "2001:db8:1:1111:aaaa:bbbb:cccc:0/118", 120, 4),
        (119, "2001:db8:1:1111:aaaa:bbbb:cccc:0/119", 120, 2),
        (120, "2001:db8:1:1111:aaaa:bbbb:cccc:100/120", 120, 1),
        (123, "2001:db8:1:1111:aaaa:bbbb:cccc:1c0/123", 123, 1),
    ],
)
def test_a_subnet_makes_the_pool_of_the_reference(length: int, pool: str, mask: int, nodes: int):
    assert derive_subnet_pool(f"{ADDRESS}/{length}") == (pool, mask)
    assert 1 << mask - int(pool.partition("/")[2]) == nodes


@pytest.mark.parametrize("length", [124, 125, 126, 127])
def test_a_subnet_of_less_than_32_addresses_is_reported(length: int):
    with pytest.raises(ValueError, match="is too small: /123 is the smallest for pods"):
        derive_subnet_pool(f"{ADDRESS}/{length}")


@pytest.mark.parametrize("prefix", [f"{ADDRESS}/128", ADDRESS])
def test_a_single_address_is_no_subnet(prefix: str):
    assert derive_subnet_pool(prefix) is None


@pytest.mark.parametrize("prefix", ["10.0.0.5/24", "", "web-1/64", f"{ADDRESS}/129", f"{ADDRESS}/x"])
def test_what_is_no_ipv6_prefix_is_reported(prefix: str):
    with pytest.raises(ValueError, match="is no IPv6 address with a prefix length"):
        derive_subnet_pool(prefix)


@given(st.integers(64, 123), st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_all_nodes_of_a_subnet_share_its_pool(length: int, one: int, other: int):
    subnet = IPv6Network((one, length), strict=False)
    neighbour = subnet[other % subnet.num_addresses]
    assert derive_subnet_pool(f"{subnet[0]}/{length}") == derive_subnet_pool(f"{neighbour}/{length}")
    found = derive_subnet_pool(f"{neighbour}/{length}")
    assert found is not None
    assert neighbour in IPv6Network(found[0])
