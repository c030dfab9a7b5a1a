"""Machines that answer in place of a Node's machine: partial answers prove nothing."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import NodeAddress
from services.metadata.core.machine_replacement import (
    Inconclusive,
    judge_replacement,
    list_expected_addresses,
    list_remaining_addresses,
)
from tests.builders import NOW, make_facts, make_node

UUID = "4c4c4544-0037-4b10-8057-b2c04f4d4e31"
SILENT = MachineFault(kind="timeout", step="PlatformMetadata", message="no answer in time")
DUAL = make_node(ip="10.0.0.5,fd00::5")


def internal(*addresses: str) -> tuple[NodeAddress, ...]:
    return tuple(NodeAddress(type="InternalIP", address=address) for address in addresses)


def another(ip: str = "10.0.0.5", name: str = "web-9", uuid: str = UUID) -> MachineFacts:
    return make_facts(node_name=name, node_ip=ip, uuid=uuid)


def judged(node=None, answers=None, *, members=frozenset({"web-9"}), reached=frozenset({"web-9"})):
    said = {"10.0.0.5": another()} if answers is None else answers
    return judge_replacement(node or make_node(), said, members=members, reachable_nodes=reached)


def reason(found) -> str:
    assert isinstance(found, Inconclusive), found
    return found.reason


def test_a_machine_with_another_name_is_a_replacement():
    assert judged() == (ForeignMachine(address="10.0.0.5", node_name="web-9", uuid=UUID, queried_at=NOW),)


def test_a_machine_without_smbios_is_reported_without_a_uuid():
    (found,) = judged(answers={"10.0.0.5": another(uuid="")})
    assert not found.uuid


def test_each_address_needs_an_answer_of_its_own():
    answers = {"10.0.0.5": another(), "fd00::5": another("fd00::5")}
    assert [one.address for one in judged(DUAL, answers)] == ["10.0.0.5", "fd00::5"]
    assert reason(judged(DUAL, {"10.0.0.5": another()})) == "at fd00::5: not queried"
    assert reason(judged(DUAL, answers | {"fd00::5": SILENT})) == "at fd00::5: no answer in time"


@pytest.mark.parametrize(
    ("name", "why"),
    [("web-1", "has the Node's name"), ("", "has no node name yet")],
)
def test_a_machine_that_may_be_the_node_s_own_proves_nothing(name, why):
    assert why in reason(judged(answers={"10.0.0.5": another(name=name)}))
    both = {"10.0.0.5": another(), "fd00::5": another("fd00::5", name)}
    assert why in reason(judged(DUAL, both))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"web-1", "web-9"}, "discovery still lists a member web-1"),
        (set(), "discovery does not list web-9"),
        ({"web-2", "web-3"}, "discovery does not list web-9"),
    ],
    ids=["still a member", "an empty table", "a table without the one that answers"],
)
def test_discovery_must_list_the_replacement_and_not_the_replaced_machine(members, why):
    assert why in reason(judged(members=frozenset(members)))


def test_a_discovery_that_lists_at_most_half_of_the_reachable_machines_proves_nothing():
    reached = frozenset({"web-2", "web-3", "web-4", "web-9"})
    assert "only 2 of 4" in reason(judged(members=frozenset({"web-9", "web-2"}), reached=reached))
    assert judged(members=frozenset({"web-9", "web-2", "web-3"}), reached=reached)


@pytest.mark.parametrize("reached", [frozenset(), frozenset({"web-2"})])
def test_a_machine_that_does_not_answer_at_its_own_node_proves_nothing(reached):
    found = judged(members=frozenset({"web-2", "web-9"}), reached=reached)
    assert reason(found) == "the machine at 10.0.0.5 does not answer at its own Node web-9"


def test_every_internal_ip_is_queried_and_no_external_one():
    written = (
        *internal("10.0.0.5", "10.1.0.5"),
        NodeAddress(type="ExternalIP", address="203.0.113.7"),
        NodeAddress(type="Hostname", address="web-1"),
    )
    node = make_node(addresses=written)
    assert list_expected_addresses(node) == ("10.0.0.5", "10.1.0.5")
    assert list_remaining_addresses(node, [another()]) == ("10.1.0.5",)
    assert list_remaining_addresses(make_node(), [another()]) == ()


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (make_node(ip=""), "no node IP that metadata dials"),
        (make_node(ip="localhost"), "no node IP that metadata dials"),
        (make_node(addresses=internal("127.0.0.1")), "does not dial its InternalIP '127.0.0.1'"),
        (make_node(addresses=internal("metadata.internal")), "metadata does not dial its InternalIP"),
        (make_node(addresses=internal(*(f"10.1.0.{i}" for i in range(1, 20)))), "more than 8 addresses"),
    ],
)
def test_a_node_with_addresses_that_are_not_dialled_is_never_replaced(node, why):
    assert why in reason(list_expected_addresses(node))
    assert isinstance(list_remaining_addresses(node, [another()]), Inconclusive)
    assert isinstance(judged(node), Inconclusive)


def test_no_other_address_is_dialled_while_a_node_ip_is_silent_or_the_nodes_own():
    assert reason(list_remaining_addresses(DUAL, [another()])) == "no machine answers at some of its node IPs"
    assert "has the Node's name" in reason(list_remaining_addresses(make_node(), [another(name="web-1")]))


NAMES = st.sampled_from(["web-1", "web-2", "web-9", ""])
IPS = ("10.0.0.5", "fd00::5", "10.1.0.5")
ANSWERS = st.dictionaries(st.sampled_from(IPS), st.builds(another, st.just(""), NAMES) | st.just(SILENT))
MEMBERS = st.frozensets(st.sampled_from(["web-1", "web-2", "web-3", "web-9"]))


@given(ANSWERS, MEMBERS, MEMBERS, st.sampled_from(["10.0.0.5", "10.0.0.5,fd00::5"]), st.booleans())
def test_a_replacement_answers_at_every_address_and_discovery_lists_it(
    answers, members, reached, provided, has_another
):
    node = make_node(ip=provided, addresses=internal("10.1.0.5") if has_another else ())
    said = {
        ip: msgspec.structs.replace(one, node_ip=ip) if isinstance(one, MachineFacts) else one
        for ip, one in answers.items()
    }
    found = judge_replacement(node, said, members=members, reachable_nodes=reached)
    if isinstance(found, Inconclusive):
        assert found.reason
        return
    assert {one.address for one in found} == {*provided.split(","), *(["10.1.0.5"] if has_another else [])}
    for one in found:
        facts = said[one.address]
        assert isinstance(facts, MachineFacts)
        assert one.node_name == facts.node_name not in {"", "web-1"}
        assert one.node_name in members & reached
    assert "web-1" not in members
