"""The table of Nodes: what removes a target, and what proves nothing."""

from typing import Any

import pytest

from libs.clouds.balancers import Target
from libs.common.contract.node import Node, Taint
from services.cloud.core.balancers.select_targets import AUTOSCALER_TAINT, EXCLUDE_LABEL, TargetRules
from services.cloud.core.balancers.target_nodes import TargetNodes
from tests.builders import make_node


def parse_provider_id(text: str) -> str | None:
    return text.removeprefix("hcloud://") if text.startswith("hcloud://") else None


def make_table(*nodes: Node, is_complete: bool = True) -> TargetNodes:
    table = TargetNodes(TargetRules(parse_provider_id=parse_provider_id))
    for node in nodes:
        table.upsert(node)
    if is_complete:
        table.mark_complete()
    return table


def a_node(number: int, **fields: Any) -> Node:
    """The Node of server `number`."""
    defaults = {"uid": f"uid-{number}", "provider_id": f"hcloud://{number}"}
    return make_node(f"web-{number}", **(defaults | fields))


def plan(table: TargetNodes, *current: int, is_followed: bool = True) -> set[str]:
    """The ids of the servers that are desired on a balancer with these ones."""
    targets = [Target(instance_id=str(number)) for number in current]
    return {each.instance_id for each in table.select((), is_followed=is_followed).plan(targets)}


def test_a_complete_table_removes_unknown_targets_and_an_incomplete_one_keeps_them():
    assert plan(make_table(a_node(1)), 1, 9) == {"1"}
    assert plan(make_table(a_node(1), is_complete=False), 1, 9) == {"1", "9"}
    assert plan(make_table(a_node(1)), 1, 9, is_followed=False) == {"1", "9"}


def test_a_node_that_was_seen_deleted_goes_at_once_the_last_one_too():
    table = make_table(a_node(1), is_complete=False)
    assert table.remove("web-1")
    assert plan(table, 1, 9) == {"9"}
    assert not table.remove("web-1"), "nothing changes"


def test_a_message_that_expired_removes_no_target_until_the_next_snapshot():
    table = make_table(a_node(1), a_node(2))
    table.remove("web-1")
    table.mark_expired("uid-1")
    assert plan(table, 1, 2) == {"1", "2"}
    assert table.mark_complete()
    assert plan(table, 1, 2) == {"2"}
    assert not table.mark_complete(), "nothing changes"


def test_a_node_that_was_replaced_under_its_name_leaves_and_one_that_returns_does_not():
    table = make_table(a_node(1), is_complete=False)
    table.upsert(a_node(1, uid="another", provider_id="hcloud://7"))
    assert plan(table, 1, 9) == {"7", "9"}
    table.remove("web-1")
    table.upsert(a_node(1))
    assert plan(table, 1, 9) == {"1", "9"}


def test_another_stream_has_no_nodes_until_its_snapshot_and_deleted_ones_stay_deleted():
    table = make_table(a_node(1), a_node(2))
    table.remove("web-2")
    table.clear()
    assert plan(table, 1, 2) == {"1"}
    table.mark_complete()
    assert plan(table, 1, 2) == set()


@pytest.mark.parametrize(
    ("change", "has_changed"),
    [
        ({"labels": {EXCLUDE_LABEL: ""}}, True),
        ({"labels": {"role": "web"}}, True),
        ({"provider_id": "hcloud://2"}, True),
        ({"taints": (Taint(key=AUTOSCALER_TAINT, effect="NoSchedule"),)}, True),
        ({"uid": "another"}, True),
        ({"pod_cidrs": ("10.244.1.0/24",)}, False),
        ({"annotations": {"a": "b"}}, False),
        ({"taints": (Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule"),)}, False),
        ({"resource_version": "200"}, False),
    ],
    ids=str,
)
def test_services_are_looked_at_only_after_changes_that_may_change_targets(
    change: dict[str, Any], has_changed: bool
):
    table = make_table(a_node(1))
    assert table.upsert(a_node(1, **change)) is has_changed
