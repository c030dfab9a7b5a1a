"""Addresses that a kubelet announces, and those that are dialled."""

import ipaddress
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.ip_addresses import parse_ip
from libs.common.contract.machine import AddressStatus, ForeignNodeIP, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.public_addresses import list_machine_ips
from services.metadata.core.dial_targets import order_dial_targets
from services.metadata.core.identity import verify
from services.metadata.core.object_state import Wait
from services.metadata.machines.query_machine import QueryResult, query_in_turn
from tests.builders import UNINITIALIZED, make_facts, make_node
from tests.metadata_actors import ScriptedTalos
from tests.unit.services.metadata.nodes.test_node_state import T, joined, step, then_polled, then_published

V4, V6 = "10.0.0.5", "fd00::66"
MINE = make_facts(node_ip=V6, addresses=(AddressStatus(address=f"{V6}/64", link="eth0"),))
ANOTHER = make_facts(node_name="db-7", node_ip=V4)
NODE = make_node(ip=f"{V4},{V6}")


def reject(facts: MachineFacts) -> MachineFault | None:
    found = verify(NODE, facts, [NODE])
    return found if isinstance(found, MachineFault) else None


async def polled_node(*machines: MachineFacts, addresses: tuple[str, ...] = (V4, V6)) -> MachineFacts:
    talos = ScriptedTalos(*machines)
    found = await query_in_turn(talos, addresses, parts=(), deadline_seconds=1.0, reject=reject)
    assert isinstance(found, QueryResult)
    return found.facts


async def test_the_second_address_is_queried_if_the_first_one_fails():
    assert (await polled_node(MINE)).node_ip == V6


@pytest.mark.parametrize("addresses", [(V4, V6), (V6, V4)])
async def test_another_machine_is_reported_whichever_address_is_dialled_first(addresses: tuple[str, ...]):
    facts = await polled_node(MINE, ANOTHER, addresses=addresses)
    assert facts.foreign_node_ips == (ForeignNodeIP(address=V4, node_name="db-7"),)
    assert (facts.node_ip, facts.answering_addresses) == (V6, ())


async def test_a_machine_behind_address_translation_answers_as_itself():
    facts = await polled_node(MINE, msgspec.structs.replace(MINE, node_ip=V4), addresses=(V6, V4))
    assert (facts.answering_addresses, facts.foreign_node_ips) == ((V4,), ())


@pytest.mark.parametrize("there", [(), (make_facts(node_name="", node_ip=V4),)], ids=["no answer", "no name"])
async def test_a_timeout_and_a_machine_without_a_name_prove_nothing(there: tuple[MachineFacts, ...]):
    facts = await polled_node(MINE, *there, addresses=(V6, V4))
    assert (facts.answering_addresses, facts.foreign_node_ips) == ((), ())


async def test_an_address_that_the_machine_lists_is_not_dialled():
    both = make_facts(node_ip=V4, addresses=(*MINE.addresses, AddressStatus(address=f"{V4}/24", link="eth0")))
    facts = await polled_node(both, msgspec.structs.replace(ANOTHER, node_ip=V6))
    assert facts == msgspec.structs.replace(both, queried_at=facts.queried_at)


def with_second_on(link: str) -> MachineFacts:
    """The Node's machine, reached at V6, with V4 on that link."""
    return msgspec.structs.replace(
        MINE, addresses=(*MINE.addresses, AddressStatus(address=f"{V4}/32", link=link))
    )


VIRTUAL = ["lo", "dummy0", "kube-ipvs0", "nodelocaldns", "kubespan", "siderolink", "cilium_host"]


@pytest.mark.parametrize("link", VIRTUAL)
@pytest.mark.parametrize("addresses", [(V4, V6), (V6, V4)])
async def test_an_address_on_a_virtual_link_is_dialled_and_may_belong_to_another_machine(
    link: str, addresses: tuple[str, ...]
):
    facts = await polled_node(with_second_on(link), ANOTHER, addresses=addresses)
    assert facts.foreign_node_ips == (ForeignNodeIP(address=V4, node_name="db-7"),)
    assert parse_ip(V4) not in list_machine_ips(facts)


@pytest.mark.parametrize("link", VIRTUAL)
@pytest.mark.parametrize("addresses", [(V4, V6), (V6, V4)])
async def test_a_node_ip_on_a_virtual_link_belongs_to_the_machine_that_answers_there(
    link: str, addresses: tuple[str, ...]
):
    mine = with_second_on(link)
    facts = await polled_node(mine, msgspec.structs.replace(mine, node_ip=V4), addresses=addresses)
    assert facts.foreign_node_ips == ()
    assert {parse_ip(V4), parse_ip(V6)} <= list_machine_ips(facts)


@pytest.mark.parametrize("link", ["eth0", "bond0.100", "external"])
async def test_an_ordinary_dual_stack_node_costs_one_query(link: str):
    machine = with_second_on(link)
    talos = ScriptedTalos(*(msgspec.structs.replace(machine, node_ip=address) for address in (V4, V6)))
    found = await query_in_turn(talos, (V6, V4), parts=(), deadline_seconds=1.0, reject=lambda facts: None)
    assert isinstance(found, QueryResult)
    assert talos.looks == [V6]


FOREIGN = msgspec.structs.replace(MINE, foreign_node_ips=(ForeignNodeIP(address=V4, node_name="db-7"),))


def next_look(node: Node, facts: MachineFacts) -> float:
    """Seconds until the next poll of the machine."""
    rest = step(then_published(then_polled(joined(node), facts)))
    assert isinstance(rest, Wait)
    return timedelta(seconds=rest.until - T).total_seconds()


@pytest.mark.parametrize("facts", [FOREIGN, MINE], ids=["another's", "unlisted"])
def test_a_joining_node_without_its_address_is_polled_again_soon(
    facts: MachineFacts,
):
    assert next_look(make_node(ip=NODE.provided_node_ip, taints=(UNINITIALIZED,)), facts) <= 1.0
    assert next_look(make_node(ip=NODE.provided_node_ip, taints=()), facts) > 200.0
    has_both = msgspec.structs.replace(MINE, answering_addresses=(V4,))
    assert next_look(make_node(ip=NODE.provided_node_ip, taints=(UNINITIALIZED,)), has_both) > 200.0


@pytest.mark.parametrize(("node_name", "queries"), [(NODE.name, 1), ("db-7", 2), ("", 1)])
async def test_smbios_is_queried_only_for_a_machine_with_another_name(node_name: str, queries: int):
    talos = ScriptedTalos(make_facts(node_name=node_name, node_ip=V4, uuid="U-1"))
    found = await query_in_turn(
        talos, (V4,), parts=(), deadline_seconds=1.0, reject=reject, with_system=False
    )
    assert talos.looks == [V4] * queries
    facts = found.facts if isinstance(found, QueryResult) else found.rejected[0]
    assert (facts.system is not None) == (queries == 2)


# ---- dial targets


@pytest.mark.parametrize(
    ("written", "order"),
    [
        ("", ()),
        ("10.0.0.5", ("10.0.0.5",)),
        ("fd00::5", ("fd00::5",)),
        ("10.0.0.5,fd00::5", ("10.0.0.5", "fd00::5")),
        ("fd00::5,10.0.0.5", ("10.0.0.5", "fd00::5")),
        (" fd00::5 , 10.0.0.5 ", ("10.0.0.5", "fd00::5")),
        ("::ffff:10.0.0.5", ("10.0.0.5",)),
        ("FD00:0:0::5", ("fd00::5",)),
        ("100.64.0.1", ("100.64.0.1",)),
        ("203.0.113.7,2001:db8::7", ("203.0.113.7", "2001:db8::7")),
    ],
)
def test_one_address_per_family_is_dialled_ipv4_first(written, order):
    assert order_dial_targets(written, prefer_ipv6=False) == order
    assert order_dial_targets(written, prefer_ipv6=True) == tuple(sorted(order, key=lambda ip: ":" not in ip))


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("metadata.google.internal", "is not an IP address"),
        ("localhost", "is not an IP address"),
        ("10.0.0.5:50000", "is not an IP address"),
        ("[fd00::5]", "is not an IP address"),
        ("10.0.0.5/24", "is not an IP address"),
        ("010.0.0.5", "is not an IP address"),
        ("10.0.0", "is not an IP address"),
        ("0x0a000005", "is not an IP address"),
        ("167772165", "is not an IP address"),
        ("１０.0.0.5", "is not an IP address"),
        ("10.0.0.5,", "is not an IP address"),
        (" ", "is not an IP address"),
        ("10.0.0.5\r\nnode: 10.0.0.6", "is not an IP address"),
        ("127.0.0.1", "loopback"),
        ("127.255.0.9", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "zone"),
        ("fd00::1%eth0", "zone"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("0.0.0.7", "0.0.0.0/8"),
        ("255.255.255.255", "reserved"),
        ("240.0.0.1", "reserved"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::127.0.0.1", "reserved"),
        ("64:ff9b::7f00:1", "reserved"),
        ("10.0.0.5,127.0.0.1", "loopback"),
        (",".join(["10.0.0.5"] * 9), "neither one address nor one of each family"),
        ("10.0.0.5,10.0.0.6", "neither one address nor one of each family"),
        ("fd00::5,fd00::6", "neither one address nor one of each family"),
        ("10.0.0.5,fd00::5,10.0.0.6", "neither one address nor one of each family"),
        ("1" * 129, "longer than 128 characters"),
    ],
)
def test_an_invalid_address_is_rejected_with_a_reason(written, why):
    fault = order_dial_targets(written, prefer_ipv6=False)
    assert isinstance(fault, MachineFault)
    assert fault.kind == "bad_node_ip"
    assert why in fault.message
    assert "provided-node-ip" in fault.message
    assert len(fault.message) < 400
    assert fault.message.isprintable()


@given(st.text(max_size=300) | st.lists(st.ip_addresses().map(str), max_size=10).map(",".join), st.booleans())
def test_only_plain_unicast_addresses_are_dialled(written, prefer_ipv6):
    order = order_dial_targets(written, prefer_ipv6=prefer_ipv6)
    if isinstance(order, MachineFault):
        return
    for text in order:
        address = ipaddress.ip_address(text)
        assert str(address) == text
        properties = ("is_loopback", "is_link_local", "is_multicast", "is_unspecified", "is_reserved")
        assert not any(getattr(address, name) for name in properties)
    assert len({":" in text for text in order}) == len(order) <= 2
