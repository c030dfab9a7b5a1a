"""The part of HTTP/2 frames and header blocks (RFC 9113, RFC 7541) that a gRPC client needs."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

DATA: Final = 0
HEADERS: Final = 1
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1  # DATA, HEADERS
ACK: Final = 0x1  # SETTINGS, PING
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_HEADER_LIST_SIZE: Final = 6

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
MAX_FRAME: Final = 16_384  # the default, which this client does not change
CANCEL: Final = 8
_HEAD: Final = 9  # bytes

_NAME: Final = re.compile(r"[a-z0-9_.-]+")
_VALUE: Final = re.compile(r"[ -~]*")


class ProtocolError(Exception):
    """The peer violates HTTP/2, so the connection is unusable."""


class Frame(NamedTuple):
    """One frame, with its padding."""

    kind: int
    flags: int
    stream: int
    payload: bytes


def encode_frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Encode a frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def encode_settings(values: Mapping[int, int]) -> bytes:
    """Encode a SETTINGS frame."""
    payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items())
    return encode_frame(SETTINGS, 0, 0, payload)


def decode_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return identifiers and values of a SETTINGS frame, in order."""
    if len(payload) % 6:
        raise ProtocolError(f"SETTINGS of {len(payload)} bytes")
    return [
        (int.from_bytes(payload[i : i + 2], "big"), int.from_bytes(payload[i + 2 : i + 6], "big"))
        for i in range(0, len(payload), 6)
    ]


def decode_number(payload: bytes) -> int:
    """Return the 31-bit number of a WINDOW_UPDATE; also used for the code of RST_STREAM."""
    if len(payload) != 4:
        raise ProtocolError(f"a number of {len(payload)} bytes, not 4")
    return int.from_bytes(payload, "big") & MAX_WINDOW


def encode_window_update(stream: int, size: int) -> bytes:
    """Encode a WINDOW_UPDATE, which permits `size` more bytes."""
    return encode_frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def strip_padding(one: Frame) -> bytes:
    """Return the payload of DATA or HEADERS without padding and priority."""
    start, end = 0, len(one.payload)
    if one.flags & PADDED:
        if not end:
            raise ProtocolError("padding without a length")
        start, end = 1, end - one.payload[0]
    if one.kind == HEADERS and one.flags & PRIORITY:
        start += 5
    if start > end:
        raise ProtocolError("more padding than frame")
    return one.payload[start:end]


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the complete frames. Raises ProtocolError."""
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= _HEAD:
            size = int.from_bytes(data[at : at + 3], "big")
            if size > MAX_FRAME:
                raise ProtocolError(f"a frame of {size} bytes")
            if len(data) - at - _HEAD < size:
                break
            end = at + _HEAD + size
            stream = int.from_bytes(data[at + 5 : at + 9], "big") & MAX_WINDOW
            yield Frame(data[at + 3], data[at + 4], stream, data[at + _HEAD : end])
            at = end
        self._rest = data[at:]


def encode_request_headers(authority: str, path: str, more: Mapping[str, str]) -> bytes:
    """Encode the header block of a gRPC call. It uses only the static table, so blocks are independent."""
    return _encode_common_headers(authority, path) + b"".join(
        _encode_literal(name) + _encode_text(value)
        for name, value in more.items()
        if _is_sendable(name, value)
    )


@lru_cache(maxsize=64)
def _encode_common_headers(authority: str, path: str) -> bytes:
    # RFC 7541, appendix A: 3 = :method POST, 7 = :scheme https, 4 = :path, 1 = :authority.
    block = b"\x83\x87" + b"\x04" + _encode_text(path) + b"\x01" + _encode_text(authority)
    fixed = (("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", "talos-ccm"))
    return block + b"".join(_encode_literal(name) + _encode_text(value) for name, value in fixed)


def _is_sendable(name: str, value: str) -> bool:
    if _NAME.fullmatch(name) and _VALUE.fullmatch(value):
        return True
    raise ValueError(f"{name!r} cannot be a header with the value {value[:80]!r}")


def _encode_literal(name: str) -> bytes:
    return b"\x00" + _encode_text(name)


@lru_cache(maxsize=4096)
def _encode_text(text: str) -> bytes:
    raw = text.encode("ascii")
    return _encode_length(len(raw)) + raw


def _encode_length(value: int) -> bytes:
    """Encode a length by RFC 7541, 5.1, with a prefix of 7 bits and without Huffman."""
    if value < 127:
        return bytes((value,))
    rest, value = [127], value - 127
    while value >= 128:
        rest.append(value % 128 + 128)
        value //= 128
    return bytes([*rest, value])
