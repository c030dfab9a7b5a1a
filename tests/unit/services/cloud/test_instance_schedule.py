"""What is asked next: new Nodes at once, suspects in rounds, everything by list every ten minutes."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec
import pytest

from libs.clouds.instances import NotFound
from libs.common.contract.events import InstanceUnknown
from libs.common.contract.instances import InstanceAnchor
from services.cloud.core.instance_schedule import MAX_PER_ROUND, MAX_WITNESSES, InstanceSchedule
from services.cloud.core.judge_round import judge_round
from services.cloud.core.node_table import CloudNode, NodeTable
from tests.builders import NOW, make_node
from tests.clouds.cloud_rounds import ACCOUNT, BY_CREDENTIAL, make_cloud_node, make_instance, make_round

RECORDED = InstanceAnchor(kind=BY_CREDENTIAL.kind, id=BY_CREDENTIAL.id)
READY = [
    make_cloud_node(f"web-{number}", str(number), is_ready=True, anchor=BY_CREDENTIAL)
    for number in range(1, 100)
]


def make_schedule(nodes: Sequence[CloudNode], *, seen: bool = True) -> InstanceSchedule:
    schedule = InstanceSchedule()
    schedule.update(nodes)
    for node in nodes if seen else ():
        answers = make_round(make_instance(node.instance_id), instance_id=node.instance_id)
        schedule.record(node.name, judge_round(node, answers, ACCOUNT), 0.0)
    return schedule


def names(nodes: Sequence[CloudNode]) -> list[str]:
    return [node.name for node in nodes]


@pytest.mark.parametrize(
    ("instances", "waiting", "is_cheaper"),
    [
        (0, 2, False),
        (0, 3, True),
        (49, 3, True),
        (50, 4, False),
        (50, 5, True),
        (1000, 42, False),
        (1000, 43, True),
        (None, 1000, False),  # the list got no answer
    ],
)
def test_many_answers_take_a_list_unless_it_takes_many_requests(
    instances: int | None, waiting: int, *, is_cheaper: bool
):
    schedule = make_schedule(READY)
    schedule.record_list(instances, 5.0)
    assert schedule.is_list_cheaper(waiting) == is_cheaper
    assert schedule.next_list_at == 605.0


def test_a_node_that_changes_its_provider_id_or_uid_is_new():
    schedule = make_schedule(READY[:1])
    assert schedule.list_new(READY[:1]) == []
    moved = [make_cloud_node("web-1", "500", is_ready=True)]
    schedule.update(moved)
    assert names(schedule.list_new(moved)) == ["web-1"]


def make_not_found(node: CloudNode) -> InstanceUnknown:
    report = judge_round(node, make_round(NotFound(), instance_id=node.instance_id, witness=None), ACCOUNT)
    assert isinstance(report, InstanceUnknown)
    return report


def test_missing_instances_come_before_nodes_that_are_only_not_ready():
    shut_down = [make_cloud_node(node.name, node.instance_id) for node in READY]
    schedule = make_schedule(shut_down)
    assert len(schedule.select_suspects(shut_down, 5.0)) == MAX_PER_ROUND
    schedule.record("web-99", make_not_found(shut_down[-1]), 7.0)
    schedule.record("web-98", make_not_found(shut_down[-2]), 6.0)
    assert names(schedule.select_suspects(shut_down, 8.0))[:2] == ["web-98", "web-99"]
    schedule.next_round_at = 60.0
    assert schedule.select_suspects(shut_down, 59.0) == []


def test_instances_that_stay_undecided_give_way_after_thirty_rounds():
    stuck = [make_cloud_node(f"old-{number}", str(number)) for number in range(1, MAX_PER_ROUND + 1)]
    fresh = make_cloud_node("web-1", "600")
    waiting = make_cloud_node("db-1", "601", is_recorded=False)
    nodes = [*stuck, fresh, waiting]
    schedule = make_schedule(nodes, seen=False)
    for node in (*stuck, fresh, waiting):
        schedule.record(node.name, make_not_found(node), 1.0 if node in stuck else 2.0)
    first = names(schedule.select_suspects(nodes, 70.0))
    assert "web-1" not in first
    assert "db-1" in first, "some places are for answers that another account needs"
    for _ in range(29):
        for node in stuck:
            schedule.record(node.name, make_not_found(node), 3.0)
    assert names(schedule.select_suspects(nodes, 70.0))[0] == "web-1"


def test_a_missing_instance_that_was_never_seen_is_asked_for_while_its_node_is_not_ready():
    others = [
        make_cloud_node(node.name, node.instance_id, is_recorded=False, is_ready=node is not READY[0])
        for node in READY
    ]
    mine = make_cloud_node("db-1", "600")
    schedule = make_schedule([*others, mine], seen=False)
    for node in (*others, mine):
        schedule.record(node.name, make_not_found(node), 1.0)
    assert names(schedule.select_suspects([*others, mine], 70.0)) == ["db-1", READY[0].name]


def test_nodes_that_are_not_ready_take_turns():
    lost = [make_cloud_node(node.name, node.instance_id) for node in READY]
    schedule = make_schedule(lost)
    first = schedule.select_suspects(lost, 5.0)
    for node in first:
        found = make_round(make_instance(node.instance_id), instance_id=node.instance_id)
        later = msgspec.structs.replace(
            judge_round(node, found, ACCOUNT), asked_at=NOW + timedelta(minutes=1)
        )
        schedule.record(node.name, later, 6.0)
    second = names(schedule.select_suspects(lost, 70.0))
    assert set(names(lost)) == {*names(first), *second}


def test_a_ready_node_that_a_list_lacks_is_asked_for_until_it_is_found():
    schedule = make_schedule(READY[:2])
    schedule.record_absence("web-1", 3.0)
    schedule.update(READY[:2])
    assert names(schedule.select_suspects(READY[:2], 9.0)) == ["web-1"]
    found = make_round(make_instance("1"), instance_id="1")
    schedule.record("web-1", judge_round(READY[0], found, ACCOUNT), 9.0)
    assert schedule.select_suspects(READY[:2], 99.0) == []


def test_witnesses_are_nodes_of_the_same_anchor_that_were_seen_and_none_of_the_round():
    unrecorded = make_cloud_node("db-1", "600", is_recorded=False, is_ready=True)
    elsewhere = make_cloud_node("db-2", "601", is_ready=True)
    twin = make_cloud_node("twin", "1", is_ready=True, anchor=BY_CREDENTIAL)
    nodes = [*READY[:4], unrecorded, elsewhere, twin]
    schedule = make_schedule(nodes)
    found = schedule.select_witnesses(nodes, READY[:1], RECORDED)
    assert set(names(found)) == {"web-2", "web-3", "web-4"}
    assert len(schedule.select_witnesses(READY, READY[:1], RECORDED)) == MAX_WITNESSES


def test_only_canonical_provider_ids_of_the_cloud_count():
    table = NodeTable("prod", {"hcloud://7": "7"}.get)
    for provider_id in ("hcloud://bm-7", "hrobot://7", "", "talos://web-1"):
        table.upsert(make_node("web-1", provider_id=provider_id))
        assert len(table) == 0
    table.upsert(make_node("web-1", provider_id="hcloud://7"))
    assert [node.instance_id for node in table] == ["7"]
    table.upsert(make_node("web-1", provider_id="hcloud://bm-7"))
    assert table.get("web-1") is None
