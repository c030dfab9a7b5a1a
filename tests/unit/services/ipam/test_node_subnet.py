"""CloudAllocator's IPv6 pools: from the subnet that the machine is in, and never from a guess."""

import pytest

from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import NodeAddress
from services.ipam.node_subnet import find_node_subnet_pool
from services.ipam.unallocated_reasons import CannotAllocate, NotReady
from tests.builders import make_facts, make_node

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


def test_a_machine_that_talos_does_not_tell_of_waits():
    assert isinstance(find_node_subnet_pool(make_node(), None), NotReady)


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
def test_a_subnet_that_cannot_hold_the_pods_of_any_node_is_told(address: str, words: str):
    answer = find_node_subnet_pool(make_node(), facts_of(on(address), on("2001:db8:1::5/128")))
    assert isinstance(answer, CannotAllocate)
    assert words in answer.reason
