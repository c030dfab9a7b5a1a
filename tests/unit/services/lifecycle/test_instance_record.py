"""When a Node gets the record that its instance was seen alive, and when that record ends."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.contract.events import InstanceUnknown
from libs.common.contract.instances import (
    RECORD_ANNOTATION,
    RECORD_DIGEST_LABEL,
    InstanceAnchor,
    InstanceRecord,
    read_instance_record,
)
from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import Node
from services.lifecycle.core.instance_evidence import is_same_uuid
from services.lifecycle.core.instance_record import plan_instance_record
from services.lifecycle.core.instance_reports import InstanceReports
from services.lifecycle.core.node_change import ChangeKind, NodeChange
from services.lifecycle.core.node_index import DeletionCase
from tests.builders import NOW
from tests.instance_reports import (
    ANCHOR,
    PROVIDER_ID,
    make_exists,
    make_gone,
    make_recorded_node,
    make_shut_down,
    make_unknown,
)
from tests.lifecycle_actors import NEW_UUID, OWN_UUID, make_answering, make_lost_node, make_unreachable
from tests.named_machines import NAMED_CLOUDS, OPENSTACK, NamedCloud

NODE = make_lost_node(provider_id=PROVIDER_ID)
RECORDED = make_recorded_node()
VOID_AT = NOW - timedelta(minutes=1, milliseconds=1)
VOIDED = make_lost_node(
    provider_id=PROVIDER_ID, labels={RECORD_DIGEST_LABEL: f"void.{VOID_AT.timestamp() * 1000:.0f}"}
)
VOIDED_FOR_EVER = make_lost_node(provider_id=PROVIDER_ID, labels={RECORD_DIGEST_LABEL: f"void.{'9' * 58}"})
UNNAMED = make_lost_node(provider_id="")
SOON = NOW + timedelta(seconds=10)


def answering(node: Node = NODE, provider_id: str = PROVIDER_ID) -> Any:
    return make_answering(node, provider_id=provider_id)


def plan(*reports: Any, node: Node = NODE, machine: Any = None, **fields: Any) -> NodeChange | None:
    known = InstanceReports()
    for report in reports:
        known.apply(report, 0.0)
    usual: dict[str, Any] = {"now": SOON, "report": machine or answering(node)} | fields
    return plan_instance_record(DeletionCase(node=node, instances=known.get(node.name), **usual))


def _merge(current: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in ({**current, **changes}).items() if value is not None}


def written(node: Node, change: NodeChange | None) -> Node:
    """The Node after that change."""
    assert change is not None
    metadata = replace(
        node.metadata,
        labels=_merge(node.labels, change.changes.labels),
        annotations=_merge(node.annotations, change.changes.annotations),
    )
    return replace(node, metadata=metadata)


def record_of(node: Node, change: NodeChange | None) -> InstanceRecord:
    """The record that the Node has after that change."""
    record = read_instance_record(written(node, change))
    assert record is not None
    return record


@pytest.mark.parametrize("make", [make_exists, make_shut_down])
def test_an_instance_that_one_account_shows_alive_is_recorded_once(make: Any):
    change = plan(make(NODE, anchor=ANCHOR))
    record = record_of(NODE, change)
    assert (record.account, record.provider_id, record.node_uid, record.system_uuid) == (
        "prod", PROVIDER_ID, NODE.uid, OWN_UUID,
    )  # fmt: skip
    assert (record.anchor, record.seen_at) == (ANCHOR, NOW)
    assert plan(make(NODE, anchor=ANCHOR), node=written(NODE, change)) is None


@pytest.mark.parametrize(
    ("reports", "fields"),
    [
        ((), {}),
        ((make_gone(NODE),), {}),
        ((make_unknown(NODE),), {}),
        ((make_exists(NODE), make_gone(NODE, at=NOW + timedelta(seconds=3))), {}),
        ((make_exists(NODE), make_unknown(NODE, at=NOW + timedelta(seconds=3))), {}),
        ((make_exists(NODE, node_uid="uid-0"),), {}),
        ((make_exists(NODE, provider_id="hcloud://2"),), {}),
        ((make_exists(NODE, namesake="1003"),), {}),
        ((make_exists(NODE), make_unknown(NODE, account="other", namesake="1003")), {}),
        ((make_exists(NODE), make_exists(NODE, account="other")), {}),  # two accounts claim it
        ((make_exists(NODE),), {"now": NOW + timedelta(minutes=10.1)}),  # long ago: it may be another machine
        ((make_exists(NODE),), {"now": NOW - timedelta(minutes=10.1)}),
        ((make_exists(NODE),), {"machine": make_unreachable(NODE)}),
        ((make_exists(NODE),), {"machine": answering(make_lost_node(uid="uid-0"))}),
        ((make_exists(NODE),), {"machine": answering(provider_id="hcloud://2002")}),
        ((make_exists(NODE),), {"node": make_lost_node(provider_id=PROVIDER_ID, system_uuid="")}),
        ((make_exists(NODE),), {"node": make_lost_node(provider_id=PROVIDER_ID, system_uuid="a" * 65)}),
        ((make_exists(NODE, provider_id=""),), {"node": UNNAMED, "machine": answering(UNNAMED, "")}),
        ((make_exists(VOIDED),), {"node": VOIDED, "machine": answering(VOIDED, "")}),
    ],
)
def test_any_doubt_records_nothing(reports: tuple[Any, ...], fields: dict[str, Any]):
    assert plan(make_exists(NODE)) is not None
    assert plan(*reports, **fields) is None


def test_a_machine_that_talos_knows_no_provider_id_of_is_recorded_the_first_time():
    assert plan(make_exists(NODE), machine=answering(provider_id="")) is not None


@pytest.mark.parametrize(
    ("node", "machine"),
    [
        (RECORDED, answering(RECORDED, "hcloud://2002")),
        (RECORDED, make_unreachable(RECORDED, last_known=answering(RECORDED, "hcloud://2002").facts)),
        (make_recorded_node(record={"system_uuid": NEW_UUID}), make_unreachable(RECORDED)),
    ],
)
def test_another_machine_voids_the_record_until_it_reports_the_nodes_provider_id(node: Node, machine: Any):
    change = plan(make_exists(node), node=node, machine=machine, now=VOID_AT)
    assert change is not None
    assert change.kind is ChangeKind.VOIDED_RECORD
    voided = written(node, change)
    assert RECORD_ANNOTATION not in voided.annotations
    assert voided.labels == VOIDED.labels
    assert plan(make_exists(VOIDED), node=VOIDED, machine=answering(VOIDED)) is not None


def test_a_void_at_an_impossible_time_gets_no_record_and_raises_nothing():
    assert plan(make_exists(VOIDED_FOR_EVER), node=VOIDED_FOR_EVER) is None


@pytest.mark.parametrize(("queried_after", "asked_after"), [(60, 60), (60, 61), (61, 60), (61, 61)])
def test_what_machine_and_cloud_said_before_a_void_renews_no_record(queried_after: int, asked_after: int):
    """The kubelet of a rebuilt server may report its UUID before metadata has noticed the other machine.

    The three processes' clocks may differ by a minute.
    """
    machine = make_answering(
        VOIDED, provider_id=PROVIDER_ID, queried_at=VOID_AT + timedelta(seconds=queried_after)
    )
    change = plan(
        make_exists(VOIDED, at=VOID_AT + timedelta(seconds=asked_after)), node=VOIDED, machine=machine
    )
    assert (change is not None) == (queried_after > 60 and asked_after > 60)


@pytest.fixture(params=NAMED_CLOUDS.values(), ids=list(NAMED_CLOUDS))
def cloud(request: pytest.FixtureRequest) -> NamedCloud:
    found: NamedCloud = request.param
    return found


def naming(cloud: NamedCloud, node: Node, instance_id: str) -> Any:
    """The machine of the Node answers. Talos does not know its cloud, but the machine names an instance."""
    machine = answering(node, provider_id="")
    facts = replace(machine.facts, platform=PlatformMetadata(platform="nocloud"))
    return replace(machine, facts=replace(facts, system=cloud.make_system(instance_id)))


def test_the_first_record_needs_a_machine_that_names_no_other_instance(cloud: NamedCloud):
    """The Node's own server may have left its name to another one, and still run."""
    node = make_lost_node(provider_id=cloud.provider_id)
    assert plan(make_exists(node), node=node, machine=naming(cloud, node, cloud.own)) is not None
    assert plan(make_exists(node), node=node, machine=naming(cloud, node, cloud.neighbour)) is None
    for other in NAMED_CLOUDS.values():
        if other is not cloud:
            assert plan(make_exists(node), node=node, machine=naming(other, node, other.own)) is None


def test_a_machine_that_names_another_instance_voids_the_record_until_it_names_its_own(cloud: NamedCloud):
    node = make_recorded_node(provider_id=cloud.provider_id)
    change = plan(make_exists(node), node=node, machine=naming(cloud, node, cloud.neighbour), now=VOID_AT)
    assert change is not None
    assert change.kind is ChangeKind.VOIDED_RECORD
    voided = written(node, change)
    assert plan(make_exists(voided), node=voided, machine=answering(voided, "")) is None
    assert plan(make_exists(voided), node=voided, machine=naming(cloud, voided, cloud.own)) is not None


def test_a_provider_id_with_the_region_names_the_same_server():
    node = make_recorded_node(provider_id=f"openstack://RegionOne/{OPENSTACK.own}")
    assert plan(make_exists(node), node=node, machine=answering(node, OPENSTACK.provider_id)) is None
    change = plan(make_exists(node), node=node, machine=answering(node, OPENSTACK.neighbours_provider_id))
    assert change is not None
    assert change.kind is ChangeKind.VOIDED_RECORD


def test_what_was_reported_of_another_node_of_that_name_voids_nothing():
    before = make_lost_node(provider_id=PROVIDER_ID, uid="uid-0")
    assert plan(node=RECORDED, machine=answering(before, "hcloud://2002")) is None
    assert plan(node=RECORDED, report=None) is None


@pytest.mark.parametrize(
    ("recorded", "current", "is_same"),
    [
        (OWN_UUID, OWN_UUID.upper(), True),
        (OWN_UUID, NEW_UUID, False),
        ("00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000000", True),
        ("00000000-0000-0000-0000-000000000000", "", False),
    ],
)
def test_a_placeholder_of_a_uuid_is_compared_as_it_is(recorded: str, current: str, is_same: bool):
    assert is_same_uuid(recorded, current) is is_same


def test_a_forged_record_is_none_and_is_replaced():
    forged = make_recorded_node(record={"account": "other"}, digest="0" * 56)
    assert read_instance_record(forged) is None
    assert record_of(forged, plan(make_exists(forged), node=forged)).account == "prod"


def test_the_record_follows_an_instance_that_moved_to_another_account():
    moved = make_exists(RECORDED, account="other", anchor=None)
    assert plan(moved, make_exists(RECORDED), node=RECORDED) is None, "both claim it"
    record = record_of(RECORDED, plan(moved, make_gone(RECORDED), node=RECORDED))
    assert (record.account, record.anchor) == ("other", None)


def test_a_record_waits_for_no_anchor():
    assert record_of(NODE, plan(make_exists(NODE, anchor=None))).anchor is None


@pytest.mark.parametrize("last", [make_unknown(RECORDED), make_unknown(RECORDED, absent_from=ANCHOR)])
def test_no_account_takes_the_record_of_another_that_does_not_say_gone(last: InstanceUnknown):
    assert plan(make_exists(RECORDED, account="other"), last, node=RECORDED) is None


def test_the_record_of_an_account_that_is_none_any_more_goes_to_another():
    change = plan(make_exists(RECORDED, account="other"), node=RECORDED)
    assert record_of(RECORDED, change).account == "other"


@pytest.mark.parametrize("provider_id", ["openstack:///7", "openstack://nova/7", "thalassacloud://vm-7"])
def test_each_cloud_of_an_account_gets_records(provider_id: str):
    node = make_lost_node(provider_id=provider_id)
    assert plan(make_exists(node), node=node, machine=answering(node, provider_id)) is not None


@pytest.mark.parametrize("provider_id", ["talos://metal/10.0.0.7", "aws:///zone/i-1", "hcloud"])
def test_no_account_has_an_instance_of_another_cloud(provider_id: str):
    node = make_lost_node(provider_id=provider_id)
    assert plan(make_exists(node), node=node, machine=answering(node, provider_id)) is None


def test_an_anchor_is_renewed_and_never_lost_while_the_instance_lives():
    assert plan(make_exists(RECORDED, anchor=None), node=RECORDED) is None
    other = InstanceAnchor(kind="volume", id="5")
    assert record_of(RECORDED, plan(make_exists(RECORDED, anchor=other), node=RECORDED)).anchor == other
    change = plan(make_exists(RECORDED, anchor=other), node=RECORDED, machine=answering(RECORDED, ""))
    assert change is not None, "Talos knows no providerID of this machine"
