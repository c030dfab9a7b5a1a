"""An empty table is not a complete one."""

from datetime import timedelta
from math import isnan

import msgspec
import pytest

from libs.common.bus.protocol import Message, StreamPosition, UnreadablePayload
from libs.common.bus.stream_cache import StreamCache
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import Event
from libs.common.contract.subjects import FLOW, LEADING, OBSERVED_NODE
from tests.builders import (
    make_csr_observed,
    make_leading,
    make_message,
    make_node,
    make_node_gone,
    make_node_observed,
    make_position,
    make_request,
    make_snapshot,
)
from tests.clocks import ManualClock

POSITION = make_position()


def a_table(**callbacks) -> tuple[StreamCache, ManualClock]:
    clock = ManualClock()
    return StreamCache(clock=clock, **callbacks), clock


def replaying(**callbacks) -> StreamCache:
    table, _ = a_table(**callbacks)
    table.start_replay(make_position())
    return table


def replay(table: StreamCache, *messages: Message, position: StreamPosition = POSITION) -> None:
    """Read the stream up to its end: it has these messages."""
    table.start_replay(position)
    for message in messages:
        table.apply(message)
    table.finish_replay()


def replayed(*messages: Message, **callbacks) -> StreamCache:
    table, _ = a_table(**callbacks)
    replay(table, *messages)
    return table


def test_a_table_is_complete_only_when_read_to_the_end_and_a_snapshot_of_this_stream_is_in_it():
    table, _ = a_table()
    assert "not connected" in table.problems()[0]
    table.start_replay(make_position())
    table.apply(make_message(make_snapshot()))
    assert "still replaying" in table.problems()[0]
    table.finish_replay()
    assert table.is_complete


def test_a_live_snapshot_completes_a_table_once_nothing_is_pending():
    heard: list[Message] = []
    table = replayed(on_message=heard.append)
    table.mark_caught_up()
    snapshot = make_message(make_snapshot(), sequence=2)
    again = make_message(make_node_observed(make_node()), sequence=3)  # it has replaced the one before
    table.apply(snapshot)
    assert "no complete snapshot" in table.problems()[0], "a Node may be missing that was published again"
    table.apply(again)
    assert (table.is_complete, heard) == (False, [again])
    table.mark_caught_up()
    assert (table.is_complete, heard) == (True, [again, snapshot])


def test_a_live_snapshot_that_a_lost_connection_leaves_without_effect_has_none_after_the_replay():
    table = replayed()
    table.apply(make_message(make_snapshot(), sequence=2))
    table.mark_disconnected("server went away")
    replay(table)
    table.mark_caught_up()
    assert "no complete snapshot" in table.problems()[0], "the stream has lost it"


@pytest.mark.parametrize("read", [[], [make_snapshot(stream_id="another")]], ids=["none", "another stream's"])
def test_a_table_without_a_snapshot_of_its_stream_says_who_owes_it(read):
    table = replayed(*map(make_message, read))
    assert not table.is_complete
    assert "watcher" in table.problems()[0]


def test_another_stream_id_voids_everything_and_says_so():
    voided = []
    table = replayed(
        make_message(make_node_observed(make_node())),
        make_message(make_snapshot(), sequence=2),
        on_stream_replaced=lambda: voided.append(True),
    )
    table.start_replay(make_position(stream_id="another"))
    assert voided == [True, True]
    assert table.list_under(OBSERVED_NODE) == []
    table.finish_replay()
    assert not table.is_complete


def test_what_aged_out_while_the_connection_was_gone_is_dropped():
    table = replayed(
        make_message(make_node_observed(make_node("one"))),
        make_message(make_node_observed(make_node("two")), sequence=2),
    )
    table.mark_disconnected("connection refused")
    assert table.problems() == ("not following the stream: connection refused",)
    replay(table, make_message(make_node_observed(make_node("two")), sequence=2))
    assert [m.subject for m in table.list_under(OBSERVED_NODE)] == [f"{OBSERVED_NODE}.two"]


def test_what_a_server_that_lost_its_last_messages_says_anew_has_not_been_applied_yet():
    table, _ = a_table()
    replay(
        table,
        make_message(make_node_observed(make_node("one"))),
        make_message(make_node_observed(make_node("two")), sequence=900),
        position=make_position(900),
    )
    # 900 went with a disk, and another message gets it
    replay(table, make_message(make_node_observed(make_node("one"))), position=make_position(1))
    assert table.sequence == 1


def test_what_is_stored_and_passed_on_is_the_compacted_message():
    passed = list[Message]()

    def compact(message: Message) -> Message:
        return msgspec.structs.replace(message, headers={"compact": "yes"})

    table = replaying(compact=compact, on_message=passed.append)
    message = make_message(make_node_observed(make_node()))
    table.apply(message)
    assert passed == [table.get(message.subject)] == [compact(message)]


def test_a_former_leader_is_ignored_and_the_age_of_the_last_leading_is_known():
    table, clock = a_table()
    assert table.seconds_since_leader_heartbeat() is None
    table.start_replay(make_position())
    table.apply(make_message(make_leading(epoch=3)))
    assert table.seconds_since_leader_heartbeat() is None, "a replayed heartbeat may be as old as its TTL"
    table.finish_replay()
    table.apply(make_message(make_leading(epoch=3)))
    clock.advance(4.0)
    table.apply(make_message(make_leading(epoch=2), sequence=2))
    last = table.get(LEADING)
    assert last is not None
    assert last.event == make_leading(epoch=3)
    assert table.seconds_since_leader_heartbeat() == 4.0


def test_what_a_former_leader_publishes_behind_a_newer_one_is_void():
    heard: list[Message] = []
    table = replaying(on_message=heard.append)
    node = make_node()
    kept = [
        make_message(make_node_observed(make_node("old")), sequence=1),
        make_message(make_leading(epoch=2), sequence=2),
        make_message(make_node_gone(node, epoch=2), sequence=3),
        make_message(make_snapshot(epoch=2), sequence=4),
    ]
    void = [
        make_message(make_node_observed(node), sequence=5),
        make_message(make_node_observed(make_node("ghost")), sequence=6),
        make_message(make_node_gone(make_node("old")), sequence=7),
        make_message(make_csr_observed(make_request()), sequence=8),
        make_message(make_snapshot(nodes=9), sequence=9),
    ]
    for message in (*kept, *void):
        table.apply(message)
    table.finish_replay()
    assert heard == kept
    assert {m.subject: m for m in table.list_under(FLOW)} == {m.subject: m for m in kept}
    assert table.sequence == 9, "a handler that waits for it waits no longer"


def test_what_the_leader_before_published_before_it_was_replaced_stays_true():
    table = replaying()
    unreadable_since = make_message(make_node_observed(make_node("old")), sequence=1)
    table.apply(unreadable_since)
    table.apply(make_message(make_snapshot(epoch=2), sequence=2))
    table.finish_replay()
    # the connection was lost for a moment
    replay(table, unreadable_since, make_message(make_snapshot(epoch=2), sequence=2))
    assert table.list_under(OBSERVED_NODE) == [unreadable_since]


def test_another_stream_id_counts_leaders_from_the_beginning():
    table = replaying()
    table.apply(make_message(make_leading(epoch=7)))
    table.start_replay(make_position(stream_id="another"))
    table.apply(make_message(make_node_observed(make_node(), stream_id="another")))
    assert len(table.list_under(OBSERVED_NODE)) == 1


def test_a_leader_whose_messages_were_lost_with_the_end_of_the_stream_voids_nothing():
    table, _ = a_table()
    table.start_replay(make_position(100))
    table.apply(make_message(make_leading(epoch=8), sequence=100))
    replay(table, position=make_position(90))
    published_since = make_message(make_node_observed(make_node(), epoch=7), sequence=91)
    table.apply(published_since)
    assert table.list_under(OBSERVED_NODE) == [published_since]


@pytest.mark.parametrize(
    ("kept", "void", "is_kept"),
    [
        (make_node_observed(make_node()), make_node_gone(make_node()), False),
        (make_node_observed(make_node(), epoch=2), make_node_gone(make_node()), True),
        (make_node_observed(make_node()), make_node_observed(make_node(labels={"is": "late"})), True),
    ],
    ids=["gone", "gone before the leader published it", "observed"],
)
def test_a_replayed_void_message_removes_an_object_only_if_it_says_that_it_is_gone(kept, void, is_kept):
    dropped: list[Message] = []
    table = replayed(
        make_message(kept, sequence=1),
        make_message(make_leading(epoch=2), sequence=2),
        on_expired=dropped.append,
    )
    late = make_message(void, sequence=3)
    table.apply(late)
    assert [message.event for message in table.list_under(OBSERVED_NODE)] == [kept]
    # the connection was lost for a moment
    replay(table, late, make_message(make_leading(epoch=2), sequence=4))
    assert [message.event for message in table.list_under(OBSERVED_NODE)] == ([kept] if is_kept else [])
    assert [message.subject for message in dropped] == ([] if is_kept else [late.subject])


def test_the_silence_of_a_leader_counts_from_when_it_could_be_heard_and_is_unknown_while_it_cannot():
    table, clock = a_table()
    assert isnan(table.leader_silence_seconds())
    table.start_replay(make_position())
    assert isnan(table.leader_silence_seconds())
    clock.advance(100.0)
    table.finish_replay()
    clock.advance(7.0)
    assert table.leader_silence_seconds() == 7.0
    table.apply(make_message(make_leading()))
    clock.advance(2.0)
    assert table.leader_silence_seconds() == 2.0
    table.mark_disconnected("connection refused")
    assert isnan(table.leader_silence_seconds())


def test_unreadable_bytes_and_foreign_stream_ids_change_nothing():
    table = replaying()
    table.apply(make_message(UnreadablePayload(reason="junk", payload=b"x")))
    table.apply(make_message(make_node_observed(make_node(), stream_id="another")))
    assert table.list_under(OBSERVED_NODE) == []


def test_an_unreadable_message_counts_until_the_next_one_or_until_it_has_expired():
    table, broken = replaying(), UnreadablePayload(reason="junk", payload=b"x")
    node = make_message(make_node_observed(make_node()), sequence=2)

    def apply_unreadable() -> None:
        table.apply(msgspec.structs.replace(node, event=broken, sequence=1))
        assert table.list_unknown(OBSERVED_NODE) == ["web-1"]
        assert not table.list_unknown(LEADING)

    apply_unreadable()
    table.apply(node)
    assert not table.list_unknown(OBSERVED_NODE)
    apply_unreadable()
    snapshot = make_message(make_snapshot(), sequence=3)
    table.apply(snapshot)
    assert table.list_unknown(OBSERVED_NODE)
    later = snapshot.published_at + 2 * MAX_MESSAGE_AGE
    table.apply(msgspec.structs.replace(snapshot, published_at=later))
    assert not table.list_unknown(OBSERVED_NODE)
    apply_unreadable()
    table.start_replay(make_position())
    assert not table.list_unknown(OBSERVED_NODE)


FOREIGN = make_node_observed(make_node(), stream_id="another")


@pytest.mark.parametrize("fenced", [FOREIGN, make_node_gone(make_node())])
def test_only_a_valid_message_makes_an_object_known(fenced: Event):
    table, broken = replaying(), UnreadablePayload(reason="junk", payload=b"x")
    void = make_message(fenced, sequence=3)
    leading = make_message(make_leading(epoch=2), sequence=2)
    first = msgspec.structs.replace(void, event=broken, sequence=1)
    for before in ([first, leading], [leading]):
        replay(table, *before, void)
        assert table.list_unknown(OBSERVED_NODE) == ["web-1"]
        assert table.get_fenced(void.subject) == void
    table.apply(make_message(make_node_gone(make_node(), epoch=2), sequence=4))
    assert table.list_unknown(OBSERVED_NODE) == []
    table.apply(void)
    table.apply(msgspec.structs.replace(void, event=broken, sequence=5))
    assert table.get_fenced(void.subject) is None


def test_what_is_refused_is_heard_and_not_kept_and_takes_the_older_word_with_it():
    heard: list[Message] = []
    table = replaying(should_keep=lambda message: message.sequence != 2, on_message=heard.append)
    first, second = (make_message(make_node_observed(make_node("one")), sequence=number) for number in (1, 2))
    table.apply(first)
    assert table.get(first.subject) == first
    table.apply(second)
    assert table.get(first.subject) is None
    assert heard == [first, second]
    table.finish_replay()
    table.apply(first)
    table.forget(first.subject)
    table.forget(first.subject)
    assert table.list_under(OBSERVED_NODE) == []


def test_only_a_message_that_the_cache_has_seen_counts_as_one_of_a_former_stream():
    cache = replaying()
    foreign = make_message(make_node_observed(make_node(), stream_id="another"), sequence=7)
    cache.apply(make_message(make_snapshot(), sequence=500))
    cache.finish_replay()
    assert cache.is_of_another_stream(foreign)
    assert not cache.has_received(foreign), "this cache may be the one that follows a former stream"
    cache.apply(foreign)
    assert cache.has_received(foreign)
    assert cache.list_under(OBSERVED_NODE) == []


@pytest.mark.parametrize("seconds", [-60, 0, 60])
def test_no_message_of_the_former_stream_stands_for_one_of_a_new_stream(seconds: int):
    cache = replaying()
    cache.apply(make_message(make_node_observed(make_node()), sequence=8))
    foreign = make_message(make_node_observed(make_node(), stream_id="another"), sequence=7)
    new = msgspec.structs.replace(foreign, published_at=foreign.published_at + timedelta(seconds=seconds))
    assert not cache.has_received(new), "sequences start again, and the clock of another server may be behind"


def test_foreign_messages_are_forgotten_with_their_stream_when_replaced_and_when_expired():
    cache = replaying()
    foreign = make_message(make_node_observed(make_node(), stream_id="another"), sequence=7)
    cache.apply(foreign)
    cache.start_replay(make_position(stream_id="third"))
    assert not cache.has_received(foreign)
    cache.apply(foreign)
    cache.apply(make_message(make_node_observed(make_node(), stream_id="third"), sequence=8))
    assert cache._invalid == {}
    cache.apply(foreign)
    replay(cache, position=make_position(stream_id="third"))
    assert cache._invalid == {}
    cache.apply(foreign)
    later = foreign.published_at + 2 * MAX_MESSAGE_AGE
    snapshot = make_message(make_snapshot(stream_id="third"), sequence=9)
    cache.apply(msgspec.structs.replace(snapshot, published_at=later))
    cache.mark_caught_up()
    assert cache._invalid == {}
