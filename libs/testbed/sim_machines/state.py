"""The resources of one machine with their versions, and the events that lead from one state to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum

import msgspec

from libs.testbed.sim_machines.refusal import Code, Refused
from libs.testbed.sim_machines.requests import Selection, WatchRequest
from libs.testbed.sim_machines.resources import Resource
from libs.testbed.sim_machines.wire import Field, encode

Key = tuple[str, str, str]  # namespace, type, id

_SECOND = 10**9


class Held(msgspec.Struct, frozen=True):
    """A resource as it is stored. Times are nanoseconds since 1970."""

    resource: Resource
    version: int
    created: int
    updated: int


class EventType(IntEnum):
    """COSI's numbers."""

    CREATED = 0
    UPDATED = 1
    DESTROYED = 2
    BOOTSTRAPPED = 3
    ERRORED = 4


class Event(msgspec.Struct, frozen=True):
    """One event of a watch. `resource` is encoded already: an event goes to many watches."""

    type: EventType
    namespace: str
    kind: str
    id: str
    resource: bytes = b""
    old: bytes = b""
    error: str = ""

    def message(self) -> bytes:
        """The WatchResponse with this event alone."""
        return encode({1: {1: self.resource, 2: self.type, 3: self.old, 4: self.error}})


State = Mapping[Key, Held]


def reconcile(state: State, wanted: Sequence[Resource], now: int) -> tuple[dict[Key, Held], list[Event]]:
    """The state that holds exactly what is wanted. What does not differ has no event and no new version."""
    after: dict[Key, Held] = {}
    events: list[Event] = []
    for resource in wanted:
        key = resource.namespace, resource.type, resource.id
        before = state.get(key)
        if before is None:
            after[key] = Held(resource, 1, now, now)
            events.append(_event(EventType.CREATED, after[key]))
        elif before.resource == resource:
            after[key] = before
        else:
            after[key] = Held(resource, before.version + 1, before.created, now)
            events.append(_event(EventType.UPDATED, after[key], before))
    events += [_event(EventType.DESTROYED, held) for key, held in state.items() if key not in after]
    return after, events


def get(state: State, asked: Selection) -> bytes:
    """The resource, encoded. Raises Refused if there is none."""
    held = state.get((asked.namespace, asked.type, asked.id or ""))
    if held is None:
        name = f"{asked.type}({asked.namespace}/{asked.id}@undefined)"
        raise Refused(Code.NOT_FOUND, f"resource {name} doesn't exist")
    return encode_resource(held)


def select(state: State, asked: Selection) -> list[Held]:
    """What is asked for, sorted by id."""
    found = (state[key] for key in sorted(state) if key[:2] == (asked.namespace, asked.type))
    return [held for held in found if asked.has(held.resource.id)]


def opening(state: State, request: WatchRequest, now: int) -> Iterator[Event]:
    """How a watch begins: one resource as it is or as a tombstone; a type with its contents if asked for."""
    asked = request.of
    if asked.id is None and not request.bootstrap_contents:
        return
    found = select(state, asked)
    for held in found:
        yield _event(EventType.CREATED, held)
    if asked.id is None:
        yield from _tombstone(EventType.BOOTSTRAPPED, asked, now) if request.tells_bootstrapped else ()
    elif not found:
        yield from _tombstone(EventType.DESTROYED, asked, now)


def concerns(event: Event, request: WatchRequest) -> bool:
    """Whether a watch gets this event."""
    asked = request.of
    return (event.namespace, event.kind) == (asked.namespace, asked.type) and asked.has(event.id)


def overrun(request: WatchRequest, capacity: int) -> Event:
    """The last event of a watch whose client was too slow."""
    asked = request.of
    words = f"buffer overrun: namespace {asked.namespace!r}, type {asked.type!r}, capacity {capacity}"
    return Event(EventType.ERRORED, asked.namespace, asked.type, "", error=words)


def encode_resource(held: Held) -> bytes:
    """cosi.resource.Resource, with the proto encoding of the spec only."""
    resource = held.resource
    return _envelope(
        (resource.namespace, resource.type, resource.id),
        {4: str(held.version), 5: resource.owner},
        (held.created, held.updated),
        resource.spec,
    )


def _tombstone(kind: EventType, asked: Selection, now: int) -> Iterator[Event]:
    name = asked.id or ""
    key = asked.namespace, asked.type, name
    yield Event(kind, *key, _envelope(key, {4: "undefined"}, (now, now), b""))


def _envelope(key: Key, written: Mapping[int, Field], times: tuple[int, int], spec: bytes) -> bytes:
    created, updated = ({1: time // _SECOND, 2: time % _SECOND} for time in times)
    metadata = {1: key[0], 2: key[1], 3: key[2], **written, 6: "running", 7: created, 8: updated}
    return encode({1: metadata, 2: [{1: spec}]})  # a tombstone has a spec too, an empty one


def _event(kind: EventType, held: Held, old: Held | None = None) -> Event:
    resource = held.resource
    before = encode_resource(old) if old else b""
    return Event(kind, resource.namespace, resource.type, resource.id, encode_resource(held), before)
