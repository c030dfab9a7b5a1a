"""What no block may touch, as the flow tells it: every address of every Node that is there, once."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import AddressStatus, Inventory
from libs.common.contract.node import NodeAddress
from services.ipam.core import node_index
from services.ipam.core.ledger import Exclusions
from services.ipam.core.node_index import NodeIndex
from tests.builders import NOW, make_facts, make_node, make_node_enriched


def addresses_of(known: NodeIndex) -> set[str]:
    """The addresses of all Nodes."""
    return set().union(*known.build_exclusions(()).addresses_by_node.values())


def test_addresses_are_those_that_the_kubelet_the_node_and_its_machine_name_and_their_gateways():
    known = NodeIndex()
    given = (
        NodeAddress(type="InternalIP", address="10.0.0.6"),
        NodeAddress(type="Hostname", address="web-1"),
    )
    known.update_node(make_node(ip="10.0.0.5", addresses=given))
    facts = make_facts(
        addresses=(
            AddressStatus(address="10.0.0.7/24", link="eth0"),
            AddressStatus(address="fd00::7/64", link="eth0"),
        )
    )
    known.update_facts(
        make_node_enriched(
            make_node(), msgspec.structs.replace(facts, inventory=Inventory(gateways=("10.0.0.1",)))
        )
    )
    assert addresses_of(known) == {"10.0.0.5/32", "10.0.0.6/32", "10.0.0.7/32", "fd00::7/128", "10.0.0.1/32"}
    assert known.build_exclusions(("10.96.0.0/12",)).networks == ("10.96.0.0/12",)


def test_what_a_kubelet_writes_is_bounded_and_what_nobody_can_read_is_passed_over():
    known = NodeIndex()
    many = tuple(NodeAddress(type="InternalIP", address=f"10.1.{n // 250}.{n % 250}") for n in range(5000))
    odd = NodeAddress(type="InternalIP", address="no address")
    known.update_node(make_node(ip="::1", addresses=(odd, *many)))
    assert len(addresses_of(known)) == 15


def test_addresses_of_a_machine_are_those_that_it_reported_last():
    known = NodeIndex()
    given = tuple(AddressStatus(address=f"10.1.{n}.9/24", link="eth0") for n in range(200))
    for count in (16, 200, 3):
        known.update_facts(make_node_enriched(make_node(), make_facts(addresses=given[:count])))
        assert len(known.build_exclusions(()).addresses_by_node["web-1"]) == count
    known.delete_facts("web-1")
    assert known.build_exclusions(()) == Exclusions()


@pytest.mark.parametrize("wide", ["0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.0/" + "0" * 4000 + "8"])
def test_a_kubelet_that_writes_a_network_as_its_address_keeps_no_blocks_from_others(wide: str):
    known = NodeIndex()
    given = (NodeAddress(type="InternalIP", address=wide), NodeAddress(type="InternalIP", address="10.0.0.6"))
    known.update_node(make_node(ip="", addresses=given))
    machine = make_facts(addresses=(AddressStatus(address="10.0.0.7/24", link="eth0"),))
    gateways = Inventory(gateways=(wide, "10.0.0.1"))
    known.update_facts(make_node_enriched(make_node(), msgspec.structs.replace(machine, inventory=gateways)))
    assert addresses_of(known) == {"10.0.0.6/32", "10.0.0.7/32", "10.0.0.1/32"}


def test_long_texts_that_a_kubelet_writes_again_and_again_are_not_kept():
    kept = node_index._canonical.cache_info().currsize
    known = NodeIndex()
    for number in range(200):
        given = NodeAddress(type="InternalIP", address=f"{number}-" + "x" * 20_000)
        known.update_node(make_node(ip="", addresses=(given,)))
    assert addresses_of(known) == set()
    assert node_index._canonical.cache_info().currsize == kept


def test_facts_count_only_for_the_node_that_they_are_of():
    known = NodeIndex()
    known.update_facts(make_node_enriched(make_node(uid="old"), make_facts()))
    assert known.get_facts("web-1", "old") is not None
    assert known.get_facts("web-1", "new") is None
    known.delete_facts("web-1")
    assert known.get_facts("web-1", "old") is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["node", "machine", "gone", "forgotten"]), st.integers(0, 3), st.integers(1, 5)
        ),
        max_size=40,
    )
)
def test_what_is_excluded_is_what_is_said_last_of_those_who_are_there(words: list[tuple[str, int, int]]):
    known = NodeIndex()
    nodes: dict[int, str] = {}
    machines: dict[int, str] = {}
    for word, number, address in words:
        node, ip = (
            make_node(f"web-{number}", uid=f"uid-{number}", ip=f"10.0.0.{address}"),
            f"10.0.0.{address}",
        )
        if word == "node":
            known.update_node(node)
            nodes[number] = ip
        elif word == "machine":
            status = AddressStatus(address=f"{ip}/24", link="eth0")
            known.update_facts(make_node_enriched(node, make_facts(addresses=(status,), queried_at=NOW)))
            machines[number] = ip
        elif word == "gone":
            known.delete_node(node.name)
            nodes.pop(number, None)
        else:
            known.delete_facts(node.name)
            machines.pop(number, None)
    said = {f"{ip}/32" for ip in (*nodes.values(), *machines.values())}
    assert addresses_of(known) == said
