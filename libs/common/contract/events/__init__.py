"""The schema of every message: frozen structs, tagged with a version, JSON on the wire."""

from typing import Final

import msgspec

from libs.common.contract.events.decisions import DeadLetter, Decided
from libs.common.contract.events.from_metadata import (
    ClusterNetworksObserved,
    CsrEnriched,
    EnrichedCsrGone,
    EnrichedNodeGone,
    NodeEnriched,
    NodeUnreachable,
)
from libs.common.contract.events.from_watcher import (
    CsrGone,
    CsrObserved,
    Leading,
    NodeGone,
    NodeObserved,
    ObservationOrder,
    SnapshotComplete,
)

__all__ = [
    "MAX_EVENT_BYTES",
    "ClusterNetworksObserved",
    "CsrEnriched",
    "CsrGone",
    "CsrObserved",
    "DeadLetter",
    "Decided",
    "EnrichedCsr",
    "EnrichedCsrGone",
    "EnrichedNode",
    "EnrichedNodeGone",
    "Event",
    "EventError",
    "Leading",
    "NodeEnriched",
    "NodeGone",
    "NodeObserved",
    "NodeUnreachable",
    "ObservationOrder",
    "ObservedCsr",
    "ObservedNode",
    "SnapshotComplete",
    "decode",
    "encode",
]

ObservedNode = NodeObserved | NodeGone
EnrichedNode = NodeEnriched | NodeUnreachable | EnrichedNodeGone
ObservedCsr = CsrObserved | CsrGone
EnrichedCsr = CsrEnriched | EnrichedCsrGone
Event = (
    ObservedNode
    | EnrichedNode
    | ObservedCsr
    | EnrichedCsr
    | ClusterNetworksObserved
    | SnapshotComplete
    | Leading
    | Decided
    | DeadLetter
)

MAX_EVENT_BYTES: Final = 256 * 1024  # far above any node we know; a larger one is refused, not truncated

# So much larger is a Node of whose machine only a fault is told. Who can be observed can be spoken of: ipam
# waits for a word on each Node, and one whose annotations fill a message must not keep all of them waiting.
_FAULT_BYTES: Final = 4 * 1024

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class EventError(Exception):
    """Bytes that are no event of this schema; the message says where it broke."""


def encode(event: Event) -> bytes:
    """JSON of the event. Raises EventError when it is larger than MAX_EVENT_BYTES, a NodeObserved sooner."""
    data = _encoder.encode(event)
    limit = MAX_EVENT_BYTES - (_FAULT_BYTES if isinstance(event, NodeObserved) else 0)
    if len(data) > limit:
        raise EventError(f"{type(event).__name__} has {len(data)} bytes, the limit is {limit}")
    return data


def decode(data: bytes) -> Event:
    """The event in these bytes. Raises EventError on anything that is none, however it is broken."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EventError(f"not an event of this schema: {error}") from error
