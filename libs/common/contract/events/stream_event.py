"""The first fields of all events, in wire order. msgspec encodes the fields of a base class first."""

import msgspec


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """An event of the stream with this ID."""

    stream_id: str


class EnrichedEvent(StreamEvent, frozen=True, kw_only=True):
    """An event of metadata about one observation of the watcher."""

    observed_sequence: int  # stream sequence of the observation; determines the order
