"""What proves that a cloud has deleted a Node's instance: each clause alone keeps the Node."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.contract.events import InstanceUnknown
from libs.common.contract.instances import InstanceAnchor, InstanceWitness
from libs.common.contract.node import Node
from services.lifecycle.core.evidence import Assessment, MachineIndex, MachineReport
from services.lifecycle.core.instance_evidence import CLAUSES, assess_instance
from services.lifecycle.core.instance_reports import AccountView, InstanceReports, drop_silent_accounts
from services.lifecycle.core.node_index import DeletionCase, NodeIndex, scope_of
from tests.builders import NOW, make_facts
from tests.instance_reports import (
    ANCHOR,
    BY_ANCHOR,
    make_exists,
    make_gone,
    make_recorded_node,
    make_shut_down,
    make_unknown,
)
from tests.lifecycle_actors import NEW_UUID, OWN_UUID, make_answering, make_lost_node, make_unreachable

NODE = make_recorded_node()
SOON = NOW + timedelta(seconds=10)
OTHER_CLOUD = replace(make_facts().platform, provider_id="hcloud://2002")


def witness(kind: Any = "anchor", found: str = BY_ANCHOR, after: float = 1.0) -> InstanceWitness:
    return InstanceWitness(kind=kind, id=found, asked_at=NOW + timedelta(seconds=after))


def a_case(
    *reports: Any,
    node: Node = NODE,
    report: MachineReport | None = None,
    machines: MachineIndex = MachineIndex(),  # noqa: B008 (frozen)
    recorded: dict[str, set[str]] | None = None,
    monotonic_now: float = 10.0,
    **fields: Any,
) -> DeletionCase:
    """A Node whose account says that its instance is gone; `reports` follow that.

    `recorded`: id of an instance of the same project -> Nodes with its record.
    """
    known = InstanceReports()
    for number, each in enumerate((make_gone(node), *reports)):
        known.apply(each, float(number))
    case = DeletionCase(
        node=node,
        now=SOON,
        instances=drop_silent_accounts(known.get(node.name), monotonic_now),
        report=report or make_unreachable(node),
        machines=machines,
    )
    assert case.record is not None
    by_id = recorded or {"1001": {node.name}}
    names = {(scope_of(case.record), instance_id): names for instance_id, names in by_id.items()}
    return replace(case, recorded=names, **fields)


def assess(case: DeletionCase) -> Assessment:
    assert case.record is not None
    return assess_instance(case, case.record)


LATER = NOW + timedelta(seconds=5)


def absent(at: datetime) -> InstanceUnknown:
    """Another account has listed its instances."""
    return make_unknown(NODE, account="other", at=at, absent_from=ANCHOR)


# name of the only clause that keeps the Node -> what is different
DOUBTS: list[tuple[str, Callable[[], DeletionCase]]] = [
    ("needs_same_machine", lambda: a_case(node=make_recorded_node(record={"system_uuid": NEW_UUID}))),
    ("needs_same_machine", lambda: a_case(node=make_recorded_node(record={"system_uuid": ""}))),
    (
        "needs_no_other_provider_id",
        lambda: a_case(report=make_unreachable(NODE, last_known=replace(make_facts(), platform=OTHER_CLOUD))),
    ),
    ("needs_gone", lambda: a_case(make_unknown(NODE, at=LATER))),
    ("needs_gone", lambda: a_case(instances={})),
    (
        "needs_this_instance",
        lambda: a_case(make_gone(NODE, at=LATER, node_uid="uid-0", witness=witness(after=6))),
    ),
    (
        "needs_this_instance",
        lambda: a_case(make_gone(NODE, at=LATER, provider_id="hcloud://1", witness=witness(after=6))),
    ),
    ("needs_sound_round", lambda: a_case(make_gone(NODE, at=LATER, witness=witness(after=1)))),
    ("needs_sound_round", lambda: a_case(make_gone(NODE, at=LATER, witness=witness(after=8)))),
    (
        "needs_sound_round",
        lambda: a_case(make_gone(NODE, at=LATER, credential_loaded_at=LATER, witness=witness(after=6))),
    ),
    (
        "needs_sound_round",
        lambda: a_case(
            make_gone(NODE, at=LATER, answered_at=LATER + timedelta(minutes=10.1), witness=witness(after=6)),
            now=NOW + timedelta(minutes=11),
        ),
    ),
    ("needs_past_times", lambda: a_case(now=NOW - timedelta(minutes=1))),
    (
        "needs_witness",
        lambda: a_case(make_gone(NODE, at=LATER, witness=witness(found="network/78", after=6))),
    ),
    ("needs_witness", lambda: a_case(make_gone(NODE, at=LATER, witness=witness("instance", "1002", 6)))),
    ("needs_witness", lambda: a_case(make_gone(NODE, at=LATER, witness=witness("instance", "1001", 6)))),
    (
        "needs_witness",  # nothing shows which project it was
        lambda: a_case(
            make_gone(NODE, at=LATER, witness=witness("instance", "1002", 6)),
            node=make_recorded_node(record={"anchor": None}),
            recorded={"1002": {"web-2"}},
        ),
    ),
    (
        "needs_witness",  # another Node claims the same instance
        lambda: a_case(
            make_gone(NODE, at=LATER, witness=witness("instance", "1001", 6)),
            recorded={"1001": {"web-1", "web-2"}},
        ),
    ),
    ("needs_witness", lambda: a_case(node=make_recorded_node(record={"anchor": None}))),
    ("needs_no_account_that_sees_it", lambda: a_case(make_exists(NODE, account="other"))),
    ("needs_no_account_that_sees_it", lambda: a_case(make_shut_down(NODE, account="other"))),
    (
        "needs_no_account_that_sees_it",  # it publishes that again every 20 minutes only
        lambda: a_case(make_exists(NODE, account="other", at=NOW - timedelta(minutes=59))),
    ),
    (
        "needs_no_account_that_sees_it",  # then by the credential of another project
        lambda: a_case(
            make_exists(NODE, account="other", anchor=InstanceAnchor(kind="network", id="78")), absent(LATER)
        ),
    ),
    ("needs_answer_of_each_account", lambda: a_case(make_unknown(NODE, at=LATER, account="other"))),
    ("needs_answer_of_each_account", lambda: a_case(absent(NOW))),
    ("needs_answer_of_each_account", lambda: a_case(accounts=("prod", "third"))),
    ("needs_answer_of_each_account", lambda: a_case(absent(SOON + timedelta(minutes=1.1)))),
    ("needs_answer_of_each_account", lambda: a_case(make_gone(NODE, account="other"))),
    (
        "needs_answer_of_each_account",  # about the Node's former instance
        lambda: a_case(
            make_unknown(NODE, account="other", at=LATER, absent_from=ANCHOR, provider_id="hcloud://1")
        ),
    ),
    (
        "needs_answer_of_each_account",  # about a former Node of that name
        lambda: a_case(make_unknown(NODE, account="other", at=LATER, absent_from=ANCHOR, node_uid="uid-0")),
    ),
    (
        "needs_answer_of_each_account",  # its credential is another project's
        lambda: a_case(
            absent(LATER), list_anchors=lambda now: {"other": {InstanceAnchor(kind="network", id="78")}}
        ),
    ),
    ("needs_no_namesake", lambda: a_case(make_unknown(NODE, at=LATER, account="other", namesake="1003"))),
    (
        "needs_no_namesake",
        lambda: a_case(make_gone(NODE, at=LATER, namesake="1003", witness=witness(after=6))),
    ),
    ("needs_silent_machine", lambda: a_case(report=make_answering(NODE))),
    ("needs_machine_report", lambda: a_case(report=make_unreachable(make_lost_node(uid="uid-0")))),
    (
        "needs_no_machine_with_its_name",
        lambda: a_case(machines=MachineIndex(nodes_by_machine_name={"web-1": {"web-2"}})),
    ),
    ("needs_own_uuid", lambda: a_case(machines=MachineIndex(nodes_by_uuid={OWN_UUID: {"web-1", "web-2"}}))),
]


def test_an_instance_that_is_gone_beside_a_witness_is_proof():
    assert assess(a_case()).missing == ()
    assert assess(a_case()).proven == (
        "account prod has no instance hcloud://1001 any more, and finds anchor network/77",
    )
    by_instance = a_case(
        make_gone(NODE, at=LATER, witness=witness("instance", "1002", 6)),
        recorded={"1001": {"web-1"}, "1002": {"web-2"}},
    )
    assert assess(by_instance).missing == ()
    by_cloud = make_gone(NODE, at=LATER, witness=witness("cloud", "", 5))
    assert "and the cloud itself reports its deletion" in assess(a_case(by_cloud)).proven[0]


@pytest.mark.parametrize(
    ("clause", "make"), DOUBTS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(DOUBTS)]
)
def test_each_clause_alone_keeps_the_node(clause: str, make: Callable[[], DeletionCase]):
    case = make()
    assert case.record is not None
    keeps = [each.__name__ for each in CLAUSES if each(case, case.record)]
    assert keeps == [clause]
    assert len(assess(case).missing) == 1


def test_every_clause_has_a_doubt_that_it_alone_keeps():
    assert {clause for clause, _ in DOUBTS} == {each.__name__ for each in CLAUSES}


def test_an_account_that_has_been_silent_for_an_hour_is_none_any_more():
    exists = make_exists(NODE, account="other")
    known = InstanceReports()
    known.apply(exists, 0.0)
    known.apply(make_gone(NODE), 1000.0)
    for received_at, accounts in ((3600.0, {"prod", "other"}), (3600.1, {"prod"})):
        assert set(drop_silent_accounts(known.get("web-1"), received_at)) == accounts
    known.apply(exists, 900.0)  # published again
    assert set(drop_silent_accounts(known.get("web-1"), 4000.0)) == {"prod", "other"}


def test_other_accounts_that_lack_the_instance_since_it_is_gone_are_no_doubt():
    exists = make_exists(NODE, account="other")
    assert assess(a_case(exists, absent(LATER))).missing == ()
    assert assess(a_case(exists, absent(LATER), list_anchors=lambda now: {"other": {ANCHOR}})).missing == ()


# ---- the history of an account


def history(*reports: Any) -> int:
    known = InstanceReports()
    for number, each in enumerate(reports):
        known.apply(each, 60.0 * number)
    view: AccountView = known.get("web-1")["prod"]
    return view.history.count if view.history else 0


def gone(minute: float, **fields: Any) -> Any:
    return make_gone(NODE, at=NOW + timedelta(minutes=minute), **fields)


def test_rounds_that_say_gone_make_a_history():
    assert history(gone(0), gone(1), gone(2)) == 3
    assert history(gone(0), gone(0), gone(1)) == 2, "it is published again"


def test_an_account_that_reports_on_other_nodes_of_the_cloud_must_report_on_each():
    index = NodeIndex()
    other = make_recorded_node("web-2", provider_id="hcloud://1002")
    aws = make_lost_node("db-1", provider_id="aws:///zone/i-1")
    for node in (NODE, other, aws):
        index.upsert_node(node)
    for number, report in enumerate(
        (make_gone(NODE), make_exists(other, account="other"), make_exists(aws, account="elsewhere"))
    ):
        index.apply_instance_report(report, float(number))
    case = index.build_case(NODE, SOON, 10.0)
    assert case.accounts == ["other", "prod"]
    assert index.build_case(NODE, SOON, 3601.5).accounts == []
    assert assess(case).missing[0].startswith("account other has not reported on it yet")


def test_the_anchors_of_an_account_are_the_recorded_and_those_that_its_instances_have_now():
    index = NodeIndex()
    new = InstanceAnchor(kind="network", id="78")
    index.upsert_node(NODE)
    assert index.build_case(NODE, SOON, 10.0).list_anchors(SOON) == {"prod": {ANCHOR}}
    index.apply_instance_report(make_shut_down(NODE, anchor=new), 0.0)
    assert index.build_case(NODE, SOON, 10.0).list_anchors(SOON) == {"prod": {ANCHOR, new}}
    index.apply_instance_report(make_unknown(NODE, at=LATER), 1.0)
    assert index.build_case(NODE, SOON, 10.0).list_anchors(SOON) == {"prod": {ANCHOR, new}}, "an outage"
    assert index.build_case(NODE, SOON, 10.0).list_anchors(SOON + timedelta(hours=1)) == {"prod": {ANCHOR}}


def test_an_older_sight_by_a_clock_that_was_set_back_is_a_sight():
    known = InstanceReports()
    for report in (absent(LATER), make_exists(NODE, account="other")):
        known.apply(report, 0.0)
    assert known.get("web-1")["other"].seen is not None


@pytest.mark.parametrize("anchor", [ANCHOR, None])
def test_an_outage_ends_no_sight_of_the_instance(anchor: InstanceAnchor | None):
    known = InstanceReports()
    for report in (make_exists(NODE, anchor=anchor), make_unknown(NODE, at=LATER)):
        known.apply(report, 0.0)
    assert known.get("web-1")["prod"].seen is not None


def test_a_new_stream_of_the_flow_drops_no_report_of_a_cloud():
    index = NodeIndex()
    index.upsert_node(NODE)
    index.apply_instance_report(make_exists(NODE), 0.0)
    index.clear()
    assert index.build_case(NODE, SOON, 10.0).instances["prod"].seen is not None
    index.forget_instances()
    case = index.build_case(NODE, SOON, 10.0)
    assert not case.instances
    assert case.accounts == ["prod"], "it has reported within the hour: its silence is no answer"
    assert index.build_case(NODE, SOON, 3600.5).accounts == []


def test_the_histories_of_one_node_or_of_all_are_forgotten():
    known = InstanceReports()
    other = make_recorded_node("web-2")
    for node in (NODE, other):
        known.apply(make_gone(node), 0.0)
    known.forget_histories("web-1")
    assert known.get("web-1")["prod"].history is None
    assert known.get("web-2")["prod"].history is not None
    known.forget_histories()
    assert known.get("web-2")["prod"].history is None


@pytest.mark.parametrize(
    ("reports", "count"),
    [
        ((gone(0), make_unknown(NODE, at=NOW + timedelta(minutes=1)), gone(2)), 1),
        ((gone(0), make_exists(NODE, at=NOW + timedelta(minutes=1)), gone(2)), 1),
        ((gone(0), gone(1), make_exists(NODE, at=NOW)), 0),  # by a clock that was set back
        ((gone(0), gone(1), gone(0)), 2),  # a message of before, again
        ((gone(0), gone(1, credential_loaded_at=NOW + timedelta(seconds=30))), 1),  # another credential
        ((gone(0), gone(1, node_uid="uid-2")), 1),
        ((gone(0), gone(1, provider_id="hcloud://1")), 1),
        ((gone(0), gone(1, witness=witness(after=1))), 0),  # the witness of another round
        ((gone(0), gone(11)), 1),
    ],
)
def test_whatever_contradicts_begins_anew(reports: tuple[Any, ...], count: int):
    assert history(*reports) == count
