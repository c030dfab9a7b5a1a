"""Messages of COSI watches -> what a machine looks like when they open, and whether it has changed since."""

from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.machine import AddressStatus, MachineFacts, PlatformMetadata
from services.metadata.talos_api.answer import LARGEST_ANSWER_BYTES, MOST_MESSAGES
from services.metadata.talos_api.checked import LONGEST_TEXT, Unreadable
from services.metadata.talos_api.envelopes import Event, Resource, events
from services.metadata.talos_api.lifecycle_reading import stage_in, stage_of
from services.metadata.talos_api.machine_reading import (
    MOST_ADDRESSES,
    addresses_in,
    node_name_in,
    platform_in,
)
from services.metadata.talos_api.proto.generated.cosi.resource import EventType
from services.metadata.talos_api.proto.strict import Malformed
from services.metadata.talos_api.resources import MACHINE_STATUS, NODENAME, PLATFORM_METADATA, Asked

MOST_EVENTS: Final = 1024
_STATE: Final = frozenset({EventType.CREATED, EventType.UPDATED, EventType.DESTROYED})


def _as_it_is(spec: bytes) -> bytes:
    return spec


class WatchErrored(Exception):
    """The server says that this watch will carry nothing more (a slow reader, for one)."""


def count_changes(answer: bytes) -> int:
    """How many events of one WatchResponse tell of another spec.

    An event that changed only metadata (a version, a finalizer) is none. Raises WatchErrored, Unreadable.
    """
    return sum(map(_is_change, _events(answer)))


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What is watched, as the watches found it: a look whose facts agree has missed nothing."""

    platform: PlatformMetadata | None  # None while Talos has none
    addresses: tuple[AddressStatus, ...]
    node_name: str
    stage: str = ""  # where it is watched

    def agree_with(self, facts: MachineFacts) -> bool:
        """Whether a look saw the same, as far as it is watched."""
        seen = (facts.platform, facts.addresses, facts.node_name, facts.stage)
        return seen == (self.platform, self.addresses, self.node_name, self.stage)


class Opening:
    """How one watch opens: an empty message, the state of now, then changes."""

    __slots__ = ("_asked", "_found", "_is_open", "_messages", "_read", "_size")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._read = stage_of if asked == MACHINE_STATUS else _as_it_is  # whether it is ready comes and goes
        self._is_open = False
        self._found: list[Resource] = []
        self._messages = 0  # and their bytes, until it is open
        self._size = 0

    @property
    def is_open(self) -> bool:
        """Whether the state of now has been told in full."""
        return self._is_open

    @property
    def resources(self) -> list[Resource]:
        """The state of now, once it has been told."""
        return self._found

    def forget(self) -> None:
        """The state of now has been read."""
        self._found = []

    def hear(self, answer: bytes) -> bool:
        """Whether one WatchResponse tells of a change; the state that the watch begins with is none.

        Raises WatchErrored, Unreadable.
        """
        if not self._is_open:
            self._judge_length(len(answer))
        changes = 0
        for event in _events(answer):
            if self._is_open:
                changes += _is_change(event, self._read)
            else:
                self._begin(event)
        return changes > 0

    def _judge_length(self, size: int) -> None:
        self._messages += 1
        self._size += size
        if self._size > LARGEST_ANSWER_BYTES or self._messages > MOST_MESSAGES:
            raise Unreadable(
                f"a watch that has not opened after {LARGEST_ANSWER_BYTES} bytes or {MOST_MESSAGES} messages"
            )

    def _begin(self, event: Event) -> None:
        if event.kind not in _STATE:
            self._is_open = event.kind == EventType.BOOTSTRAPPED and not self._asked.id
            return
        if event.kind != EventType.DESTROYED and event.resource is not None:
            self._found.append(event.resource)
        if self._asked.id:
            self._is_open = True
        elif len(self._found) > MOST_ADDRESSES:
            raise Unreadable(f"more than {MOST_ADDRESSES} of {self._asked.step}")


def contents_of(openings: dict[Asked, Opening]) -> Contents:
    """What the watches found, by what they watch. Raises Unreadable."""
    found = {asked: opening.resources for asked, opening in openings.items()}
    platform, name, status = found.pop(PLATFORM_METADATA), found.pop(NODENAME), found.pop(MACHINE_STATUS, [])
    (addresses,) = found.values()
    return Contents(
        platform=platform_in(platform[0]) if platform else None,
        addresses=addresses_in(addresses),
        node_name=node_name_in(name[0]) if name else "",
        stage=stage_in(status[0]) if status else "",
    )


def _events(answer: bytes) -> list[Event]:
    try:
        found = events(answer, MOST_EVENTS)
    except Malformed as error:
        raise Unreadable(str(error)) from error
    for event in found:
        if event.kind == EventType.ERRORED:
            raise WatchErrored((event.error or "no reason given")[:LONGEST_TEXT])
    return found


def _is_change(event: Event, read: Callable[[bytes], object] = _as_it_is) -> bool:
    if event.kind not in _STATE:
        return False
    return event.kind != EventType.UPDATED or read(_spec_of(event.resource)) != read(_spec_of(event.old))


def _spec_of(resource: Resource | None) -> bytes:
    return resource.spec if resource else b""
