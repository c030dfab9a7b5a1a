"""What we put in place of nats-py: messages, replies, problems of a call, limits of the stream."""

import inspect
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as NatsPyClient

from libs.common.bus.nats.client import Client, WireMessage, parse_message
from libs.common.bus.nats.current_stream import LivenessTracker
from libs.common.bus.nats.jetstream import parse_delivery
from libs.common.bus.protocol import BusError, ServerLiveness
from libs.common.bus.stream_limits import (
    HEADROOM_BYTES,
    MAX_MESSAGE_AGE,
    MAX_MESSAGE_AGE_TEXT,
    MAX_REPUBLISH_INTERVAL,
    MAX_RESYNC_INTERVAL,
    MAX_RESYNC_INTERVAL_TEXT,
    SNAPSHOT_TTL,
    STREAM_STEP_BYTES,
    candidate_limits,
    grow_limit,
    has_expired,
    has_room_again,
    initial_limit,
    is_half_full,
    limit_for_bytes,
    subtract_headroom,
)
from tests.clocks import ManualClock

REPLACED = sorted(name for name in vars(Client) if not name.startswith("__"))


@pytest.mark.parametrize("name", REPLACED)
def test_what_we_put_in_place_of_nats_pys_is_still_there_and_called_alike(name: str):
    ours, theirs = (getattr(owner, name) for owner in (Client, NatsPyClient))
    assert type(ours) is type(theirs)
    if isinstance(ours, property):
        ours, theirs = ours.fget, theirs.fget
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_three_private_names_are_all_that_we_use():
    assert [name for name in REPLACED if name.startswith("_")] == ["_build_message", "_process_headers"]
    assert "_transport" in vars(NatsPyClient())


def read(block: bytes, data: bytes = b"") -> tuple[str, str, dict[str, str]]:
    message = parse_message(b"subject", b"", data, block)
    return message.status, message.description, dict(message.headers)


def test_headers_are_read_with_and_without_the_servers_own_word():
    assert read(b"") == ("", "", {})
    assert read(b"NATS/1.0\r\ntraceparent: 00-1-2-01\r\nA:b\r\n\r\n") == (
        "",
        "",
        {"traceparent": "00-1-2-01", "A": "b"},
    )
    assert read(b"NATS/1.0 503\r\n\r\n") == ("503", "", {})
    assert read(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n") == (
        "100",
        "Idle Heartbeat",
        {"Nats-Last-Consumer": "7"},
    )


@pytest.mark.parametrize(
    ("lines", "own"),
    [
        (b"", {}),
        (b"Nats-Expected-Last-Subject-Sequence: 7\r\n", {}),
        (b"Nats-Expected-Last-Subject-Sequence: 7\r\nNats-TTL: 50s\r\n", {}),
        (b"traceparent: 00-1-2-01\r\n", {"traceparent": "00-1-2-01"}),
        (b"Nats-Expected-Last-Subject-Sequence: 7\r\ntraceparent: 00-1\r\n", {"traceparent": "00-1"}),
        (b"traceparent: 00-1\r\nNats-TTL: 50s\r\n", {"traceparent": "00-1"}),
        (b" Nats-TTL : 50s\r\n", {}),
    ],
)
def test_headers_that_nats_defines_are_not_a_publishers_own(lines: bytes, own: dict[str, str]):
    assert dict(parse_message(b"s", b"", b"", b"NATS/1.0\r\n" + lines + b"\r\n").own_headers) == own


def test_a_header_of_a_publisher_is_not_the_servers_word():
    status, _, headers = read(b"NATS/1.0\r\nStatus: 404\r\n\r\n", b"{}")
    assert (status, headers) == ("", {"Status": "404"})


@given(st.binary(), st.binary(), st.binary(), st.binary())
def test_nothing_that_somebody_sends_ends_the_connection(subject, reply, data, block):
    assert parse_message(subject, reply, data, block).data == data


def a_delivery(reply: str) -> WireMessage:
    return WireMessage("talosccm.v1.flow.snapshot", reply, b"")


def test_both_forms_of_a_reply_subject_are_read():
    for reply in (
        "$JS.ACK.S.C.2.30.4.1700000000000000000.5",
        "$JS.ACK._.h.S.C.2.30.4.1700000000000000000.5",
        "$JS.ACK._.h.S.C.2.30.4.1700000000000000000.5.x",
        "$JS.ACK.1.2.S.C.2.30.4.1700000000000000000.5.x.y",
    ):
        read = parse_delivery(a_delivery(reply))
        assert (read.attempt, read.sequence, read.consumer_sequence, read.pending) == (2, 30, 4, 5)


@pytest.mark.parametrize(
    "reply",
    ["", "evil.subject", "$JS.ACK.S.C.x.1.1.1.1", "$JS.ACK.S.C.1.-1.1.1.1", f"$JS.ACK.S.C.1.1.1.{10**30}.1",
     "$JS.ACK.S.C.1.\u0665.1.1.1", "$JS.ACK.S.C.1.1.1.1.1.1", "$JS.ACK.S.C.1.1.1.1.1\n"],
)  # fmt: skip
def test_a_forged_one_ends_the_pull_and_not_the_process(reply: str):
    with pytest.raises(BusError, match="not delivered by JetStream"):
        parse_delivery(a_delivery(reply))


def test_answers_count_from_the_first_one_after_a_gap():
    clock = ManualClock()
    answers = LivenessTracker(clock)
    assert answers.server_liveness() == ServerLiveness(silent_seconds=float("inf"), responsive_seconds=0.0)
    for _ in range(6):
        answers.record_response()
        clock.advance(3.0)
    assert answers.server_liveness() == ServerLiveness(silent_seconds=3.0, responsive_seconds=15.0)
    clock.advance(8.0)
    answers.record_response()
    assert answers.server_liveness() == ServerLiveness(silent_seconds=0.0, responsive_seconds=0.0)


# ---- limits of the stream


NOW = datetime(2026, 7, 31, tzinfo=UTC)


def test_the_texts_name_the_times():
    texts = {MAX_MESSAGE_AGE_TEXT: MAX_MESSAGE_AGE, MAX_RESYNC_INTERVAL_TEXT: MAX_RESYNC_INTERVAL}
    assert texts == {"an hour": timedelta(hours=1), "20 minutes": timedelta(minutes=20)}


def test_a_message_survives_one_failed_publish():
    assert not has_expired(NOW - 2 * MAX_REPUBLISH_INTERVAL, NOW)
    assert has_expired(NOW - MAX_MESSAGE_AGE - timedelta(seconds=1), NOW)


def test_a_snapshot_expires_before_the_objects_that_it_counts_and_after_the_next_one():
    assert MAX_RESYNC_INTERVAL < SNAPSHOT_TTL < MAX_MESSAGE_AGE - MAX_RESYNC_INTERVAL


def test_a_stream_is_full_until_twice_the_rejected_publish_fits():
    assert not has_room_again(100, 80, 10)
    assert has_room_again(100, 79, 10)
    assert has_room_again(-1, 10**9, 10), "it has no limit"


sizes = st.integers(0, 2**40)


@given(sizes)
def test_a_limit_has_room_for_what_is_needed_in_whole_steps_with_the_headroom(needed):
    limit = limit_for_bytes(needed)
    assert limit >= needed
    assert (limit + HEADROOM_BYTES) % STREAM_STEP_BYTES == 0
    assert limit < needed + STREAM_STEP_BYTES + HEADROOM_BYTES


@given(sizes, sizes)
def test_what_a_stream_holds_is_at_most_half_of_its_limit_where_the_server_has_room(limit, held):
    larger = grow_limit(limit, held)
    assert larger >= limit
    assert not is_half_full(larger, held)
    assert is_half_full(limit, held) or larger == limit


@given(sizes)
def test_a_new_stream_starts_with_one_step_or_less(wanted):
    assert initial_limit(wanted) == min(wanted, STREAM_STEP_BYTES - HEADROOM_BYTES)


@given(sizes, sizes)
def test_every_candidate_is_larger_than_the_present_limit_or_the_one_that_is_wanted(wanted, present):
    tried = [limit for limit, _ in zip(candidate_limits(wanted, present), range(100), strict=False)]
    assert tried[0] == wanted
    assert all(limit > present for limit in tried[1:])
    assert tried == sorted(tried, reverse=True)


@given(sizes)
def test_a_limit_never_includes_the_headroom_twice(limit):
    kept = subtract_headroom(limit)
    assert kept <= limit
    assert subtract_headroom(kept) == kept
    assert subtract_headroom(limit_for_bytes(limit) + HEADROOM_BYTES) == limit_for_bytes(limit)


def test_a_stream_without_limit_needs_no_more_room():
    assert not is_half_full(-1, 2**40)
