"""The resources of one machine with their versions, and the events between two states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from libs.talos.proto.generated import EventType
from libs.testbed.sim_machines.protobuf_wire import Field, encode
from libs.testbed.sim_machines.requests import CallRejected, ResourceSelection, StatusCode, WatchRequest
from libs.testbed.sim_machines.resources import SimResource

Key = tuple[str, str, str]  # namespace, type, id

_SECOND = 10**9


class StoredResource(msgspec.Struct, frozen=True):
    """A stored resource. Times are nanoseconds since 1970."""

    resource: SimResource
    version: int
    created: int
    updated: int


class CosiEvent(msgspec.Struct, frozen=True):
    """One event of a watch. `resource` is encoded once for many watches."""

    type: EventType
    namespace: str
    kind: str
    id: str
    resource: bytes = b""
    old: bytes = b""

    def message(self) -> bytes:
        """Return the WatchResponse with only this event."""
        return encode({1: {1: self.resource, 2: self.type, 3: self.old}})


State = Mapping[Key, StoredResource]


def reconcile(
    state: State, wanted: Sequence[SimResource], now: int
) -> tuple[dict[Key, StoredResource], list[CosiEvent]]:
    """Return the state with exactly these resources, and the events; unchanged ones keep their version."""
    after: dict[Key, StoredResource] = {}
    events: list[CosiEvent] = []
    for resource in wanted:
        key = resource.namespace, resource.type, resource.id
        before = state.get(key)
        if before is None:
            after[key] = StoredResource(resource, 1, now, now)
            events.append(_make_event(EventType.CREATED, after[key]))
        elif before.resource == resource:
            after[key] = before
        else:
            after[key] = StoredResource(resource, before.version + 1, before.created, now)
            events.append(_make_event(EventType.UPDATED, after[key], before))
    events += [_make_event(EventType.DESTROYED, held) for key, held in state.items() if key not in after]
    return after, events


def get_resource(state: State, asked: ResourceSelection) -> bytes:
    """Return the encoded resource. Raises CallRejected if it does not exist."""
    held = state.get((asked.namespace, asked.type, asked.id or ""))
    if held is None:
        name = f"{asked.type}({asked.namespace}/{asked.id}@undefined)"
        raise CallRejected(StatusCode.NOT_FOUND, f"resource {name} doesn't exist")
    return encode_resource(held)


def select_resources(state: State, asked: ResourceSelection) -> list[StoredResource]:
    """Return the selected resources, sorted by ID."""
    found = (state[key] for key in sorted(state) if key[:2] == (asked.namespace, asked.type))
    return [held for held in found if asked.matches_id(held.resource.id)]


def list_opening_events(state: State, request: WatchRequest, now: int) -> Iterator[CosiEvent]:
    """Yield the first events of a watch: the resource or a tombstone; for a type its contents on request."""
    asked = request.selection
    if asked.id is None and not request.bootstrap_contents:
        return
    found = select_resources(state, asked)
    for held in found:
        yield _make_event(EventType.CREATED, held)
    if asked.id is None:
        yield _make_tombstone(EventType.BOOTSTRAPPED, asked, now)
    elif not found:
        yield _make_tombstone(EventType.DESTROYED, asked, now)


def matches_watch(event: CosiEvent, request: WatchRequest) -> bool:
    """Whether a watch gets this event."""
    asked = request.selection
    return (event.namespace, event.kind) == (asked.namespace, asked.type) and asked.matches_id(event.id)


def encode_resource(held: StoredResource) -> bytes:
    """Return the cosi.resource.Resource, with only the proto encoding of the spec."""
    resource = held.resource
    return _encode_envelope(
        (resource.namespace, resource.type, resource.id),
        {4: str(held.version), 5: resource.owner},
        (held.created, held.updated),
        resource.spec,
    )


def _make_tombstone(kind: EventType, asked: ResourceSelection, now: int) -> CosiEvent:
    name = asked.id or ""
    key = asked.namespace, asked.type, name
    return CosiEvent(kind, *key, _encode_envelope(key, {4: "undefined"}, (now, now), b""))


def _encode_envelope(key: Key, written: Mapping[int, Field], times: tuple[int, int], spec: bytes) -> bytes:
    created, updated = ({1: time // _SECOND, 2: time % _SECOND} for time in times)
    metadata = {1: key[0], 2: key[1], 3: key[2], **written, 6: "running", 7: created, 8: updated}
    return encode({1: metadata, 2: [{1: spec}]})  # a tombstone has an empty spec


def _make_event(kind: EventType, held: StoredResource, old: StoredResource | None = None) -> CosiEvent:
    resource = held.resource
    before = encode_resource(old) if old else b""
    return CosiEvent(kind, resource.namespace, resource.type, resource.id, encode_resource(held), before)
