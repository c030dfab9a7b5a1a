"""The labeler uses only announced addresses of the machine; one of another machine blocks the Node."""

import msgspec
import pytest

from libs.common.contract.machine import AddressStatus, ForeignNodeIP, MachineFacts
from libs.common.contract.node import Node, NodeAddress
from services.labeler.core.plan.plan import ClusterConfig, Plan
from tests.builders import UNINITIALIZED, make_facts, make_node
from tests.node_plans import apply_plan, compile_one_rule, plan_for

V4, V6 = "10.0.0.5", "fd00::66"
ON_V6 = (AddressStatus(address=f"{V6}/64", link="eth0", flags=128),)
ON_BOTH = (*ON_V6, AddressStatus(address=f"{V4}/24", link="eth0", flags=128))
FOREIGN = (ForeignNodeIP(address=V4, node_name="db-7"),)
DUAL = f"{V4},{V6}"
BEHIND_NAT = make_facts(node_ip=V6, addresses=ON_V6)
BESIDE_ANOTHER = msgspec.structs.replace(BEHIND_NAT, foreign_node_ips=FOREIGN)
ITSELF_AT_BOTH = msgspec.structs.replace(BEHIND_NAT, answering_addresses=(V4,))


def planned(node: Node, facts: MachineFacts, config: ClusterConfig | None = None) -> Plan:
    return plan_for(node, facts, config or ClusterConfig())


def internal_ips(plan: Plan) -> list[str] | None:
    if plan.addresses is None:
        return None
    return [each.address for each in plan.addresses if each.type == "InternalIP"]


def in_use(ips: str, *written: str) -> Node:
    """An initialized Node with these InternalIPs."""
    addresses = tuple(NodeAddress(type="InternalIP", address=each) for each in written)
    return make_node(ip=ips, taints=(), provider_id=f"talos://metal/{written[0]}", addresses=addresses)


def test_an_address_of_another_machine_blocks_a_joining_node_and_both_are_named():
    plan = planned(make_node(ip=DUAL), BESIDE_ANOTHER)
    assert plan.blocker is not None
    assert (plan.outcome, plan.summary, plan.changes.provider_id) == ("blocked", (), None)
    assert plan.blocker.reason == "NodeIPOfAnotherMachine"
    assert "machine db-7 answers at 10.0.0.5" in plan.blocker.message


def test_an_address_of_the_other_family_at_which_nobody_answers_is_not_used_and_that_is_told():
    plan = planned(make_node(ip=DUAL), BEHIND_NAT, ClusterConfig(prefer_ipv6=True))
    assert (plan.outcome, plan.changes.provider_id) == ("initialized", f"talos://metal/{V6}")
    assert internal_ips(plan) == [V6]
    [told] = [notice for notice in plan.notices if notice.reason == "NodeIPNotUsed"]
    assert "announces 10.0.0.5" in told.message
    assert planned(make_node(ip=V6), BEHIND_NAT).notices == ()


@pytest.mark.parametrize(
    "facts",
    [
        make_facts(node_ip=V4, addresses=ON_BOTH),
        make_facts(node_ip=V6, addresses=ON_BOTH),
        make_facts(node_ip=V4, addresses=ON_V6),
        make_facts(node_ip=V6, addresses=(*ON_V6, AddressStatus(address=f"{V4}/32", link="external"))),
        ITSELF_AT_BOTH,
    ],
    ids=[
        "on links",
        "the second answered",
        "the first answered, translated",
        "an address of its cloud",
        "both answered",
    ],
)
def test_an_honest_node_gets_what_it_always_got(facts: MachineFacts):
    plan = planned(make_node(ip=DUAL), facts)
    assert (plan.outcome, plan.changes.provider_id) == ("initialized", f"talos://metal/{V4}")
    assert internal_ips(plan) == [V4, V6]
    assert plan.notices == ()


WITHOUT_V4 = [
    (ClusterConfig(), DUAL, BEHIND_NAT),
    (ClusterConfig(prefer_ipv6=True), f"{V6},{V4}", make_facts(node_ip=V4, addresses=ON_BOTH[1:])),
    (ClusterConfig(prefer_ipv6=True), f"{V4},{V6}", make_facts(node_ip=V4, addresses=ON_BOTH[1:])),
]


@pytest.mark.parametrize(("config", "ips", "facts"), WITHOUT_V4)
@pytest.mark.parametrize("initialized", [False, True])
def test_no_fallback_provider_id_is_made_of_another_address_than_the_first(
    config: ClusterConfig, ips: str, facts: MachineFacts, initialized: bool
):
    plan = planned(make_node(ip=ips, taints=() if initialized else (UNINITIALIZED,)), facts, config)
    assert (plan.outcome, plan.changes.provider_id) == ("unchanged" if initialized else "blocked", None)
    missing = V6 if config.prefer_ipv6 else V4
    if not initialized:
        assert plan.blocker is not None
        assert plan.blocker.reason == "NodeIPNotOnMachine"
        assert f"would contain {missing}, but machine web-1" in plan.blocker.message
    has_it = msgspec.structs.replace(facts, answering_addresses=(missing,))
    after = planned(make_node(ip=ips), has_it, config)
    assert (after.outcome, after.changes.provider_id) == ("initialized", f"talos://metal/{missing}")


def test_a_node_with_a_provider_id_of_its_own_waits_for_no_address():
    kubelet = planned(make_node(ip=DUAL, provider_id="metal3://x"), BEHIND_NAT)
    native = msgspec.structs.replace(BEHIND_NAT.platform, platform="hcloud", provider_id="hcloud://7")
    cloud = planned(make_node(ip=DUAL), msgspec.structs.replace(BEHIND_NAT, platform=native))
    by_rule = planned(
        make_node(ip=DUAL), BEHIND_NAT, compile_one_rule(platformMetadata="{ProviderID: 'rack://7'}")
    )
    for plan in (kubelet, cloud, by_rule):
        assert (plan.outcome, internal_ips(plan)) == ("initialized", [V6])


def test_an_address_on_a_dummy_link_is_used_only_where_the_machine_answers_at_it():
    at_v4 = make_facts(
        node_ip=V4, addresses=(*ON_BOTH[1:], AddressStatus(address=f"{V6}/128", link="dummy0", flags=128))
    )
    assert internal_ips(planned(make_node(ip=DUAL), at_v4)) == [V4]
    answers = msgspec.structs.replace(at_v4, answering_addresses=(V6,))
    assert internal_ips(planned(make_node(ip=DUAL), answers)) == [V4, V6]
    assert internal_ips(planned(in_use(DUAL, V4, V6), at_v4)) in ([V4, V6], None)


def test_what_was_announced_after_the_look_waits_for_the_next_one():
    plan = planned(make_node(ip="10.0.0.9"), BEHIND_NAT)
    assert plan.blocker is not None
    assert "machine web-1 does not have 10.0.0.9" in plan.blocker.message


def test_a_node_in_use_gets_no_foreign_address_and_keeps_its_rules():
    rules = compile_one_rule(labels="{example.com/team: web}")
    node = in_use(DUAL, V6)
    for facts in (BEHIND_NAT, BESIDE_ANOTHER):
        plan = planned(node, facts, rules)
        assert internal_ips(plan) in ([V6], None)
        assert plan.changes.labels["example.com/team"] == "web"
        assert "NodeIPNotUsed" in {notice.reason for notice in plan.notices}
    assert V4 not in {each.address for each in apply_plan(node, plan).status.addresses}


def test_an_address_that_another_machine_answers_at_is_taken_from_a_node_in_use():
    plan = planned(in_use(DUAL, V4, V6), BESIDE_ANOTHER)
    assert internal_ips(plan) == [V6]


def test_an_address_that_the_machine_has_stays_on_a_node_in_use_whoever_else_answers_there():
    facts = make_facts(node_ip=V6, addresses=ON_BOTH)
    twice = msgspec.structs.replace(facts, foreign_node_ips=FOREIGN)
    assert internal_ips(planned(in_use(DUAL, V4, V6), twice)) in ([V4, V6], None)
    assert planned(make_node(ip=DUAL), twice).outcome == "blocked"


def test_a_node_in_use_whose_machine_has_none_of_them_is_left_as_it_is():
    plan = planned(in_use("10.0.0.9", V6), BEHIND_NAT)
    assert (plan.outcome, internal_ips(plan)) == ("updated", None)
