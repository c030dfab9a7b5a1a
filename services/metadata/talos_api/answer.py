"""One gRPC answer, as it comes over HTTP/2: messages out of data, a status out of headers."""

import binascii
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from services.metadata.talos_api.checked import Unreadable
from services.metadata.talos_api.faults import Status

LARGEST_MESSAGE_BYTES: Final = 64 * 1024
MOST_WAITING_BYTES: Final = 128 * 1024  # of one answer: a largest message fits in, whatever stands before it
LARGEST_ANSWER_BYTES: Final = 512 * 1024  # all messages of one call, or with which a watch opens
MOST_MESSAGES: Final = 2048
_PREFIX: Final = 5  # bytes: compressed or not, and the length
_LAST_CODE: Final = 16
_UNKNOWN: Final = 2

# https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md
_OF_HTTP: Final = {
    "400": 13,  # INTERNAL
    "401": 16,  # UNAUTHENTICATED
    "403": 7,  # PERMISSION_DENIED
    "404": 12,  # UNIMPLEMENTED
    "429": 14,  # UNAVAILABLE
    "502": 14,
    "503": 14,
    "504": 14,
}

Headers = dict[str, str]


class CallEnded(Exception):
    """The server ended the call with a status other than OK."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.code, status.message)
        self.status = status


class Answer:
    """Hands over messages one by one; `on_message` says whether the next one has to wait a little."""

    __slots__ = ("_begun", "_on_message", "_waiting")

    def __init__(self, on_message: Callable[[bytes], bool]) -> None:
        self._on_message = on_message
        self._begun = False
        self._waiting = b""

    @property
    def waiting(self) -> int:
        """Bytes that were received and not handed over yet."""
        return len(self._waiting)

    def receive(self, data: bytes) -> None:
        """More data. Raises Unreadable."""
        self._waiting = self._waiting + data if self._waiting else data
        if not self._begun:
            raise Unreadable("an answer that is not gRPC: data before headers")
        if len(self._waiting) > MOST_WAITING_BYTES:
            raise Unreadable(f"more than {MOST_WAITING_BYTES} bytes at once")

    def hand_over(self, *, all_of_it: bool = False) -> bool:
        """Hand over the messages that are complete; True if the rest has to wait a little.

        Raises Unreadable, and what `on_message` raises.
        """
        data, at = self._waiting, 0
        try:
            while len(data) - at >= _PREFIX:
                size = int.from_bytes(data[at + 1 : at + _PREFIX], "big")
                if data[at] or size > LARGEST_MESSAGE_BYTES:
                    raise Unreadable(
                        f"a compressed message or one of {size} bytes (at most {LARGEST_MESSAGE_BYTES})"
                    )
                end = at + _PREFIX + size
                if len(data) < end:
                    return False
                message, at = data[at + _PREFIX : end], end
                if self._on_message(message) and not all_of_it:
                    return True
            return False
        finally:
            self._waiting = data[at:]

    def begin_or_end(self, block: list[tuple[str, str]], *, is_last: bool) -> None:
        """Headers or trailers. Raises CallEnded, Unreadable."""
        headers = dict(block)
        if not self._begun:
            if headers.get(":status", "").startswith("1") and not is_last:
                return  # informational
            _judge_http(headers)
            self._begun = True
        for name, value in block:
            if name.endswith("-bin"):
                _judge_binary(name, value)
        if is_last or "grpc-status" in headers:
            self.end(headers)

    def end(self, trailers: Headers) -> None:
        """Nothing more will come. Raises CallEnded, Unreadable."""
        status = _status(trailers)
        if status.code:
            raise CallEnded(status)
        self.hand_over(all_of_it=True)
        if self._waiting:
            raise Unreadable("an answer that is not gRPC: it ends within a message")


def _judge_http(headers: Headers) -> None:
    http = headers.get(":status", "")
    if http != "200":
        raise CallEnded(Status(_OF_HTTP.get(http, _UNKNOWN), f"Received :status = {http!r}"))
    kind = headers.get("content-type")
    if kind is None:
        raise CallEnded(Status(_UNKNOWN, "Missing content-type header"))
    if kind not in {"application/grpc", "application/grpc+proto"}:
        raise CallEnded(Status(_UNKNOWN, f"Invalid content-type: {kind!r}"))


def _judge_binary(name: str, value: str) -> None:
    try:
        binascii.a2b_base64(value.encode("ascii") + b"=" * (-len(value) % 4), strict_mode=True)
    except ValueError as error:  # binascii.Error and UnicodeEncodeError among them
        raise Unreadable(f"an answer that is not gRPC: {name[:80]} is not base64") from error


def _status(trailers: Headers) -> Status:
    told = trailers.get("grpc-status")
    if told is None:
        return Status(_UNKNOWN, "Missing grpc-status header")
    if not (told.isascii() and told.isdigit() and int(told[:9]) <= _LAST_CODE):
        return Status(_UNKNOWN, f"Invalid grpc-status: {told[:80]!r}")
    return Status(int(told), unquote(trailers.get("grpc-message", ""), errors="replace"))
