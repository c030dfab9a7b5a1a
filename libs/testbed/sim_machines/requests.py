"""The requests of COSI's State service, as far as our clients send them."""

from __future__ import annotations

import re

import msgspec

from libs.testbed.sim_machines.call_rejected import make_not_simulated
from libs.testbed.sim_machines.protobuf_wire import Fields, decode, get_message, get_number, get_text


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
    fields = decode(request)
    return ResourceSelection(get_text(fields, 1), get_text(fields, 2), get_text(fields, 3))


def parse_list(request: bytes) -> ResourceSelection:
    """Parse a ListRequest. Raises CallRejected."""
    fields = decode(request)
    options = decode(get_message(fields, 3))
    _reject_options(options, 2)
    return ResourceSelection(get_text(fields, 1), get_text(fields, 2), None, _id_pattern(options, 2))


def parse_watch(request: bytes) -> WatchRequest:
    """Parse a WatchRequest. Raises CallRejected."""
    fields = decode(request)
    options = decode(get_message(fields, 4))
    _reject_options(options, 1, 4)
    name = get_text(fields, 3) if 3 in fields else None
    pattern = "" if name is not None else _id_pattern(options, 4)
    selection = ResourceSelection(get_text(fields, 1), get_text(fields, 2), name, pattern)
    return WatchRequest(selection, bool(get_number(options, 1)))


def _reject_options(options: Fields, *simulated: int) -> None:
    """Reject label queries, tail and aggregated events, and bookmarks."""
    for field in options.keys() - {*simulated}:
        raise make_not_simulated(f"option {field} of a request")


def _id_pattern(options: Fields, field: int) -> str:
    return get_text(decode(get_message(options, field)), 1)
