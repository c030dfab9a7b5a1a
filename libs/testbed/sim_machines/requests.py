"""The requests of COSI's State service, as far as our clients send them, and their rejections."""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec

from libs.talos.proto.strict import fields, require_bytes, require_utf8

Fields = dict[int, int | bytes]  # field number -> its last value

_APID_PORT = 50000


class StatusCode(IntEnum):
    """The gRPC status codes that the machines use."""

    NOT_FOUND = 5
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14


class CallRejected(Exception):
    """A call that ends with a status other than OK."""

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


def make_not_simulated(what: str) -> CallRejected:
    """Return the error for a feature of Talos that these machines lack."""
    return CallRejected(
        StatusCode.UNIMPLEMENTED, f"the simulated machines do not support {what}; COSI's own server does"
    )


def make_dial_error(node: str) -> CallRejected:
    """Return the error for an address without a listener."""
    dialled = f"dial tcp {_format_dialled(node)}: connect: connection refused"
    words = f'connection error: desc = "transport: Error while dialing: {dialled}"'
    return CallRejected(StatusCode.UNAVAILABLE, words)


def make_reset_error(node: str) -> CallRejected:
    """Return the error for a machine that went down during the call."""
    words = f"error reading from server: read tcp {_format_dialled(node)}: read: connection reset by peer"
    return CallRejected(StatusCode.UNAVAILABLE, words)


def _format_dialled(node: str) -> str:
    return f"[{node}]:{_APID_PORT}" if ":" in node else f"{node}:{_APID_PORT}"


class ResourceSelection(msgspec.Struct, frozen=True):
    """The selected resources: all of a type, those whose ID matches a pattern, or the one with an ID."""

    namespace: str
    type: str
    id: str | None = None
    id_pattern: str = ""

    def matches_id(self, name: str) -> bool:
        """Whether a resource of the type with this ID is selected. A pattern matches anywhere in the ID."""
        if self.id is not None:
            return name == self.id
        return not self.id_pattern or re.search(self.id_pattern, name) is not None


class WatchRequest(msgspec.Struct, frozen=True):
    """The watched resources and the first events."""

    selection: ResourceSelection
    bootstrap_contents: bool


def parse_get(request: bytes) -> ResourceSelection:
    """Parse a GetRequest."""
    asked = read_message(request)
    return ResourceSelection(_text(asked, 1), _text(asked, 2), _text(asked, 3))


def parse_list(request: bytes) -> ResourceSelection:
    """Parse a ListRequest. Raises CallRejected."""
    asked = read_message(request)
    options = read_message(asked.get(3, b""))
    _reject_options(options, 2)
    return ResourceSelection(_text(asked, 1), _text(asked, 2), None, _id_pattern(options, 2))


def parse_watch(request: bytes) -> WatchRequest:
    """Parse a WatchRequest. Raises CallRejected."""
    asked = read_message(request)
    options = read_message(asked.get(4, b""))
    _reject_options(options, 1, 4)
    name = _text(asked, 3) if 3 in asked else None
    pattern = "" if name is not None else _id_pattern(options, 4)
    selection = ResourceSelection(_text(asked, 1), _text(asked, 2), name, pattern)
    return WatchRequest(selection, bool(options.get(1)))


def read_message(data: object) -> Fields:
    """Return the fields of a message. Raises InvalidResponse."""
    return dict(fields(require_bytes(data, "a message")))


def _reject_options(options: Fields, *simulated: int) -> None:
    """Reject label queries, tail and aggregated events, and bookmarks."""
    for field in options.keys() - {*simulated}:
        raise make_not_simulated(f"option {field} of a request")


def _id_pattern(options: Fields, field: int) -> str:
    return _text(read_message(options.get(field, b"")), 1)


def _text(asked: Fields, field: int) -> str:
    return require_utf8(asked.get(field, b""), f"field {field}")
