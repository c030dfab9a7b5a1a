"""How polls form a history, and what restarts it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.contract.node import NodeAddress
from services.lifecycle.core.decide import DeletionPolicy, assess_case
from services.lifecycle.core.node_index import DeletionCase, NodeIndex
from services.lifecycle.core.query_history import (
    MAX_GAP,
    QueryHistory,
    QueryResult,
    append_query,
    assess_history,
    extract_query,
)
from tests.builders import NOW
from tests.lifecycle_actors import (
    NEW_UUID,
    make_answering,
    make_foreign_machine,
    make_lost_node,
    make_ready_condition,
    make_unreachable,
)

SPAN = timedelta(minutes=10)
NODE = make_lost_node()
OTHER = make_lost_node("web-2", uid="uid-2", system_uuid="")


def a_look(minute: float, *, attempt: int | None = None, heard: float | None = None) -> QueryResult:
    """A look that began at that minute, heard then on our own clock, too."""
    began = NOW + timedelta(minutes=minute)
    return QueryResult(
        started_at=began,
        ended_at=began + timedelta(seconds=1),
        received_at=60.0 * minute if heard is None else heard,
        attempt=int(minute * 10) + 1 if attempt is None else attempt,
    )


def history_of(*looks: QueryResult) -> QueryHistory:
    history = None
    for look in looks:
        history = append_query(history, "uid-1", look)
    assert history is not None
    return history


def test_three_looks_over_ten_minutes_are_enough():
    judged = assess_history(history_of(a_look(0), a_look(5), a_look(10.1)), min_polls=3, min_span=SPAN)
    assert judged.missing == ()
    assert judged.proven == ("it has been so in 3 polls over 10 min and more, since 2026-03-01T12:00:00Z",)


@pytest.mark.parametrize(
    ("looks", "lack"),
    [
        ((a_look(0),), "1 of 3 polls"),
        ((a_look(0), a_look(9.9)), "2 of 3 polls"),
        ((a_look(0), a_look(5), a_look(10)), "for less than 10 min"),  # the first one took a second
        ((a_look(0), a_look(5), a_look(20, heard=590.0)), "1 of 3 polls"),  # further apart than may be
        ((a_look(0), a_look(5), a_look(10.5, heard=590.0)), "for less than 10 min"),  # by our clock
        ((a_look(0), a_look(0), a_look(10.1)), "1 of 3 polls"),  # the same one, twice
        ((a_look(0), a_look(5, attempt=1), a_look(10.1)), "2 of 3 polls"),  # a success in between
    ],
)
def test_less_is_not(looks: tuple[QueryResult, ...], lack: str):
    assert lack in assess_history(history_of(*looks), min_polls=3, min_span=SPAN).missing[0]


def test_no_look_is_no_history():
    assert assess_history(None, min_polls=3, min_span=SPAN).missing == ("3 polls that show it",)


def test_a_look_that_is_repeated_is_no_news():
    history = history_of(a_look(0), a_look(5))
    for look in (a_look(5), a_look(5, heard=330.0)):
        assert append_query(history, "uid-1", look) == history


@pytest.mark.parametrize(
    "look",
    [
        a_look(3, attempt=52),  # the clock was set back
        a_look(5, attempt=52),
        a_look(3),  # another replica polls, too
        a_look(3, attempt=1),  # the count restarted after a missed success, by such a clock
        a_look(6, attempt=51),
    ],
)
def test_a_look_that_does_not_follow_the_last_one_begins_anew(look: QueryResult):
    history = append_query(history_of(a_look(0), a_look(5)), "uid-1", look)
    assert (history.first, history.last, history.count) == (look, look, 1)


def test_a_look_without_a_count_does_not_continue_one_with_a_count():
    uncounted = [replace(a_look(minute), attempt=None) for minute in (0, 5, 10.1)]
    assert history_of(*uncounted).count == 3
    assert history_of(a_look(0), uncounted[1]).count == 1
    assert history_of(uncounted[0], a_look(5)).count == 1


def test_looks_too_far_apart_say_nothing_of_the_time_between_them():
    late = a_look(5 + MAX_GAP.total_seconds() / 60 + 0.1)
    assert history_of(a_look(0), a_look(5), late).count == 1


def test_another_node_of_that_name_has_another_history():
    assert append_query(history_of(a_look(0), a_look(5)), "uid-2", a_look(6)).count == 1


def test_a_look_at_two_addresses_lasts_from_the_first_to_the_last():
    later = NOW + timedelta(seconds=3)
    both = (make_foreign_machine(queried_at=later), make_foreign_machine(address="fd00::5"))
    found = extract_query(make_unreachable(NODE, foreign_machines=both, attempt=4), 7.0)
    assert found == QueryResult(started_at=NOW, ended_at=later, received_at=7.0, attempt=4)
    assert extract_query(make_unreachable(NODE), 7.0) is None
    assert extract_query(make_answering(NODE), 7.0) is None


# ---- what is heard ends it


def history_in(known: NodeIndex) -> QueryHistory | None:
    return known.build_case(NODE, NOW, 0.0).history


@pytest.fixture
def known() -> NodeIndex:
    """A Node in whose place another machine answered twice."""
    known = NodeIndex()
    known.upsert_node(NODE)
    for minute in (0, 1):
        machine = make_foreign_machine(queried_at=NOW + timedelta(minutes=minute))
        known.upsert_report(
            make_unreachable(NODE, foreign_machines=(machine,), attempt=minute + 1), 60.0 * minute
        )
    history = history_in(known)
    assert history is not None
    assert history.count == 2
    return known


def observe(**changes: Any) -> Callable[[NodeIndex], None]:
    return lambda known: known.upsert_node(make_lost_node(**changes))


def test_a_node_that_another_client_has_written_keeps_its_history(known: NodeIndex):
    observe(labels={"team": "a"})(known)
    assert history_in(known) is not None


@pytest.mark.parametrize(
    "happens",
    {
        "its machine is silent": lambda known: known.upsert_report(make_unreachable(NODE, attempt=3), 120.0),
        "its machine answers": lambda known: known.upsert_report(make_answering(NODE), 120.0),
        "Ready": observe(conditions=(make_ready_condition("True"),)),
        "not Ready by itself": observe(conditions=(make_ready_condition("False"),)),
        "Ready for a moment": observe(conditions=(make_ready_condition(since=NOW),)),
        "moved": observe(addresses=(NodeAddress(type="InternalIP", address="10.0.0.9"),)),
        "another node IP": observe(ip="10.0.0.9"),
        "another UUID": observe(system_uuid=NEW_UUID),
        "another uid": observe(uid="uid-2"),
        "gone": lambda known: known.remove_node("web-1"),
        "enriched gone": lambda known: known.remove_report("web-1"),
        "another stream": NodeIndex.clear,
        "restarted": NodeIndex.forget_histories,
        "another machine has its name": lambda known: known.upsert_report(
            make_answering(OTHER, node_name="web-1"), 90.0
        ),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_contradiction_ends_the_history(known: NodeIndex, happens: tuple[str, Callable[[NodeIndex], None]]):
    happens[1](known)
    assert history_in(known) is None


def test_a_word_about_a_former_node_is_no_look_at_this_one():
    known = NodeIndex()
    known.upsert_node(NODE)
    known.upsert_report(
        make_unreachable(make_lost_node(uid="uid-0"), foreign_machines=(make_foreign_machine(),)), 0.0
    )
    assert history_in(known) is None


def test_what_was_claimed_is_forgotten_with_who_claimed_it(known: NodeIndex):
    other = make_lost_node("web-2", uid="uid-2")
    known.upsert_node(other)
    known.upsert_report(make_answering(other, node_name="odd"), 90.0)
    case = known.build_case(NODE, NOW, 0.0)
    assert (dict(case.machines.nodes_by_uuid), dict(case.machines.nodes_by_machine_name)) == (
        {other.status.node_info.system_uuid: {"web-1", "web-2"}},
        {"new-1": {"web-1"}, "odd": {"web-2"}},
    )
    for name in ("web-1", "web-2"):
        known.remove_node(name)
        known.remove_report(name)
    assert (dict(case.machines.nodes_by_uuid), dict(case.machines.nodes_by_machine_name)) == ({}, {})


def test_a_look_while_the_node_is_ready_is_none():
    known = NodeIndex()
    known.upsert_node(make_lost_node(conditions=(make_ready_condition("True"),)))
    known.upsert_report(make_unreachable(NODE, foreign_machines=(make_foreign_machine(),)), 0.0)
    assert history_in(known) is None


def test_the_history_of_a_former_node_says_nothing_of_this_one():
    history = history_of(a_look(0), a_look(5), a_look(10.1))
    node = make_lost_node(uid="uid-2")
    case = DeletionCase(
        node=node,
        now=NOW + timedelta(minutes=11),
        monotonic_now=606.0,
        report=make_unreachable(node, foreign_machines=(make_foreign_machine(),)),
        history=history,
    )
    assert assess_case(case, DeletionPolicy()).missing == ("3 polls that show it",)
