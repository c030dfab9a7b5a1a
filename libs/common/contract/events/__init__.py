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
from libs.common.json_errors import JSON_ERRORS

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

MAX_EVENT_BYTES: Final = 256 * 1024  # far above any known Node; a larger event is rejected, not truncated

# NodeUnreachable is larger than NodeObserved by at most this much. A smaller limit for NodeObserved ensures
# that metadata can report on every observed Node. ipam waits for a report on each Node, so a single Node with
# large annotations would stop all allocations.
_FAULT_BYTES: Final = 4 * 1024

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class EventError(Exception):
    """The bytes are not an event of this schema; the message contains the position of the error."""


def encode(event: Event) -> bytes:
    """Return the event as JSON. Raises EventError above MAX_EVENT_BYTES (NodeObserved: 4 KiB less)."""
    data = _encoder.encode(event)
    limit = MAX_EVENT_BYTES - (_FAULT_BYTES if isinstance(event, NodeObserved) else 0)
    if len(data) > limit:
        raise EventError(f"{type(event).__name__} has {len(data)} bytes, the limit is {limit}")
    return data


def decode(data: bytes) -> Event:
    """Parse an event. Raises EventError, and no other exception, for any other bytes."""
    try:
        return _decoder.decode(data)
    except JSON_ERRORS as error:
        raise EventError(f"not an event of this schema: {error}") from error
