"""The requests of COSI's State service, decoded and validated as COSI's server does."""

from __future__ import annotations

import re

import msgspec

from libs.testbed.sim_machines.call_rejected import CallRejected, StatusCode, make_not_simulated
from libs.testbed.sim_machines.protobuf_wire import (
    Fields,
    decode,
    get_message,
    get_messages,
    get_number,
    get_text,
)

_VALUE_NEEDED = frozenset({1, 4, 5, 6, 7})  # EQUAL, LT, LTE, LT_NUMERIC, LTE_NUMERIC
# Accepted by Python's `re`, not by Go's RE2: look-around, conditions, atomic groups, back references.
_NOT_RE2 = re.compile(r"\(\?(?:<?[=!]|[(>#]|P=)|\\[1-9]|[*+?}]\+")


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
    sends_bootstrapped: bool  # clients with api_version 0 do not know BOOTSTRAPPED and ERRORED


def parse_get(request: bytes) -> ResourceSelection:
    """Parse a GetRequest. Raises MalformedMessage."""
    fields = decode(request)
    return ResourceSelection(get_text(fields, 1), get_text(fields, 2), get_text(fields, 3))


def parse_type(request: bytes) -> str:
    """Return the type of a ListRequest or WatchRequest. Raises MalformedMessage."""
    return get_text(decode(request), 2)


def parse_list(request: bytes) -> ResourceSelection:
    """Parse a ListRequest. Raises MalformedMessage, or CallRejected as COSI's server does."""
    fields = decode(request)
    options = decode(get_message(fields, 3))
    _reject_labels(get_messages(options, 1))
    return ResourceSelection(get_text(fields, 1), get_text(fields, 2), None, _id_pattern(options, 2))


def parse_watch(request: bytes) -> WatchRequest:
    """Parse a WatchRequest. Raises MalformedMessage, or CallRejected as COSI's server does.

    Events of this server have no bookmarks, so it rejects every bookmark.
    """
    fields = decode(request)
    options = decode(get_message(fields, 4))
    name = get_text(fields, 3) if 3 in fields else None
    bootstrap = bool(get_number(options, 1))
    if name is not None:
        _reject_single_options(bootstrap, options)
    _reject_labels(get_messages(options, 3))
    if bootstrap and (get_number(options, 2) or 6 in options):
        words = "cannot use BootstrapContents with TailEvents and StartFromBookmark options"
        raise CallRejected(StatusCode.UNKNOWN, words)
    if 6 in options:
        raise CallRejected(StatusCode.FAILED_PRECONDITION, "invalid watch bookmark")
    for field, what in ((2, "tail events"), (5, "aggregated events"), (7, "bootstrap bookmark")):
        if get_number(options, field):
            raise make_not_simulated(what)
    pattern = "" if name is not None else _id_pattern(options, 4)
    selection = ResourceSelection(get_text(fields, 1), get_text(fields, 2), name, pattern)
    return WatchRequest(selection, bootstrap, bool(get_number(fields, 5)))


def _reject_single_options(bootstrap: bool, options: Fields) -> None:
    if bootstrap:
        words = "bootstrap contents is not implemented for resource watch"
        raise CallRejected(StatusCode.UNIMPLEMENTED, words)
    if 3 in options:
        raise CallRejected(StatusCode.UNIMPLEMENTED, "label query is not implemented for resource watch")


def _reject_labels(queries: list[bytes]) -> None:
    """Reject every label query: COSI's server panics on a term without a value, the rest is not simulated."""
    for query in queries:
        for term in map(decode, get_messages(decode(query), 1)):
            if get_number(term, 2) in _VALUE_NEEDED and 3 not in term:
                raise CallRejected(StatusCode.INTERNAL, "runtime error: index out of range [0] with length 0")
    if queries:
        raise make_not_simulated("label query")


def _id_pattern(options: Fields, field: int) -> str:
    pattern = get_text(decode(get_message(options, field)), 1)
    if _NOT_RE2.search(pattern):
        raise CallRejected(StatusCode.INVALID_ARGUMENT, f"failed to compile regexp: not in RE2: `{pattern}`")
    try:
        re.compile(pattern)
    except re.error as error:
        raise CallRejected(
            StatusCode.INVALID_ARGUMENT, f"failed to compile regexp: {error}: `{pattern}`"
        ) from error
    return pattern
