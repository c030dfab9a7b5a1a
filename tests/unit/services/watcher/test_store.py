"""The watcher's picture of the cluster, stalled queues, and its flags."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.protocol import ConsumerStats
from libs.common.contract.node import Node, NodeCondition, NodeSpec, trim_node
from libs.common.observability import metrics
from services.watcher.core.kinds import NODE
from services.watcher.core.stall_detector import StallDetector, filter_relevant, select_expected_durables
from services.watcher.core.store import Store
from services.watcher.settings import WatcherSettings
from tests.builders import make_node
from tests.bus_actors import run_during, wait_until
from tests.watcher_actors import ScriptedNodes, make_informer


def a_store(*nodes, version: str = "100") -> Store[Node]:
    store = Store(NODE)
    store.replace(nodes, (), version)
    return store


def test_before_a_list_nobody_is_missing():
    assert not Store(NODE).has_synced
    assert a_store().has_synced


def test_only_what_we_read_is_news():
    store = a_store(make_node(resource_version="100"))
    foreign = NodeCondition(type="DiskPressure", status="True")
    assert store.put(trim_node(make_node(resource_version="101", conditions=(foreign,)))) == set()
    assert store.put(make_node(resource_version="102", labels={"a": "b"})) == {"web-1"}
    assert store.put(make_node("other", resource_version="103")) == {"other"}
    assert store.last_resource_version == 103
    node = store.get("web-1")
    assert node is not None
    assert node.metadata.resource_version == "102"


def test_a_deletion_and_a_bookmark_move_the_time_as_of_which_somebody_is_missing():
    store = a_store(make_node("a"), make_node("b"))
    store.remove("a", "150")
    assert (store.get("a"), store.last_resource_version) == (None, 150)
    store.advance_version("160")
    store.advance_version("140")
    assert store.last_resource_version == 160


def test_a_list_of_an_earlier_version_turns_the_time_back():
    store = a_store(version="500")
    store.replace((), (), "200")
    assert store.last_resource_version == 200


def test_an_unreadable_node_is_neither_there_nor_missing_until_it_can_be_read_or_is_not_listed():
    store = a_store(make_node("a"))
    assert [store.mark_unreadable("a", reason) for reason in ("x", "x", "y")] == [True, False, True]
    assert store.get("a") is None
    assert store.is_unreadable("a")
    assert store.put(make_node("a"))
    assert not store.is_unreadable("a")
    assert store.mark_unreadable("a", "y"), "it could be read since"
    store.replace((), ("a",), "200")
    assert store.is_unreadable("a")
    assert not store.mark_unreadable("a", "y"), "each list has it"
    store.replace((), (), "300")
    assert not store.is_unreadable("a")


names = st.sampled_from(["a", "b", "c"])
happenings = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), names, st.sampled_from(["x", "y"])), max_size=20
)


@given(happenings, happenings)
def test_a_list_leads_to_the_same_picture_as_the_changes_that_it_stands_for(first, then):
    watched, truth = a_store(), {}
    for version, (kind, name, label) in enumerate([*first, *then], start=101):
        node = make_node(name, labels={"l": label}, resource_version=str(version))
        if kind == "put":
            watched.put(node)
            truth[name] = node
        elif truth.pop(name, None) is not None:
            watched.remove(name, str(version))
    listed = a_store()
    for version, (kind, name, label) in enumerate(first, start=101):
        if kind == "put":
            listed.put(make_node(name, labels={"l": label}, resource_version=str(version)))
        else:
            listed.remove(name, str(version))
    before = {name: listed.get(name) for name in listed.names()}
    news = listed.replace(truth.values(), (), "999")
    assert {n: listed.get(n) for n in listed.names()} == {n: watched.get(n) for n in watched.names()}
    different = {n for n in before.keys() | truth.keys() if before.get(n) != listed.get(n)}
    assert news == different


def test_a_list_of_equal_objects_keeps_the_present_ones():
    store = a_store(make_node("web-1"), make_node("web-2"))
    before = {each.name: each for each in store}
    listed = [make_node("web-1"), make_node("web-2", labels={"zone": "b"})]
    assert store.replace(listed, (), "101") == {"web-2"}
    assert store.get("web-1") is before["web-1"]
    assert store.get("web-2") == listed[1]


def test_a_later_version_of_an_equal_object_keeps_all_its_present_parts():
    store = a_store(make_node("web-1", labels={"zone": "b"}))
    before = store.get("web-1")
    assert before is not None
    changed = make_node("web-1", labels={"zone": "b"}, resource_version="101")
    assert store.put(changed) == set()
    after = store.get("web-1")
    assert after == changed
    assert after.labels is before.labels
    assert after.status is before.status


def test_a_changed_object_keeps_the_present_spec_if_it_is_equal():
    store = a_store(make_node("web-1"))
    before = store.get("web-1")
    assert before is not None
    for changed in (
        make_node("web-1", labels={"zone": "b"}),
        msgspec.structs.replace(before, spec=NodeSpec(provider_id="talos://1")),
    ):
        store.put(changed)
        after = store.get("web-1")
        assert after == changed
        assert (after.spec is before.spec) == (after.spec == before.spec)


# ---- the informer


def last_heard() -> float:
    value = metrics.REGISTRY.get_sample_value(
        "talosccm_watch_last_heard_timestamp_seconds", {"resource": "nodes"}
    )
    assert value is not None
    return value


async def test_in_a_quiet_cluster_it_can_be_seen_that_the_api_server_is_still_heard():
    script, store, now = ScriptedNodes(), Store(NODE), datetime(2026, 1, 1, tzinfo=UTC)
    watch = make_informer(NODE, script.source, store, now=lambda: now)
    script.freshness = None
    async with run_during(watch.run()):
        await wait_until(lambda: store.has_synced)
        assert last_heard() == 0.0
        script.freshness = 0.0
        assert last_heard() == now.timestamp()
        now += timedelta(hours=2)  # nothing happens, but each watch is followed by another one
        script.freshness = 20.0
        assert last_heard() == now.timestamp() - 20.0


# ---- stalled queues


def a_queue(
    name: str = "labeler-nodes",
    *,
    pending: int = 0,
    unacknowledged: int = 0,
    delivered: int = 0,
    waiting: int = 0,
) -> ConsumerStats:
    return ConsumerStats(
        name=name,
        pending=pending,
        unacknowledged=unacknowledged,
        redelivered=0,
        waiting=waiting,
        delivered=delivered,
    )


def stalled(*looks: ConsumerStats) -> list[float]:
    """After each look, ten seconds apart."""
    stalls = StallDetector()
    return [stalls.measure_stalls([look], 10.0 * number)[look.name] for number, look in enumerate(looks)]


def test_a_queue_that_is_empty_never_stalls():
    assert stalled(a_queue(), a_queue(), a_queue()) == [0, 0, 0]


def test_work_that_nobody_takes_stalls_from_the_last_look_that_saw_none():
    waiting = a_queue(pending=1)
    assert stalled(a_queue(), waiting, waiting) == [0, 10, 20]
    assert stalled(waiting, a_queue(pending=7), waiting) == [0, 10, 20]


@pytest.mark.parametrize(
    "moved",
    [
        a_queue(pending=4, unacknowledged=2, delivered=4),
        a_queue(pending=9, unacknowledged=2, delivered=4),
        a_queue(pending=5, unacknowledged=1, delivered=3),
        a_queue(pending=5, unacknowledged=2, delivered=0),
    ],
    ids=["taken", "taken-and-more-came", "settled", "recreated"],
)
def test_a_queue_that_moves_does_not_stall_however_much_waits(moved: ConsumerStats):
    before = a_queue(pending=5, unacknowledged=2, delivered=3)
    assert stalled(before, before, moved, moved) == [0, 10, 0, 10]


def test_a_handler_that_never_ends_stalls_and_a_retry_that_is_tried_does_not():
    assert stalled(*[a_queue(unacknowledged=1, delivered=1)] * 3) == [0, 10, 20]
    assert stalled(*(a_queue(unacknowledged=1, delivered=n) for n in range(3))) == [0, 0, 0]


def test_a_service_that_is_not_installed_stalls_nothing():
    queues = [a_queue("labeler-nodes", pending=1), a_queue("ipam-nodes", pending=1)]
    expected = select_expected_durables(("*",))
    assert expected == {"labeler-nodes", "csr-requests"}
    assert [queue.name for queue in filter_relevant(queues, expected)] == ["labeler-nodes"]
    for seen in (a_queue("ipam-nodes", waiting=1), a_queue("ipam-nodes", delivered=1)):
        assert filter_relevant([seen], expected) == (seen,)


# ---- flags


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lease_duration_seconds": 10.0}, "two could lead at once"),
        ({"retry_period_seconds": 9.0}, "no second attempt"),
        ({"lease_duration_seconds": 15.5}, "whole seconds"),
    ],
)
def test_contradictions_are_reported_by_the_names_of_their_flags(fields, words):
    (problem,) = WatcherSettings(**fields).problems()
    assert words in problem
    assert "--leader-elect" in problem


def test_observing_only_takes_no_lease():
    assert WatcherSettings().uses_lease
    assert not WatcherSettings(observe_only=True).uses_lease
    assert not WatcherSettings(leader_elect=False).uses_lease


@pytest.mark.parametrize(("configured", "expected"), [(300.0, 300.0), (1200.0, 1200.0), (7200.0, 1200.0)])
def test_every_object_is_published_again_before_the_snapshot_expires(configured: float, expected: float):
    assert WatcherSettings(resync_seconds=configured).republish_seconds == expected
