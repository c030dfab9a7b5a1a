"""The answers of a Talos API server, encoded without the code that decodes them."""

from typing import Protocol

from libs.talos.proto.generated import EventType
from libs.testbed.sim_machines.protobuf_wire import encode


class Kind(Protocol):
    """A kind of resource, as a query or its request names it."""

    @property
    def namespace(self) -> str: ...
    @property
    def type(self) -> str: ...


def encode_resource(kind: Kind, identifier: str, spec: bytes) -> bytes:
    return encode({1: {1: kind.namespace, 2: kind.type, 3: identifier}, 2: [{1: spec}]})


def encode_answer(resource: bytes) -> bytes:
    """The answer to Get, or one of those to List."""
    return encode({1: [resource]})


def encode_event(kind: EventType, *, resource: bytes = b"", old: bytes = b"", error: str = "") -> bytes:
    """An answer to Watch with one event."""
    return encode({1: [{1: resource, 2: int(kind), 3: old, 4: error}]})
