"""Parses one gRPC response from HTTP/2: messages from data, the status from headers."""

import binascii
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from libs.talos.faults import Status
from libs.talos.validation import InvalidResponse

MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_BUFFERED_BYTES: Final = 128 * 1024  # per response: a message of maximum size fits, after any other data
MAX_RESPONSE_BYTES: Final = 512 * 1024  # all messages of one call, or of the beginning of a watch
MAX_MESSAGES: Final = 2048
_PREFIX: Final = 5  # bytes: compressed or not, and the length
_LAST_CODE: Final = 16
_UNKNOWN: Final = 2

# https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md
_CODE_OF_HTTP: Final = {
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


class GrpcResponse:
    """Passes messages to `on_message` one by one, which returns whether the next one must wait."""

    __slots__ = ("_buffer", "_has_headers", "_on_message")

    def __init__(self, on_message: Callable[[bytes], bool]) -> None:
        self._on_message = on_message
        self._has_headers = False
        self._buffer = b""

    @property
    def buffered_bytes(self) -> int:
        """Received bytes that are not delivered yet."""
        return len(self._buffer)

    def receive(self, data: bytes) -> None:
        """Receive data. Raises InvalidResponse."""
        self._buffer = self._buffer + data if self._buffer else data
        if not self._has_headers:
            raise InvalidResponse("an answer that is not gRPC: data before headers")
        if len(self._buffer) > MAX_BUFFERED_BYTES:
            raise InvalidResponse(f"more than {MAX_BUFFERED_BYTES} bytes at once")

    def deliver(self, *, flush: bool = False) -> bool:
        """Deliver the complete messages; return True if the rest must wait.

        Raises InvalidResponse, and any error of `on_message`.
        """
        data, at = self._buffer, 0
        try:
            while len(data) - at >= _PREFIX:
                size = int.from_bytes(data[at + 1 : at + _PREFIX], "big")
                if data[at] or size > MAX_MESSAGE_BYTES:
                    raise InvalidResponse(
                        f"a compressed message or one of {size} bytes (at most {MAX_MESSAGE_BYTES})"
                    )
                end = at + _PREFIX + size
                if len(data) < end:
                    return False
                message, at = data[at + _PREFIX : end], end
                if self._on_message(message) and not flush:
                    return True
            return False
        finally:
            self._buffer = data[at:]

    def receive_headers(self, block: list[tuple[str, str]], *, is_last: bool) -> None:
        """Receive headers or trailers. Raises CallEnded, InvalidResponse."""
        headers = dict(block)
        if not self._has_headers:
            if headers.get(":status", "").startswith("1") and not is_last:
                return  # informational
            _validate_http_status(headers)
            self._has_headers = True
        for name, value in block:
            if name.endswith("-bin"):
                _validate_binary_header(name, value)
        if is_last or "grpc-status" in headers:
            self.end(headers)

    def end(self, trailers: Headers) -> None:
        """Receive the end of the response. Raises CallEnded, InvalidResponse."""
        status = _parse_status(trailers)
        if status.code:
            raise CallEnded(status)
        self.deliver(flush=True)
        if self._buffer:
            raise InvalidResponse("an answer that is not gRPC: it ends within a message")


def _validate_http_status(headers: Headers) -> None:
    http = headers.get(":status", "")
    if http != "200":
        raise CallEnded(Status(_CODE_OF_HTTP.get(http, _UNKNOWN), f"Received :status = {http!r}"))
    kind = headers.get("content-type")
    if kind is None:
        raise CallEnded(Status(_UNKNOWN, "Missing content-type header"))
    if kind not in {"application/grpc", "application/grpc+proto"}:
        raise CallEnded(Status(_UNKNOWN, f"Invalid content-type: {kind!r}"))


def _validate_binary_header(name: str, value: str) -> None:
    try:
        binascii.a2b_base64(value.encode("ascii") + b"=" * (-len(value) % 4), strict_mode=True)
    except ValueError as error:  # binascii.Error and UnicodeEncodeError among them
        raise InvalidResponse(f"an answer that is not gRPC: {name[:80]} is not base64") from error


def _parse_status(trailers: Headers) -> Status:
    told = trailers.get("grpc-status")
    if told is None:
        return Status(_UNKNOWN, "Missing grpc-status header")
    if not (told.isascii() and told.isdigit() and int(told[:9]) <= _LAST_CODE):
        return Status(_UNKNOWN, f"Invalid grpc-status: {told[:80]!r}")
    return Status(int(told), unquote(trailers.get("grpc-message", ""), errors="replace"))
