"""The requests of COSI's State service, as far as our clients send them, and their rejections."""

from __future__ import annotations

import re
from enum import IntEnum

import msgspec

from libs.talos.proto import generated
from libs.talos.proto.generated import GetRequest, ListOptions, ListRequest, WatchOptions
from libs.talos.proto.strict import fields, parse, require_bytes

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
    """Parse a GetRequest. Raises InvalidResponse."""
    asked = parse(GetRequest, request)
    return ResourceSelection(asked.namespace, asked.type, asked.id)


def parse_list(request: bytes) -> ResourceSelection:
    """Parse a ListRequest. Raises CallRejected or InvalidResponse."""
    asked = parse(ListRequest, request)
    _reject_options(request, 3, simulated={2})
    return ResourceSelection(asked.namespace, asked.type, None, _get_pattern(asked.options))


def parse_watch(request: bytes) -> WatchRequest:
    """Parse a WatchRequest. Raises CallRejected or InvalidResponse."""
    asked = parse(generated.WatchRequest, request)
    _reject_options(request, 4, simulated={1, 4})
    pattern = "" if asked.id is not None else _get_pattern(asked.options)
    selection = ResourceSelection(asked.namespace, asked.type, asked.id, pattern)
    return WatchRequest(selection, asked.options is not None and asked.options.bootstrap_contents)


def _reject_options(request: bytes, field: int, *, simulated: set[int]) -> None:
    """Reject label queries, tail and aggregated events, and bookmarks."""
    options = require_bytes(dict(fields(request)).get(field, b""), "options")
    for number in dict(fields(options)).keys() - simulated:
        raise make_not_simulated(f"option {number} of a request")


def _get_pattern(options: ListOptions | WatchOptions | None) -> str:
    return options.id_query.regexp if options is not None and options.id_query is not None else ""
