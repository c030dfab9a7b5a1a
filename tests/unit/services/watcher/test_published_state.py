"""What the stream holds: replay, own words, loss, another stream in its place."""

import pytest

from libs.common.bus.protocol import UnreadablePayload
from libs.common.contract.subjects import LEADING, OBSERVED_NODE
from services.watcher.core.kinds import CSR, NODE
from services.watcher.core.leader_epoch import LeaderEpoch
from services.watcher.core.published_state import PublishedState
from tests import builders
from tests.clocks import ManualClock


def a_flow(*messages, last: int = 10, **callbacks) -> PublishedState:
    """Followed and read to its end."""
    flow = PublishedState(clock=callbacks.pop("clock", ManualClock()), **callbacks)
    flow.start_replay(builders.make_position(last))
    for message in messages:
        flow.apply(message)
    flow.finish_replay()
    return flow


def test_nothing_is_held_before_it_is_followed_to_its_end_and_each_change_of_that_is_told():
    changes: list[int] = []
    flow = PublishedState(clock=ManualClock(), on_change=lambda: changes.append(flow.follow_generation))
    assert "not connected" in flow.problems()[0]
    assert flow.follow_generation == 0
    flow.start_replay(builders.make_position())
    assert "still replaying" in flow.problems()[0]
    flow.finish_replay()
    assert flow.problems() == ()
    flow.mark_disconnected("server went away")
    assert "server went away" in flow.problems()[0]
    assert changes == [0, 1, 0]


def test_the_last_word_of_each_node_is_held_and_what_others_made_of_it_is_not():
    node = builders.make_node()
    flow = a_flow(
        builders.make_message(builders.make_node_observed(node), sequence=1),
        builders.make_message(builders.make_node_enriched(node, builders.make_facts()), sequence=2),
        builders.make_message(builders.make_node_gone(builders.make_node("old")), sequence=3),
        builders.make_message(builders.make_snapshot(nodes=1), sequence=4),
    )
    assert flow.get(NODE, node.name) == builders.make_node_observed(node)
    assert flow.get(NODE, "old") == builders.make_node_gone(builders.make_node("old"))
    assert flow.names(NODE) == {node.name}
    assert flow.get(NODE, "new") is None
    assert flow.subject_count == 3


def test_an_own_word_counts_before_it_comes_back_and_an_older_one_that_comes_later_does_not():
    flow = a_flow()
    mine = builders.make_node_observed(builders.make_node(labels={"now": "yes"}), epoch=2)
    flow.record_published(mine, 20)
    flow.apply(builders.make_message(builders.make_node_observed(builders.make_node()), sequence=19))
    assert flow.get(NODE, "web-1") is mine
    flow.apply(builders.make_message(builders.make_node_gone(builders.make_node(), epoch=3), sequence=21))
    assert flow.names(NODE) == set()


def test_what_aged_out_while_we_were_away_is_held_no_more_and_what_we_said_meanwhile_is():
    flow = a_flow(
        builders.make_message(builders.make_node_observed(builders.make_node("a")), sequence=1),
        builders.make_message(builders.make_node_observed(builders.make_node("b")), sequence=2),
    )
    flow.mark_disconnected("server went away")
    assert flow.follow_generation == 0
    flow.start_replay(builders.make_position(last=12))
    flow.apply(builders.make_message(builders.make_node_observed(builders.make_node("b")), sequence=2))
    flow.record_published(builders.make_node_observed(builders.make_node("c")), 13)
    flow.finish_replay()
    assert flow.names(NODE) == {"b", "c"}
    assert flow.follow_generation == 2


@pytest.mark.parametrize("is_delivered", [True, False])
@pytest.mark.parametrize("last", [40, 60], ids=["lost", "lost, and others have used its sequence since"])
def test_what_was_acknowledged_and_then_lost_with_a_disk_is_held_no_more(is_delivered: bool, last: int):
    node = builders.make_node()
    kept = builders.make_message(builders.make_node_observed(node), sequence=1)
    flow = a_flow(kept)
    flow.record_published(builders.make_node_gone(node), 50)
    if is_delivered:
        flow.apply(builders.make_message(builders.make_node_gone(node), sequence=50))
    flow.start_replay(builders.make_position(last=last))
    flow.apply(kept)
    flow.finish_replay()
    assert flow.names(NODE) == {node.name}


def test_a_lost_message_does_not_stand_for_the_one_that_has_its_sequence_now():
    node = builders.make_node()
    flow = a_flow(builders.make_message(builders.make_node_gone(node), sequence=5))
    flow.start_replay(builders.make_position())
    flow.apply(builders.make_message(builders.make_node_observed(node), sequence=5))
    flow.finish_replay()
    assert flow.names(NODE) == {node.name}


def test_a_late_acknowledgement_during_a_replay_hides_no_later_message():
    node = builders.make_node()
    gone = builders.make_message(builders.make_node_gone(node), sequence=5)
    flow = a_flow(gone)
    flow.start_replay(builders.make_position())
    flow.apply(gone)
    flow.record_published(builders.make_node_observed(node), 4)
    flow.finish_replay()
    assert flow.names(NODE) == set()
    assert not flow._undelivered


def test_another_stream_voids_all_that_was_held_and_says_so():
    voids: list[str] = []
    flow = a_flow(
        builders.make_message(builders.make_leading(epoch=4), sequence=1),
        on_stream_replaced=lambda: voids.append("void"),
    )
    flow.record_published(builders.make_node_observed(builders.make_node(), epoch=4), 2)
    assert voids == ["void"]
    flow.start_replay(builders.make_position(last=0, stream_id="later"))
    assert voids == ["void", "void"]
    assert (flow.names(NODE), flow.greatest_epoch, flow.leader_heartbeat) == (set(), 0, None)


def test_a_message_of_the_stream_before_is_no_observation_of_this_one():
    flow = a_flow()
    flow.start_replay(builders.make_position(last=0, stream_id="later"))
    flow.apply(builders.make_message(builders.make_node_observed(builders.make_node()), sequence=1))
    flow.record_published(builders.make_node_observed(builders.make_node("own")), 2)
    assert flow.get(NODE, "web-1") is None
    assert flow.names(NODE) == {"web-1"}, "followers do not know whether it exists"
    assert not flow._undelivered


def test_a_delivered_message_shares_the_object_that_was_published_and_is_kept_once():
    flow = a_flow()
    mine = builders.make_node_observed(builders.make_node())
    flow.record_published(mine, 11)
    for _ in range(2):  # the second one is a replay
        flow.apply(builders.make_message(builders.make_node_observed(builders.make_node()), sequence=11))
        assert flow.get(NODE, "web-1") is mine
        assert not flow._undelivered
        flow.start_replay(builders.make_position(last=11))


def test_a_message_that_is_delivered_before_its_acknowledgement_shares_the_object_too():
    flow = a_flow()
    mine = builders.make_node_observed(builders.make_node())
    flow.apply(builders.make_message(builders.make_node_observed(builders.make_node()), sequence=11))
    flow.record_published(mine, 11)
    assert flow.get(NODE, "web-1") is mine
    other = builders.make_node_observed(builders.make_node(labels={"written": "by others"}))
    flow.record_published(other, 11)  # not what the stream has
    assert flow.get(NODE, "web-1") is mine
    assert not flow._undelivered


def test_a_purge_is_noticed_once_and_the_nodes_are_kept_until_their_deletion_is_published():
    node, later = builders.make_node(), builders.make_node("later")
    flow = a_flow(
        builders.make_message(builders.make_node_observed(node), sequence=1),
        builders.make_message(builders.make_node_observed(later), sequence=7),
    )
    assert [flow.has_lost_nodes(first) for first in (0, 1, 5, 5, 7, 8, 8)] == [
        *(False, False, True, False, False, True, False)
    ]
    assert flow.names(NODE) == {node.name, later.name}
    flow.start_replay(builders.make_position(last=2))  # cut, so sequences come again
    flow.apply(builders.make_message(builders.make_node_observed(node), sequence=2))
    flow.finish_replay()
    assert flow.has_lost_nodes(3)


def test_every_sequence_is_learned_whatever_the_message_says():
    learned = {}
    strange = UnreadablePayload(reason="no event", payload=b"{")
    a_flow(
        builders.make_message(
            builders.make_node_observed(builders.make_node(), stream_id="earlier"), sequence=5
        ),
        builders.make_message(strange, sequence=6, subject=f"{OBSERVED_NODE}.strange"),
        builders.make_message(builders.make_leading(epoch=3), sequence=7),
        builders.make_message(builders.make_leading(epoch=2), sequence=8),
        on_sequence=lambda subject, sequence: learned.update({subject: sequence}),
    )
    assert learned == {f"{OBSERVED_NODE}.web-1": 5, f"{OBSERVED_NODE}.strange": 6, LEADING: 8}


def test_a_former_leader_is_ignored_not_obeyed():
    clock = ManualClock()
    flow = a_flow(builders.make_message(builders.make_leading(epoch=3, holder="b"), sequence=1), clock=clock)
    clock.advance(5.0)
    flow.apply(builders.make_message(builders.make_leading(epoch=2, holder="a"), sequence=2))
    assert flow.leader_heartbeat == builders.make_leading(epoch=3, holder="b")
    assert flow.seconds_since_leader_heartbeat() == 5.0
    assert PublishedState(clock=clock).seconds_since_leader_heartbeat() == float("inf")


def test_what_a_former_leader_publishes_behind_a_newer_one_is_void_and_its_names_are_kept():
    void: list[str] = []
    node, ghost = builders.make_node(), builders.make_node("ghost", uid="uid-ghost")
    flow = a_flow(
        builders.make_message(builders.make_node_observed(node), sequence=1),
        builders.make_message(builders.make_leading(epoch=2), sequence=2),
        on_fenced_message=void.append,
    )
    assert (void, flow.is_fenced(NODE, node.name)) == ([], False)
    flow.apply(builders.make_message(builders.make_node_gone(node), sequence=3))
    flow.apply(builders.make_message(builders.make_node_observed(ghost), sequence=4))
    assert void == [f"{OBSERVED_NODE}.{node.name}", f"{OBSERVED_NODE}.ghost"]
    assert flow.names(NODE) == {node.name, "ghost"}
    assert flow.names(CSR) == set()
    mine = builders.make_node_gone(node, epoch=2)
    flow.record_published(mine, 5)
    assert (flow.is_fenced(NODE, node.name), flow.names(NODE)) == (False, {"ghost"})
    assert flow.get(NODE, node.name) is mine


def test_a_replay_changes_nothing_about_what_is_void():
    void: list[str] = []
    messages = (
        builders.make_message(builders.make_node_observed(builders.make_node()), sequence=1),
        builders.make_message(builders.make_leading(epoch=2), sequence=2),
        builders.make_message(builders.make_node_observed(builders.make_node("late")), sequence=3),
    )
    flow = a_flow(*messages, on_fenced_message=void.append)
    flow.start_replay(builders.make_position())
    for message in messages:
        flow.apply(message)
    flow.finish_replay()
    assert (flow.is_fenced(NODE, "web-1"), flow.is_fenced(NODE, "late")) == (False, True)
    assert set(void) == {f"{OBSERVED_NODE}.late"}


def test_an_own_message_that_comes_back_behind_another_leader_is_void():
    flow = a_flow()
    mine = builders.make_node_observed(builders.make_node())
    flow.record_published(mine, 12)
    flow.apply(builders.make_message(builders.make_leading(epoch=2), sequence=11))
    flow.apply(builders.make_message(mine, sequence=12))
    assert flow.is_fenced(NODE, "web-1")


def test_an_own_message_that_one_for_another_stream_replaces_is_void_until_it_is_published_again():
    void: list[str] = []
    node = builders.make_node()
    flow = a_flow(
        builders.make_message(builders.make_node_observed(node), sequence=1), on_fenced_message=void.append
    )
    foreign = builders.make_node_observed(builders.make_node(labels={"old": "yes"}), stream_id="earlier")
    flow.apply(builders.make_message(foreign, sequence=2))
    assert (void, flow.is_fenced(NODE, node.name)) == ([f"{OBSERVED_NODE}.{node.name}"], True)
    assert flow.get(NODE, node.name) == builders.make_node_observed(node)
    flow.record_published(builders.make_node_observed(node), 3)
    assert not flow.is_fenced(NODE, node.name)


def test_an_own_message_whose_acknowledgement_comes_after_its_replacement_is_void():
    void: list[str] = []
    node = builders.make_node()
    flow = a_flow(on_fenced_message=void.append)
    foreign = builders.make_node_observed(node, stream_id="earlier")
    flow.apply(builders.make_message(foreign, sequence=12))
    flow.record_published(builders.make_node_observed(node), 11)
    assert (void, flow.is_fenced(NODE, node.name)) == ([f"{OBSERVED_NODE}.{node.name}"], True)
    assert flow.names(NODE) == {node.name}, "followers may have received it"


def test_an_unreadable_message_is_void_and_its_name_is_kept():
    void: list[str] = []
    broken = UnreadablePayload(reason="a newer version", payload=b"x")
    subject = f"{OBSERVED_NODE}.ghost"
    flow = a_flow(builders.make_message(broken, subject=subject), on_fenced_message=void.append)
    assert (void, flow.names(NODE), flow.get(NODE, "ghost")) == ([subject], {"ghost"}, None)
    flow.record_published(builders.make_node_gone(builders.make_node("ghost")), 2)
    assert (flow.is_fenced(NODE, "ghost"), flow.names(NODE)) == (False, set())


# ---- our place among leaders


def a_reign(flow: PublishedState, transitions: int = 0) -> LeaderEpoch:
    epoch = LeaderEpoch(flow, identity="us", has_lease=True)
    epoch.begin_term(transitions)
    return epoch


def test_a_reign_begins_above_all_that_the_stream_and_the_lease_remember():
    flow = a_flow(
        builders.make_message(builders.make_node_observed(builders.make_node(), epoch=4), sequence=1)
    )
    assert a_reign(flow).next_token().epoch == 5
    assert a_reign(flow, transitions=9).next_token().epoch == 10


def test_no_epoch_is_used_again_that_the_stream_has_lost():
    flow = a_flow(builders.make_message(builders.make_leading(epoch=8), sequence=10))
    flow.start_replay(builders.make_position(last=5))
    flow.apply(builders.make_message(builders.make_leading(epoch=7), sequence=5))
    flow.finish_replay()
    assert a_reign(flow).next_token().epoch == 9


def test_a_reign_keeps_its_epoch_in_a_stream_that_is_made_anew():
    flow = a_flow(
        builders.make_message(builders.make_node_observed(builders.make_node(), epoch=4), sequence=1)
    )
    reign = a_reign(flow)
    reign.next_token()
    flow.start_replay(builders.make_position(last=0, stream_id="later"))
    assert reign.build_heartbeat() is None, "nothing is published to a stream with another ID"
    flow.finish_replay()
    assert reign.build_heartbeat() is None
    stamp = reign.next_token()
    assert (stamp.epoch, stamp.stream_id) == (5, "later")
    assert reign.build_heartbeat() == builders.make_leading(stream_id="later", epoch=5, holder="us")


def test_own_words_do_not_outrank_us_and_anothers_of_the_same_or_a_greater_epoch_do():
    flow = a_flow()
    reign = a_reign(flow)
    assert reign.next_token().epoch == 1
    flow.apply(builders.make_message(builders.make_leading(epoch=1, holder="us"), sequence=11))
    assert reign.is_current
    assert reign.build_snapshot({"nodes": 3}, ()) == builders.make_snapshot(epoch=1, nodes=3)
    flow.apply(builders.make_message(builders.make_leading(epoch=1, holder="them"), sequence=12))
    assert reign.is_deposed
    assert reign.build_heartbeat() is None
    assert reign.build_snapshot({"nodes": 3}, ()) is None
    assert reign.next_token().epoch == 2
    assert reign.is_current
    flow.apply(builders.make_message(builders.make_node_observed(builders.make_node(), epoch=8), sequence=13))
    assert reign.is_deposed


def test_a_refusal_and_a_restored_etcd_each_need_another_epoch():
    reign = a_reign(a_flow())
    assert [reign.next_token().epoch, reign.next_token().epoch] == [1, 1]
    reign.mark_rejected()
    assert reign.is_deposed
    assert reign.next_token().epoch == 2
    reign.mark_rewound()
    assert (reign.is_deposed, reign.is_current) == (False, False)
    assert reign.next_token().epoch == 3
