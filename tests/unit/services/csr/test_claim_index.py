"""Who claims which address and name, whatever the order in which it became known."""

import random
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import AddressStatus, MachineFacts, MachineFault
from libs.common.contract.node import Node, NodeAddress
from services.csr.core.claim_index import Claim, ClaimIndex, ClaimRank
from tests.builders import make_facts, make_node, make_node_enriched, make_unreachable

IPS = ("10.0.0.1", "10.0.0.2", "fd00::1")
NAMES = ("a", "b", "c")
DNS = (*NAMES, "a.example", "b.example", "a.b")


def unreachable(node: Node, last_known: MachineFacts | None = None) -> NodeUnreachable:
    fault = MachineFault(kind="timeout", step="connect", message="no answer")
    return make_unreachable(node, fault=fault, last_known=last_known)


def facts_of(name: str, *addresses: str, **fields: Any) -> MachineFacts:
    statuses = tuple(AddressStatus(address=address, link="eth0") for address in addresses)
    return make_facts(node_name=name, addresses=statuses, **fields)


def claims_of(*told: Node | NodeEnriched | NodeUnreachable) -> ClaimIndex:
    claims = ClaimIndex()
    for one in told:
        if isinstance(one, Node):
            claims.upsert_node(one)
        else:
            claims.upsert_report(one)
    return claims


def writes(name: str, *addresses: str, ip: str = "", uid: str = "uid-1") -> Node:
    status = tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)
    return make_node(name, ip=ip, addresses=status, uid=uid)


def test_where_a_machine_answered_with_its_node_name_is_the_highest_claim():
    node = writes("a", "10.0.0.3", ip="10.0.0.1")
    claims = claims_of(
        node, make_node_enriched(node, facts_of("a", "10.0.0.1/24", "10.0.0.2/24", node_ip="10.0.0.1"))
    )
    assert claims.find_by_address("10.0.0.1") == (Claim(node="a", rank=ClaimRank.ANSWERED),)
    assert claims.find_by_address("10.0.0.2") == (Claim(node="a", rank=ClaimRank.ATTESTED),)
    assert claims.find_by_address("10.0.0.3") == (Claim(node="a", rank=ClaimRank.NODE_OBJECT),)
    assert claims.find_by_address("10.0.0.4") == ()


def test_a_machine_that_is_recognized_by_its_uuid_has_not_answered_as_that_node():
    node = writes("a", ip="10.0.0.1")
    claims = claims_of(node, make_node_enriched(node, facts_of("other", "10.0.0.1/24", node_ip="10.0.0.1")))
    assert claims.find_by_address("10.0.0.1") == (Claim(node="a", rank=ClaimRank.ATTESTED),)


def test_what_is_known_of_a_silent_machine_stays_and_so_does_where_it_answered():
    node = writes("a", ip="10.0.0.1")
    claims = claims_of(
        node, unreachable(node, facts_of("a", "10.0.0.1/24", "10.0.0.2/24", node_ip="10.0.0.1"))
    )
    assert claims.find_by_address("10.0.0.1") == (
        Claim(node="a", rank=ClaimRank.ATTESTED, was_answered=True),
    )
    assert claims.find_by_address("10.0.0.2") == (Claim(node="a", rank=ClaimRank.ATTESTED),)
    facts = msgspec.structs.replace(facts_of("a", node_ip="10.0.0.1"), answering_addresses=("fd00::1",))
    [second] = claims_of(node, unreachable(node, facts)).find_by_address("fd00::1")
    assert second.was_answered, "it answered at its second node IP, too"


@pytest.mark.parametrize("word", [None, unreachable(writes("a", "10.0.0.1"))])
def test_what_a_node_writes_whose_machine_was_never_asked_may_be_true(word: NodeUnreachable | None):
    claims = claims_of(writes("a", "10.0.0.1"), *([word] if word else []))
    [claim] = claims.find_by_address("10.0.0.1")
    assert (claim.node, claim.rank, claim.was_answered) == ("a", ClaimRank.UNVERIFIED, False)


def test_only_existing_nodes_claim_anything():
    node = writes("a", "10.0.0.1")
    claims = claims_of(make_node_enriched(node, facts_of("a", "10.0.0.1/24")))
    assert claims.find_by_address("10.0.0.1") == claims.find_by_name("a") == ()
    claims.upsert_node(node)
    assert claims.find_by_address("10.0.0.1")
    claims.remove_node("a")
    assert claims.find_by_address("10.0.0.1") == claims.find_by_name("a") == ()
    assert claims.get_node("a") is None


def test_what_was_said_of_an_earlier_node_of_that_name_is_not_said_of_this_one():
    earlier, now = writes("a", ip="10.0.0.1"), writes("a", "10.0.0.2", uid="uid-2")
    claims = claims_of(now, make_node_enriched(earlier, facts_of("a", "10.0.0.1/24", node_ip="10.0.0.1")))
    assert claims.find_by_address("10.0.0.1") == ()
    assert claims.find_by_address("10.0.0.2") == (Claim(node="a", rank=ClaimRank.UNVERIFIED),)


def test_a_name_belongs_to_the_node_that_bears_it_and_what_is_below_to_its_namesake():
    attests = make_facts(node_name="b", hostname="A.example", addresses=())
    b = make_node("b")
    claims = claims_of(make_node("a"), b, make_node_enriched(b, attests))
    assert claims.find_by_name("A") == (Claim(node="a", rank=ClaimRank.NODE_NAME),)
    assert claims.find_by_name("a.EXAMPLE") == (
        Claim(node="a", rank=ClaimRank.NODE_NAME_PREFIX),
        Claim(node="b", rank=ClaimRank.ATTESTED),
    )
    assert claims.find_by_name("ab.example") == ()


def test_addresses_are_compared_not_their_spelling():
    node = writes("a", "FD00:0::1", "::ffff:10.0.0.2")
    claims = claims_of(node, make_node_enriched(node, facts_of("a", "fd00:0:0::1/64")))
    assert [claim.rank for claim in claims.find_by_address("fd00::1")] == [ClaimRank.ATTESTED]
    assert [claim.rank for claim in claims.find_by_address("10.0.0.2")] == [ClaimRank.NODE_OBJECT]


def test_an_annotation_that_no_kubelet_writes_claims_nothing():
    claims = claims_of(writes("a", ip="10.0.0.1,10.0.0.2"), writes("b", ip="not an address"))
    assert claims.find_by_address("10.0.0.1") == ()


def test_what_is_too_long_to_be_a_name_or_an_address_claims_nothing():
    node = writes("a", "x" * 10_000, "10.0.0.1/" + "0" * 100)
    claims = claims_of(
        node, make_node_enriched(node, facts_of("a", "fd00::1%" + "x" * 100, hostname="y" * 10_000))
    )
    assert claims.find_by_name("x" * 10_000) == claims.find_by_name("y" * 10_000) == ()
    assert claims.find_by_address("10.0.0.1") == claims.find_by_address("fd00::1") == ()


def test_a_change_of_one_claim_does_not_copy_those_of_all_other_nodes():
    loopback, count = "127.0.0.1", 2000
    claims = claims_of(*(writes(f"n{number}", loopback) for number in range(count)))
    changed = unreachable(writes("n7", loopback), facts_of("n7", loopback))
    tracemalloc.start()
    try:
        claims.upsert_report(changed)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * count  # a copy has a pointer of 8 bytes to each claim
    assert len(claims.find_by_address(loopback)) == count


Told = Node | NodeEnriched | NodeUnreachable | tuple[str, str]


def nodes() -> st.SearchStrategy[Node]:
    return st.builds(
        writes,
        st.sampled_from(NAMES),
        st.sampled_from((*IPS, "a.example", "b.example")),
        ip=st.sampled_from(("", *IPS)),
        uid=st.sampled_from(("uid-1", "uid-2")),
    )


def machine_facts() -> st.SearchStrategy[MachineFacts]:
    return st.builds(
        lambda name, ips, node_ip, hostname: facts_of(name, *ips, node_ip=node_ip, hostname=hostname),
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(IPS), max_size=2),
        st.sampled_from(IPS),
        st.sampled_from(("", "a", "a.example", "b.example")),
    )


def told() -> st.SearchStrategy[Told]:
    return st.one_of(
        nodes(),
        st.builds(make_node_enriched, nodes(), machine_facts()),
        st.builds(unreachable, nodes(), st.none() | machine_facts()),
        st.tuples(st.sampled_from(("node", "enriched")), st.sampled_from(NAMES)),
    )


def feed(claims: ClaimIndex, one: Told) -> None:
    match one:
        case Node():
            claims.upsert_node(one)
        case NodeEnriched() | NodeUnreachable():
            claims.upsert_report(one)
        case ("node", name):
            claims.remove_node(name)
        case (_, name):
            claims.remove_report(name)


def about(one: Told) -> tuple[str, str]:
    match one:
        case Node():
            return "node", one.name
        case NodeEnriched() | NodeUnreachable():
            return "enriched", one.node.name
        case (kind, name):
            return kind, name


def answers(claims: ClaimIndex) -> list[Any]:
    return [
        *map(claims.find_by_address, IPS),
        *map(claims.find_by_name, DNS),
        *map(claims.get_node, NAMES),
    ]


@given(st.lists(told(), max_size=20), st.randoms(use_true_random=False))
def test_claims_are_those_of_what_was_said_last_in_whatever_order(story: list[Told], order: random.Random):
    lived = ClaimIndex()
    for one in story:
        feed(lived, one)
    last = list({about(one): one for one in story}.values())
    order.shuffle(last)
    rebuilt = ClaimIndex()
    for one in last:
        feed(rebuilt, one)
    assert answers(lived) == answers(rebuilt)
    for name in NAMES:
        rebuilt.remove_node(name)
        rebuilt.remove_report(name)
    assert vars(rebuilt) == vars(ClaimIndex()), "nothing is left of what is gone"
    lived.clear()
    assert vars(lived) == vars(ClaimIndex())
