"""What is news of a Node: against what the stream holds, in the order of epochs and resourceVersions."""

from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.stream_limits import HEADROOM_BYTES, STREAM_STEP_BYTES
from libs.common.contract.events import NodeGone, NodeObserved, ObservationOrder, ObservedNode
from libs.common.contract.ordering import Recency, compare_events
from services.watcher.core.kinds import CSR, NODE
from services.watcher.core.publish_decision import (
    BYTES_PER_DELETED,
    FENCED_REASON,
    ConfirmAbsence,
    FencingToken,
    Publish,
    Skip,
    compute_next_epoch,
    decide_absent,
    decide_present,
    estimate_stream_bytes,
    select_due,
)
from tests.builders import STREAM_ID, make_node, make_node_gone, make_node_observed

LATER = datetime(2026, 3, 1, 13, 0, tzinfo=UTC)
STAMP = FencingToken(stream_id=STREAM_ID, epoch=3)


def look(node, held=None, *, anyway=False):
    return decide_present(NODE, node, held, STAMP, now=LATER, force=anyway)


def look_for_missing(held, *, as_of, **options):
    return decide_absent(NODE, "old", held, STAMP, last_resource_version=as_of, now=LATER, **options)


def test_a_node_that_the_stream_does_not_hold_is_said_in_the_order_of_its_own_version():
    node = make_node(resource_version="812")
    assert look(node) == Publish(
        event=NodeObserved(
            stream_id=STREAM_ID,
            order=ObservationOrder(epoch=3, resource_version=812),
            node=node,
            observed_at=LATER,
        ),
        reason="new to the stream",
    )


@pytest.mark.parametrize(
    ("node", "said", "anyway", "reason"),
    [
        (
            make_node(resource_version="101", labels={"zone": "b"}),
            make_node_observed(make_node(resource_version="100"), epoch=3),
            False,
            "changed",
        ),
        (make_node(), make_node_observed(make_node(), epoch=3), True, "republished"),
        (
            make_node(resource_version="101"),
            make_node_gone(make_node(), epoch=2, resource_version=100),
            False,
            "exists again",
        ),
    ],
)
def test_what_differs_is_due_or_exists_again_is_said(node, said, anyway, reason):
    found = look(node, said, anyway=anyway)
    assert isinstance(found, Publish)
    assert found.reason == reason


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (make_node("a b"), "'a b'"),
        (make_node("a..b"), "'a..b'"),
        (make_node("web->"), "'web->'"),
        (make_node("web\x1b[2J"), "'web\\x1b[2J'"),
        (make_node(resource_version=""), "''"),
        (make_node(resource_version="0x10"), "0x10"),
    ],
)
def test_a_node_without_a_subject_or_a_place_in_the_order_is_skipped_and_logged(node, word):
    found = look(node, anyway=True)
    assert isinstance(found, Skip)
    assert word in found.reason


def test_a_node_that_is_missing_from_the_cluster_is_said_to_be_gone_as_of_what_we_have_heard():
    said = make_node_observed(make_node("old", uid="u-9", resource_version="100"), epoch=2)
    found = look_for_missing(said, as_of=450)
    assert found == Publish(
        event=NodeGone(
            stream_id=STREAM_ID,
            order=ObservationOrder(epoch=3, resource_version=450),
            name="old",
            uid="u-9",
            observed_at=LATER,
        ),
        reason="deleted",
    )


def test_a_node_is_said_to_be_gone_once():
    for held in (None, make_node_gone(make_node(), epoch=3)):
        assert look_for_missing(held, as_of=450) is None


def test_a_void_message_is_never_unchanged():
    node = make_node(uid="uid-1", resource_version="400")
    assert decide_present(
        NODE, node, make_node_observed(node, epoch=2), STAMP, now=LATER, is_fenced=True
    ) == Publish(
        event=NodeObserved(
            stream_id=STREAM_ID,
            order=ObservationOrder(epoch=3, resource_version=400),
            node=node,
            observed_at=LATER,
        ),
        reason=FENCED_REASON,
    )
    said = make_node_gone(node, epoch=2, resource_version=440)
    found = look_for_missing(said, as_of=450, is_fenced=True)
    assert isinstance(found, Publish)
    assert found.event == NodeGone(
        stream_id=STREAM_ID,
        order=ObservationOrder(epoch=3, resource_version=450),
        name=node.name,
        uid="uid-1",
        observed_at=LATER,
    )
    unheard = look_for_missing(said, as_of=1, is_fenced=True)
    assert isinstance(unheard, ConfirmAbsence)


def test_an_observation_from_after_we_looked_is_not_said_to_be_gone():
    for said in (
        make_node_observed(make_node(resource_version="451"), epoch=3),
        make_node_observed(make_node(), epoch=4),
    ):
        assert look_for_missing(said, as_of=450) is None


def test_a_newer_state_that_a_former_leader_saw_is_said_to_be_gone_only_when_kubernetes_confirms_it():
    said = make_node_observed(make_node(resource_version="451"), epoch=2)
    assert isinstance(look_for_missing(said, as_of=450), ConfirmAbsence)
    found = look_for_missing(said, as_of=450, is_confirmed=True)
    assert isinstance(found, Publish)
    assert found.event.order == ObservationOrder(epoch=3, resource_version=450)


versions = st.integers(1, 50)
observations: st.SearchStrategy[ObservedNode | None] = st.none() | st.builds(
    lambda epoch, version, uid, is_gone: (
        make_node_gone(make_node(uid=uid), epoch=epoch, resource_version=version)
        if is_gone
        else make_node_observed(make_node(uid=uid, resource_version=str(version)), epoch=epoch)
    ),
    st.integers(1, 5),
    versions,
    st.sampled_from(["u1", "u2"]),
    st.booleans(),
)


@given(observations, versions, st.sampled_from(["u1", "u2"]), st.booleans())
def test_what_is_said_never_loses_against_what_the_stream_holds(held, version, uid, anyway):
    found = look(make_node(uid=uid, resource_version=str(version)), held, anyway=anyway)
    if isinstance(found, Publish):
        assert compare_events(found.event, held, STREAM_ID) is not Recency.OLDER


@given(observations, versions, st.sampled_from(["u1", "u2"]))
def test_saying_it_settles_it(held, version, uid):
    node = make_node(uid=uid, resource_version=str(version))
    found = look(node, held)
    if isinstance(found, Publish):
        assert look(node, found.event) is None
    if found is None:
        assert held is not None
        assert held.order > ObservationOrder(epoch=3, resource_version=version) or (
            isinstance(held, NodeObserved)
            and msgspec.structs.replace(held.node.metadata, resource_version="")
            == msgspec.structs.replace(node.metadata, resource_version="")
        )


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_new_leader_is_above_all_that_anybody_remembers(heard, transitions):
    epoch = compute_next_epoch(highest_seen=heard, lease_transitions=transitions)
    assert epoch > heard
    assert epoch > transitions


@given(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(0, 500_000))
def test_the_stream_grows_in_steps_with_room_for_every_object_and_what_is_left_of_it(
    nodes, requests, gone_names
):
    room = estimate_stream_bytes([(NODE, nodes), (CSR, requests)], nodes + requests + gone_names)
    needed = nodes * NODE.stream_bytes + requests * CSR.stream_bytes + gone_names * BYTES_PER_DELETED
    assert room >= max(needed, 64_000_000)
    assert (room + HEADROOM_BYTES) % STREAM_STEP_BYTES == 0
    assert room < needed + 2 * STREAM_STEP_BYTES


# ---- the resync, which spreads objects evenly over its period


@given(
    st.lists(st.text(), max_size=50, unique=True), st.lists(st.floats(0, 1, exclude_max=True), max_size=30)
)
def test_each_uid_has_exactly_one_turn_however_the_period_is_cut(uids: list[str], cuts: list[float]):
    steps = [0.0, *sorted(cuts), 1.0]
    nodes = [make_node(uid=uid) for uid in uids]
    turns = [each for since, until in pairwise(steps) for each in select_due(nodes, since=since, until=until)]
    assert sorted(each.uid for each in turns) == sorted(uids)


def test_a_thousand_nodes_are_spread_so_that_no_second_of_five_minutes_has_a_crowd():
    nodes = [make_node(uid=f"6f1c0a5e-3b1d-4f0a-9c55-{n:012x}") for n in range(1000)]
    crowds = [len(select_due(nodes, since=s / 300, until=(s + 1) / 300)) for s in range(300)]
    assert sum(crowds) == 1000
    assert max(crowds) <= 15  # 3.3 on average


def test_a_name_of_which_nobody_knows_anything_is_said_to_be_gone_once_kubernetes_confirms_it():
    assert isinstance(look_for_missing(None, as_of=450, is_fenced=True), ConfirmAbsence)
    found = look_for_missing(None, as_of=460, is_fenced=True, is_confirmed=True)
    assert found == Publish(
        event=NodeGone(
            stream_id=STREAM_ID,
            order=ObservationOrder(epoch=3, resource_version=460),
            name="old",
            uid="",
            observed_at=LATER,
        ),
        reason=FENCED_REASON,
    )
