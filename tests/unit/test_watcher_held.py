"""What the stream holds: replay, own words, loss, another stream in its place."""

from libs.common.bus import Unreadable
from libs.common.events import NodeObserved
from libs.common.subjects import LEADING, OBSERVED_NODE
from services.watcher.held import HeldFlow
from services.watcher.kinds import CSR, NODE
from services.watcher.reign import Reign
from tests.builders import (
    a_message,
    a_node,
    a_snapshot,
    enriched,
    gone,
    leading,
    observed,
    opened,
    some_facts,
)
from tests.turned_clock import TurnedClock


def a_flow(*messages, last: int = 10, **callbacks) -> HeldFlow:
    """Followed and read to its end."""
    flow = HeldFlow(clock=callbacks.pop("clock", TurnedClock()), **callbacks)
    flow.begin(opened(last))
    for message in messages:
        flow.apply(message)
    flow.caught_up()
    return flow


def test_nothing_is_held_before_it_is_followed_to_its_end():
    flow = HeldFlow(clock=TurnedClock())
    assert "not connected" in flow.problems()[0]
    assert flow.generation == 0
    flow.begin(opened())
    assert "still being read" in flow.problems()[0]
    assert flow.generation == 0
    flow.caught_up()
    assert flow.problems() == ()
    assert flow.generation == 1


def test_the_last_word_of_each_node_is_held_and_what_others_made_of_it_is_not():
    node = a_node()
    flow = a_flow(
        a_message(observed(node), sequence=1),
        a_message(enriched(node, some_facts()), sequence=2),
        a_message(gone(a_node("old")), sequence=3),
        a_message(a_snapshot(nodes=1), sequence=4),
    )
    assert flow.of(NODE, node.name) == observed(node)
    assert flow.of(NODE, "old") == gone(a_node("old"))
    assert flow.existing(NODE) == {node.name}
    assert flow.snapshot == a_snapshot(nodes=1)
    assert flow.of(NODE, "new") is None


def test_an_own_word_counts_before_it_comes_back_and_an_older_one_that_comes_later_does_not():
    flow = a_flow()
    mine = observed(a_node(labels={"now": "yes"}), epoch=2)
    flow.said(mine, 20)
    flow.apply(a_message(observed(a_node()), sequence=19))
    assert flow.of(NODE, "web-1") is mine
    flow.apply(a_message(gone(a_node(), epoch=3), sequence=21))
    assert flow.existing(NODE) == set()


def test_what_aged_out_while_we_were_away_is_held_no_more_and_what_we_said_meanwhile_is():
    flow = a_flow(a_message(observed(a_node("a")), sequence=1), a_message(observed(a_node("b")), sequence=2))
    flow.lost("server went away")
    assert flow.generation == 0
    flow.begin(opened(last=12))
    flow.apply(a_message(observed(a_node("b")), sequence=2))
    flow.said(observed(a_node("c")), 13)
    flow.caught_up()
    assert flow.existing(NODE) == {"b", "c"}
    assert flow.generation == 2


def test_what_was_acknowledged_and_then_lost_with_a_disk_is_held_no_more():
    flow = a_flow(a_message(observed(a_node("a")), sequence=1))
    flow.said(observed(a_node("b")), 50)
    flow.begin(opened(last=40))
    flow.apply(a_message(observed(a_node("a")), sequence=1))
    flow.caught_up()
    assert flow.existing(NODE) == {"a"}


def test_another_stream_voids_all_that_was_held_and_says_so():
    voids: list[str] = []
    flow = a_flow(a_message(leading(epoch=4), sequence=1), on_void=lambda: voids.append("void"))
    flow.said(observed(a_node(), epoch=4), 2)
    assert voids == ["void"]
    flow.begin(opened(last=0, incarnation="later"))
    assert voids == ["void", "void"]
    assert (flow.existing(NODE), flow.greatest_epoch, flow.leading) == (set(), 0, None)


def test_a_message_of_the_stream_before_is_no_observation_of_this_one():
    flow = a_flow()
    flow.begin(opened(last=0, incarnation="later"))
    flow.apply(a_message(observed(a_node()), sequence=1))
    flow.said(observed(a_node("own")), 2)
    assert flow.existing(NODE) == set()


def test_every_sequence_is_learned_whatever_the_message_says():
    learned = {}
    strange = Unreadable(reason="no event", payload=b"{")
    a_flow(
        a_message(observed(a_node(), incarnation="earlier"), sequence=5),
        a_message(strange, sequence=6, subject=f"{OBSERVED_NODE}.strange"),
        a_message(leading(epoch=3), sequence=7),
        a_message(leading(epoch=2), sequence=8),
        learned=lambda subject, sequence: learned.update({subject: sequence}),
    )
    assert learned == {f"{OBSERVED_NODE}.web-1": 5, f"{OBSERVED_NODE}.strange": 6, LEADING: 8}


def test_the_greatest_epoch_counts_whoever_bears_it():
    for event in (
        observed(a_node(), epoch=7),
        gone(a_node(), epoch=7),
        a_snapshot(epoch=7),
        leading(epoch=7),
    ):
        flow = a_flow(a_message(observed(a_node("x"), epoch=2), sequence=1), a_message(event, sequence=2))
        assert flow.greatest_epoch == 7


def test_a_former_leader_is_ignored_not_obeyed():
    clock = TurnedClock()
    flow = a_flow(a_message(leading(epoch=3, holder="b"), sequence=1), clock=clock)
    clock.turn(5.0)
    flow.apply(a_message(leading(epoch=2, holder="a"), sequence=2))
    assert flow.leading == leading(epoch=3, holder="b")
    assert flow.seconds_since_leading() == 5.0
    assert HeldFlow(clock=clock).seconds_since_leading() == float("inf")


def test_what_a_former_leader_publishes_behind_a_newer_one_is_void_and_its_names_are_kept():
    void: list[str] = []
    node, ghost = a_node(), a_node("ghost", uid="uid-ghost")
    flow = a_flow(
        a_message(observed(node), sequence=1),
        a_message(leading(epoch=2), sequence=2),
        on_void_message=void.append,
    )
    assert (void, flow.is_void(NODE, node.name)) == ([], False)
    flow.apply(a_message(gone(node), sequence=3))
    flow.apply(a_message(observed(ghost), sequence=4))
    assert void == [f"{OBSERVED_NODE}.{node.name}", f"{OBSERVED_NODE}.ghost"]
    assert set(flow.objects(NODE)) == {(node.name, node.uid), ("ghost", "uid-ghost")}
    assert list(flow.objects(CSR)) == []
    flow.said(gone(node, epoch=2), 5)
    assert (flow.is_void(NODE, node.name), flow.existing(NODE)) == (False, {"ghost"})


def test_a_replay_changes_nothing_about_what_is_void():
    void: list[str] = []
    messages = (
        a_message(observed(a_node()), sequence=1),
        a_message(leading(epoch=2), sequence=2),
        a_message(observed(a_node("late")), sequence=3),
    )
    flow = a_flow(*messages, on_void_message=void.append)
    flow.begin(opened())
    for message in messages:
        flow.apply(message)
    flow.caught_up()
    assert (flow.is_void(NODE, "web-1"), flow.is_void(NODE, "late")) == (False, True)
    assert void == [f"{OBSERVED_NODE}.late"]


def test_an_own_message_that_comes_back_behind_another_leader_is_void():
    flow = a_flow()
    mine = observed(a_node())
    flow.said(mine, 12)
    flow.apply(a_message(leading(epoch=2), sequence=11))
    flow.apply(a_message(mine, sequence=12))
    assert flow.is_void(NODE, "web-1")


# ---- our place among leaders


def a_reign(flow: HeldFlow, transitions: int = 0) -> Reign:
    return Reign(flow, identity="us", lease_transitions=transitions)


def test_a_reign_begins_above_all_that_the_stream_and_the_lease_remember():
    flow = a_flow(a_message(observed(a_node(), epoch=4), sequence=1))
    assert a_reign(flow).next_stamp().epoch == 5
    assert a_reign(flow, transitions=9).next_stamp().epoch == 10


def test_a_reign_keeps_its_epoch_in_a_stream_that_is_made_anew():
    flow = a_flow(a_message(observed(a_node(), epoch=4), sequence=1))
    reign = a_reign(flow)
    reign.next_stamp()
    flow.begin(opened(last=0, incarnation="later"))
    assert reign.leading() is None, "nothing is said to a stream that the stamp is not of"
    flow.caught_up()
    assert reign.leading() is None
    stamp = reign.next_stamp()
    assert (stamp.epoch, stamp.incarnation) == (5, "later")
    assert reign.leading() == leading(incarnation="later", epoch=5, holder="us")


def test_own_words_do_not_outrank_us_and_anothers_of_the_same_or_a_greater_epoch_do():
    flow = a_flow()
    reign = a_reign(flow)
    assert reign.next_stamp().epoch == 1
    flow.apply(a_message(leading(epoch=1, holder="us"), sequence=11))
    assert reign.stands
    assert reign.snapshot(3) == a_snapshot(epoch=1, nodes=3)
    flow.apply(a_message(leading(epoch=1, holder="them"), sequence=12))
    assert reign.outranked
    assert reign.leading() is None
    assert reign.snapshot(3) is None
    assert reign.next_stamp().epoch == 2
    assert reign.stands
    flow.apply(a_message(observed(a_node(), epoch=8), sequence=13))
    assert reign.outranked


def test_a_refusal_and_a_restored_etcd_each_need_another_epoch():
    reign = a_reign(a_flow())
    assert [reign.next_stamp().epoch, reign.next_stamp().epoch] == [1, 1]
    reign.refused()
    assert reign.outranked
    assert reign.next_stamp().epoch == 2
    reign.rewound()
    assert (reign.outranked, reign.stands) == (False, False)
    assert reign.next_stamp().epoch == 3


def test_observations_are_kept_as_the_very_object_that_was_published():
    flow = a_flow()
    mine = observed(a_node())
    flow.said(mine, 11)
    flow.apply(a_message(observed(a_node()), sequence=11))
    held = flow.of(NODE, "web-1")
    assert isinstance(held, NodeObserved)
    assert held is mine
