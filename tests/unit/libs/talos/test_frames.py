"""HTTP/2 as our client writes and reads it, checked against the libraries that others use."""

import pytest
from hpack import Decoder
from hyperframe.frame import DataFrame, HeadersFrame, SettingsFrame, WindowUpdateFrame
from hyperframe.frame import Frame as Theirs
from hypothesis import given
from hypothesis import strategies as st

from libs.talos import frames
from libs.talos.frames import Frame, FrameReader, ProtocolError, encode_request_headers

VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=400)
SENT = st.builds(
    Frame,
    kind=st.integers(0, 20),
    flags=st.integers(0, 255),
    stream=st.integers(0, 2**31 - 1),
    payload=st.binary(max_size=300),
)


@given(st.lists(SENT, max_size=5), st.lists(st.integers(1, 40), max_size=50))
def test_frames_are_read_as_they_were_sent_however_they_are_cut(sent, cuts):
    data = b"".join(frames.encode_frame(one.kind, one.flags, one.stream, one.payload) for one in sent)
    reader, read = FrameReader(), list[Frame]()
    for size in cuts:
        read += reader.feed(data[:size])
        data = data[size:]
    assert [*read, *reader.feed(data)] == sent


def test_a_frame_larger_than_allowed_is_refused_before_it_has_come():
    with pytest.raises(ProtocolError):
        list(FrameReader().feed(b"HTTP/1.1 400 Bad Request\r\n\r\n"))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9-]{0,30}", fullmatch=True), VALUES, max_size=4))
def test_others_read_the_headers_of_a_call_as_they_are_meant(more):
    decoder = Decoder()
    for path in ("/cosi.resource.State/Get", "/x", "/cosi.resource.State/Get"):
        headers = decoder.decode(encode_request_headers("10.0.0.1:50000", path, more))
        assert headers == [
            (":method", "POST"),
            (":scheme", "https"),
            (":path", path),
            (":authority", "10.0.0.1:50000"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "talos-ccm"),
            *more.items(),
        ]


@pytest.mark.parametrize(
    ("name", "value"), [("node", "a\r\nb"), ("no de", "x"), ("Node", "x"), ("node", "ä")]
)
def test_what_cannot_be_a_header_is_not_sent(name, value):
    with pytest.raises(ValueError, match="cannot be a header"):
        encode_request_headers("a:1", "/x", {name: value})


def test_others_read_our_settings_and_windows():
    ours = {frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: 131_072}
    read = theirs(frames.encode_settings(ours))
    assert isinstance(read, SettingsFrame)
    assert read.settings == ours
    assert frames.decode_settings(frames.encode_settings(ours)[9:]) == list(ours.items())
    read = theirs(frames.encode_window_update(7, 123_456))
    assert isinstance(read, WindowUpdateFrame)
    assert (read.stream_id, read.window_increment) == (7, 123_456)


def theirs(data: bytes) -> Theirs:
    read, size = Theirs.parse_frame_header(memoryview(data[:9]))
    read.parse_body(memoryview(data[9 : 9 + size]))
    return read


@given(st.binary(max_size=100), st.integers(0, 255))
def test_padding_of_others_is_taken_off(data, padding):
    sent = DataFrame(1, data, flags=["PADDED"], pad_length=padding).serialize()
    (read,) = FrameReader().feed(sent)
    assert frames.strip_padding(read) == data
    headers = HeadersFrame(1, data, flags=["PADDED", "PRIORITY"], pad_length=padding, depends_on=3)
    (read,) = FrameReader().feed(headers.serialize())
    assert frames.strip_padding(read) == data


@pytest.mark.parametrize(
    "one",
    [
        Frame(frames.DATA, frames.PADDED, 1, b""),
        Frame(frames.DATA, frames.PADDED, 1, b"\x05abc"),
        Frame(frames.HEADERS, frames.PRIORITY, 1, b"abc"),
    ],
)
def test_more_padding_than_frame_is_refused(one):
    with pytest.raises(ProtocolError):
        frames.strip_padding(one)


@pytest.mark.parametrize("payload", [b"", b"abc", b"abcde"])
def test_numbers_and_settings_of_a_wrong_size_are_refused(payload):
    with pytest.raises(ProtocolError):
        frames.decode_number(payload)
    if payload:
        with pytest.raises(ProtocolError):
            frames.decode_settings(payload)
