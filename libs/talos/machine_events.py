"""Reads messages of COSI watches: the state of a machine when they open, and whether it has changed."""

from collections.abc import Callable
from typing import Final

import msgspec

from libs.common.contract.machine import AddressStatus, MachineFacts, PlatformMetadata
from libs.talos.cosi_messages import Event, Resource, decode_events
from libs.talos.machine_reading import (
    decode_stage,
    read_addresses,
    read_node_name,
    read_platform,
    read_stage,
)
from libs.talos.proto.generated import EventType
from libs.talos.proto.strict import InvalidResponse
from libs.talos.resources import MACHINE_STATUS, NODENAME, PLATFORM_METADATA, ResourceRef
from libs.talos.validation import MAX_MESSAGES, MAX_RESPONSE_BYTES, MAX_TEXT_CHARS, select_resources

MAX_EVENTS: Final = 1024
_STATE_EVENTS: Final = frozenset({EventType.CREATED, EventType.UPDATED, EventType.DESTROYED})


def _identity(spec: bytes) -> bytes:
    return spec


class WatchErrored(Exception):
    """The server ended the watch with an error, for example because the client read too slowly."""


class WatchSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The watched state when the watches opened. A query with equal facts has missed no change."""

    platform: PlatformMetadata | None  # None while the resource does not exist
    addresses: tuple[AddressStatus, ...]
    node_name: str
    stage: str = ""  # if it is watched

    def matches(self, facts: MachineFacts) -> bool:
        """Return whether a query returned the same watched facts."""
        seen = (facts.platform, facts.addresses, facts.node_name, facts.stage)
        return seen == (self.platform, self.addresses, self.node_name, self.stage)


class WatchOpening:
    """The beginning of one watch: an empty message, the current state, then changes."""

    __slots__ = ("_messages", "_read", "_size", "initial_resources", "is_open", "ref")

    def __init__(self, ref: ResourceRef) -> None:
        self.ref = ref
        self._read = decode_stage if ref == MACHINE_STATUS else _identity  # the readiness in it changes often
        self.is_open = False  # once the watch has sent the whole current state
        self.initial_resources: list[Resource] = []  # that state
        self._messages = 0  # number and bytes of messages until the watch is open
        self._size = 0

    def release(self) -> None:
        """Free the state after it was read."""
        self.initial_resources = []

    def apply(self, answer: bytes) -> int:
        """Apply a WatchResponse; return the number of events that change a spec.

        The initial state is no change, and neither is an update of metadata alone (a version, a finalizer).
        Raises WatchErrored, InvalidResponse.
        """
        if not self.is_open:
            self._check_length(len(answer))
        changes = 0
        for event in _events(answer):
            if self.is_open:
                changes += _is_change(event, self._read)
            else:
                self._begin(event)
        return changes

    def _check_length(self, size: int) -> None:
        self._messages += 1
        self._size += size
        if self._size > MAX_RESPONSE_BYTES or self._messages > MAX_MESSAGES:
            raise InvalidResponse(
                f"a watch that has not opened after {MAX_RESPONSE_BYTES} bytes or {MAX_MESSAGES} messages"
            )

    def _begin(self, event: Event) -> None:
        if event.kind not in _STATE_EVENTS:
            self.is_open = event.kind == EventType.BOOTSTRAPPED and not self.ref.id
            return
        if event.kind != EventType.DESTROYED and event.resource is not None:
            self.initial_resources.append(event.resource)
        if self.ref.id:
            self.is_open = True
        elif len(self.initial_resources) > self.ref.limit:
            raise InvalidResponse(f"more than {self.ref.limit} of {self.ref.step}")


def build_snapshot(openings: dict[ResourceRef, WatchOpening]) -> WatchSnapshot:
    """Return the state that the watches found. Raises InvalidResponse."""
    found = {ref: select_resources(ref, opening.initial_resources) for ref, opening in openings.items()}
    platform, name, status = found.pop(PLATFORM_METADATA), found.pop(NODENAME), found.pop(MACHINE_STATUS, [])
    (addresses,) = found.values()
    return WatchSnapshot(
        platform=read_platform(platform) if platform else None,
        addresses=read_addresses(addresses),
        node_name=read_node_name(name) if name else "",
        stage=read_stage(status) if status else "",
    )


def _events(answer: bytes) -> list[Event]:
    found = decode_events(answer, MAX_EVENTS)
    for event in found:
        if event.kind == EventType.ERRORED:
            raise WatchErrored((event.error or "no reason given")[:MAX_TEXT_CHARS])
    return found


def _is_change(event: Event, read: Callable[[bytes], object]) -> bool:
    if event.kind not in _STATE_EVENTS:
        return False
    return event.kind != EventType.UPDATED or read(_spec_of(event.resource)) != read(_spec_of(event.old))


def _spec_of(resource: Resource | None) -> bytes:
    return resource.spec if resource else b""
