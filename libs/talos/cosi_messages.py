"""Decodes the COSI messages around a resource.

A generic decoder would spend more time on unused fields (versions, timestamps, the same spec as YAML) than
on the facts. The fields, by the numbers of COSI's .proto files:

    GetResponse, ListResponse: 1 resource. WatchResponse: 1 event, repeated.
    Event: 1 resource, 2 event_type, 3 old, 4 error.
    Resource: 1 metadata, 2 spec. Metadata: 1 namespace, 2 type, 3 id. Spec: 1 proto_spec.
"""

from typing import Final, NamedTuple

from libs.talos.proto.generated import EventType
from libs.talos.proto.strict import InvalidResponse, fields, require_bytes, require_utf8

_NAMES: Final = {1: "namespace", 2: "type", 3: "id"}


class Resource(NamedTuple):
    """A resource with its spec still encoded. An absent and an empty spec are equal: encoders differ."""

    namespace: str
    type: str
    id: str
    spec: bytes


class Event(NamedTuple):
    """One event of a watch. `kind` may be an unknown number."""

    kind: int
    resource: Resource | None
    old: Resource | None
    error: str


def decode_response(data: bytes) -> Resource:
    """Return the resource of a GetResponse or ListResponse. Raises InvalidResponse."""
    found: bytes | None = None
    for number, value in fields(data):
        if number == 1:
            found = require_bytes(value, "resource")
    if found is None:
        raise InvalidResponse("an answer without a resource")
    return _decode_resource(found)


def decode_events(data: bytes, limit: int) -> list[Event]:
    """Return the events of a WatchResponse, at most `limit`. Raises InvalidResponse."""
    encoded = [require_bytes(value, "event") for number, value in fields(data) if number == 1]
    if len(encoded) > limit:
        raise InvalidResponse(f"more than {limit} events in one message")
    return [_decode_event(one) for one in encoded]


def _decode_event(data: bytes) -> Event:
    kind = int(EventType.CREATED)
    resource = old = None
    error = ""
    for number, value in fields(data):
        match number:
            case 1:
                resource = _decode_resource(require_bytes(value, "resource"))
            case 2:
                if not isinstance(value, int):
                    raise InvalidResponse("an event type that is not a number")
                kind = value
            case 3:
                old = _decode_resource(require_bytes(value, "old resource"))
            case 4:
                error = require_utf8(value, "error")
    return Event(kind, resource, old, error)


def _decode_resource(data: bytes) -> Resource:
    metadata: bytes | None = None
    spec = b""
    for number, value in fields(data):
        if number == 1:
            metadata = require_bytes(value, "metadata")
        elif number == 2:
            spec = _decode_proto_spec(require_bytes(value, "spec"))
    if metadata is None:
        raise InvalidResponse("a resource without metadata")
    texts = {"namespace": "", "type": "", "id": ""}
    for number, value in fields(metadata):
        if number in _NAMES:
            texts[_NAMES[number]] = require_utf8(value, _NAMES[number])
    return Resource(spec=spec, **texts)


def _decode_proto_spec(data: bytes) -> bytes:
    found = b""
    for number, value in fields(data):
        if number == 1:
            found = require_bytes(value, "proto_spec")
    return found
