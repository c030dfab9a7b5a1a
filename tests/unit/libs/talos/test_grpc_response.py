"""One gRPC answer, whatever way its bytes come."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.talos.grpc_response import (
    MAX_BUFFERED_BYTES,
    MAX_MESSAGE_BYTES,
    CallEnded,
    GrpcResponse,
)
from libs.talos.validation import InvalidResponse

BEGIN = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


def prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def begun(taken: list[bytes], *, waits: bool = False) -> GrpcResponse:
    def take(message: bytes) -> bool:
        taken.append(message)
        return waits

    answer = GrpcResponse(take)
    answer.receive_headers(BEGIN, is_last=False)
    return answer


@given(st.lists(st.binary(max_size=200), max_size=6), st.lists(st.integers(1, 60), max_size=20))
def test_messages_are_handed_over_as_they_were_sent_however_they_are_cut(messages, cuts):
    taken: list[bytes] = []
    answer = begun(taken)
    data = b"".join(map(prefixed, messages))
    for size in cuts:
        answer.receive(data[:size])
        assert not answer.deliver()
        data = data[size:]
    answer.receive(data)
    answer.deliver()
    answer.receive_headers(OK, is_last=True)
    assert taken == messages
    assert answer.buffered_bytes == 0


def test_messages_that_have_to_wait_come_one_by_one_and_at_the_end_all():
    taken: list[bytes] = []
    answer = begun(taken, waits=True)
    answer.receive(prefixed(b"a") + prefixed(b"b") + prefixed(b"c"))
    assert answer.deliver()
    assert taken == [b"a"]
    assert answer.deliver()
    assert taken == [b"a", b"b"]
    answer.receive_headers(OK, is_last=True)
    assert taken == [b"a", b"b", b"c"]


def test_the_largest_message_fits_in_behind_another():
    taken: list[bytes] = []
    answer = begun(taken, waits=True)
    answer.receive(prefixed(b"a") + prefixed(b"x" * MAX_MESSAGE_BYTES))
    assert answer.deliver()
    answer.deliver()
    assert len(taken) == 2


@pytest.mark.parametrize(
    "data",
    [b"\1\0\0\0\1a", b"\0\xff\xff\xff\xff", b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big")],
    ids=["compressed", "4 GB", "one byte too long"],
)
def test_what_is_too_large_or_compressed_is_refused_by_its_prefix(data):
    answer = begun([])
    answer.receive(data)
    with pytest.raises(InvalidResponse):
        answer.deliver()


def test_what_nobody_takes_is_bounded():
    answer = begun([], waits=True)
    answer.receive(b"\0" * MAX_BUFFERED_BYTES)
    with pytest.raises(InvalidResponse):
        answer.receive(b"\0")


@pytest.mark.parametrize(
    ("block", "code", "text"),
    [
        ([(":status", "503")], 14, "Received :status = '503'"),
        ([(":status", "302")], 2, "Received :status = '302'"),
        ([(":status", "200")], 2, "Missing content-type"),
        ([(":status", "200"), ("content-type", "text/html")], 2, "Invalid content-type"),
        (BEGIN, 2, "Missing grpc-status"),
        ([*BEGIN, ("grpc-status", "17")], 2, "Invalid grpc-status"),
        ([*BEGIN, ("grpc-status", "\u00b2")], 2, "Invalid grpc-status"),
        ([*BEGIN, ("grpc-status", "9" * 5000)], 2, "Invalid grpc-status"),
        ([*BEGIN, ("grpc-status", "5"), ("grpc-message", "no%20such %C3%A4")], 5, "no such ä"),
    ],
)
def test_a_status_is_told_as_grpc_means_it(block, code, text):
    with pytest.raises(CallEnded) as ended:
        GrpcResponse(lambda message: False).receive_headers(block, is_last=True)
    assert ended.value.status.code == code
    assert text in ended.value.status.message


def test_an_answer_that_ends_without_trailers_has_no_status():
    with pytest.raises(CallEnded, match="Missing grpc-status"):
        begun([]).end({})


def test_an_informational_response_is_no_answer_yet():
    answer = GrpcResponse(lambda message: False)
    answer.receive_headers([(":status", "103")], is_last=False)
    answer.receive_headers(BEGIN, is_last=False)
    answer.receive_headers(OK, is_last=True)


def test_data_before_headers_are_refused():
    with pytest.raises(InvalidResponse):
        GrpcResponse(lambda message: False).receive(b"abc")
