"""Targets follow Kubernetes' rule; an incomplete table removes only Nodes that are known to be no targets."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.clouds.balancers import ADDRESS_TYPES, Target
from libs.common.cloud_config.model import NodeSelectorRequirement, NodeSelectorTerm
from libs.common.contract.node import Node, NodeAddress, Taint
from services.cloud.core.balancers.select_targets import (
    AUTOSCALER_TAINT,
    EXCLUDE_LABEL,
    LeftOut,
    TargetRules,
    TargetSelection,
    select_targets,
)
from tests.builders import NOW, make_node

EDGE = (
    NodeSelectorTerm(requirements=(NodeSelectorRequirement(key="pool", operator="In", values=("edge",)),)),
)
NOT_EDGE = (
    NodeSelectorTerm(requirements=(NodeSelectorRequirement(key="pool", operator="NotIn", values=("edge",)),)),
)
ONE, TWO, THREE = (Target(instance_id=number) for number in "123")
HYBRID = ("hrobot://", "hcloud://bm-")


def parse_hetzner_id(provider_id: str) -> str | None:
    scheme, _, number = provider_id.partition("://")
    return number if scheme == "hcloud" and number.isdigit() else None


RULES = TargetRules(parse_provider_id=parse_hetzner_id, needs_ipv4=True)


def make_target_node(name: str = "web-1", number: str = "1", **changes: Any) -> Node:
    return make_node(name, **({"provider_id": f"hcloud://{number}", "taints": ()} | changes))


def make_deleting(node: Node) -> Node:
    return replace(node, metadata=replace(node.metadata, deletion_timestamp=NOW))


def select(
    *nodes: Node,
    deleted: tuple[Node, ...] = (), is_complete: bool = True, selector: Any = (), rules: Any = RULES,
    address_types: tuple[str, ...] | None = ADDRESS_TYPES,
) -> TargetSelection:  # fmt: skip
    return select_targets(
        nodes,
        deleted=deleted,
        is_complete=is_complete,
        selector=selector,
        address_types=address_types,
        rules=rules,
    )


EXCLUDED = {
    "deleting": make_deleting(make_target_node()),
    "autoscaler": make_target_node(taints=(Taint(key=AUTOSCALER_TAINT, effect="NoSchedule"),)),
    "excluded": make_target_node(labels={EXCLUDE_LABEL: "true"}),
    "excluded by an unreadable value": make_target_node(labels={EXCLUDE_LABEL: "on"}),
    "excluded by an empty value": make_target_node(labels={EXCLUDE_LABEL: ""}),
}
UNREACHABLE = {
    "no_address": make_target_node(addresses=(NodeAddress(type="InternalIP", address="2001:db8::1"),)),
    "foreign_cloud": make_target_node(provider_id="aws:///eu-central-1a/i-1"),
    "foreign_cloud: a machine by address": make_target_node(provider_id="hrobot://7"),
    "no_provider_id": make_target_node(provider_id=""),
}


def test_a_cloud_that_knows_targets_by_address_gets_that_of_each_instance():
    rules = replace(RULES, uses_addresses=True)
    addresses = (
        NodeAddress(type="ExternalIP", address="203.0.113.1"),
        NodeAddress(type="InternalIP", address="2001:db8::1"),
        NodeAddress(type="InternalIP", address="10.0.0.1"),
    )
    joined = make_target_node("web-2", "2", addresses=())
    foreign = make_target_node("web-3", provider_id="aws:///eu-central-1a/i-1", addresses=addresses)
    selection = select(make_target_node(addresses=addresses), joined, foreign, rules=rules)
    assert selection.targets == {Target(address="10.0.0.1")}
    assert [each.reason for each in selection.left_out] == ["no_address", "foreign_cloud"]


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255"]
)
def test_an_address_that_no_balancer_reaches_makes_no_target(address: str):
    node = make_target_node(addresses=(NodeAddress(type="InternalIP", address=address),))
    selection = select(node, rules=replace(RULES, uses_addresses=True))
    assert selection.targets == set()
    assert [each.reason for each in selection.left_out] == ["no_address"]


@pytest.mark.parametrize("case", [*EXCLUDED, *UNREACHABLE])
def test_a_node_that_is_no_target_is_left_out_with_the_reason(case: str):
    selection = select((EXCLUDED | UNREACHABLE)[case])
    assert selection.plan(()) == ()
    (left_out,) = selection.left_out
    assert left_out.node == "web-1"
    assert case.startswith(left_out.reason)


@pytest.mark.parametrize(
    "node",
    [
        make_target_node(),  # without a Ready condition
        make_target_node(labels={EXCLUDE_LABEL: "false"}),
        make_target_node(addresses=(NodeAddress(type="InternalIP", address="10.0.0.5"),)),
        make_target_node(
            addresses=(
                NodeAddress(type="InternalIP", address="2001:db8::1"),
                NodeAddress(type="ExternalIP", address="192.0.2.5"),
            )
        ),
    ],
)
def test_any_other_node_of_this_cloud_is_a_target(node: Node):
    assert select(node).plan(()) == (ONE,)


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("case", EXCLUDED)
def test_the_last_target_leaves_at_once_when_it_is_excluded(case: str, is_complete: bool):
    assert select(EXCLUDED[case], is_complete=is_complete).plan((ONE,)) == ()


@pytest.mark.parametrize("is_complete", [True, False])
def test_the_last_target_leaves_at_once_when_its_node_was_seen_deleted(is_complete: bool):
    assert select(deleted=(make_target_node(),), is_complete=is_complete).plan((ONE,)) == ()


def test_a_node_that_came_back_with_its_instance_stays():
    assert select(make_target_node(), deleted=(make_target_node(),)).plan((ONE,)) == (ONE,)
    again = select(make_target_node(), deleted=(make_target_node(),), is_complete=False)
    assert again.plan((ONE,)) == (ONE,)


def test_an_incomplete_table_adds_targets_and_removes_none_that_it_does_not_know():
    nodes = (make_target_node(), make_target_node("web-2", "2", labels={EXCLUDE_LABEL: "true"}))
    assert select(*nodes, is_complete=False).plan((TWO, THREE)) == (ONE, THREE)
    assert select(*nodes).plan((TWO, THREE)) == (ONE,)


def test_a_selector_decides_by_labels_and_an_absent_label_is_not_in_a_list():
    edge, other = make_target_node(labels={"pool": "edge"}), make_target_node("web-2", "2", labels={})
    assert select(edge, other, selector=EDGE).plan((TWO,)) == (ONE,)
    assert select(edge, other, selector=EDGE).left_out == (LeftOut("web-2", "not_selected"),)
    assert select(edge, other, selector=EDGE, is_complete=False).plan((TWO, THREE)) == (ONE, THREE)
    assert select(edge, other, selector=NOT_EDGE).plan(()) == (TWO,)


def test_an_unreadable_selector_neither_adds_a_target_nor_removes_one_by_its_labels():
    nodes = (make_target_node(), make_target_node("web-2", "2"))
    assert select(*nodes, selector=None).plan((TWO, THREE)) == (TWO,)
    assert select(*nodes, selector=None, is_complete=False).plan((TWO, THREE)) == (TWO, THREE)
    assert select(EXCLUDED["excluded"], selector=None).plan((ONE,)) == ()


@pytest.mark.parametrize("provider_id", ["hrobot://7", "hcloud://bm-7"])
def test_a_machine_of_another_product_is_a_target_by_address_where_switched_on(provider_id: str):
    addresses = (
        NodeAddress(type="Hostname", address="10.9.9.9"),
        NodeAddress(type="ExternalIP", address="192.0.2.7"),
        NodeAddress(type="InternalIP", address="no address"),
        NodeAddress(type="InternalIP", address="2001:db8::7"),
        NodeAddress(type="InternalIP", address="10.0.0.7"),
    )
    hybrid = replace(RULES, address_prefixes=HYBRID)
    node = make_target_node(provider_id=provider_id, addresses=addresses)
    private, public = Target(address="10.0.0.7"), Target(address="192.0.2.7")
    assert select(node, rules=hybrid).plan(()) == (private,)
    external_first = ADDRESS_TYPES[::-1]
    assert select(node, rules=hybrid, address_types=external_first).plan((private,)) == (public,)
    unreadable = select(node, make_target_node("web-2", "2"), rules=hybrid, address_types=None)
    assert unreadable.plan(()) == (TWO,)
    assert set(unreadable.plan((public, private))) == {private, public, TWO}
    assert select(make_target_node(provider_id=provider_id), rules=hybrid).left_out == (
        LeftOut("web-1", "no_address"),
    )
    assert select(make_target_node(), rules=hybrid).plan(()) == (ONE,)


def test_a_cloud_with_ipv6_targets_uses_the_first_address_of_any_family():
    rules = TargetRules(parse_provider_id=parse_hetzner_id, address_prefixes=HYBRID)
    node = make_target_node(
        provider_id="hrobot://7", addresses=(NodeAddress(type="InternalIP", address="2001:db8::7"),)
    )
    assert select(node, rules=rules).plan(()) == (Target(address="2001:db8::7"),)
    assert select(UNREACHABLE["no_address"], rules=rules).plan(()) == (ONE,)
