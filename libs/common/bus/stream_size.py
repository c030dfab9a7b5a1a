"""Limits of the stream in bytes: whole steps, and a headroom for the messages of the leader."""

from collections.abc import Iterator
from typing import Final

STREAM_STEP_BYTES: Final = 64 * 1024 * 1024  # the smallest stream, and the step in which it grows
HEADROOM_BYTES: Final = 1024 * 1024  # the last part of the last step; the limit never includes it
# JetStream stores a record and the headers for expected sequence and TTL beside subject and payload.
_OVERHEAD_BYTES: Final = 192


def limit_for_bytes(needed: int) -> int:
    """The smallest limit that has room for the needed bytes: whole steps, less the headroom."""
    return max(1, -(-(needed + HEADROOM_BYTES) // STREAM_STEP_BYTES)) * STREAM_STEP_BYTES - HEADROOM_BYTES


def initial_limit(wanted: int) -> int:
    """The limit to create a stream with, before it grows to the wanted one."""
    return min(wanted, limit_for_bytes(0))


def grow_limit(limit: int, used_bytes: int) -> int:
    """The limit, or a larger one if the stream holds more than half of it."""
    return max(limit, limit_for_bytes(2 * used_bytes)) if is_half_full(limit, used_bytes) else limit


def is_half_full(limit: int, used_bytes: int) -> bool:
    """Whether the stream holds more than half of its limit; a negative limit means no limit."""
    return 0 <= limit < 2 * used_bytes


def candidate_limits(wanted: int, present: int) -> Iterator[int]:
    """Limits to try, largest first, because the store may have room for only a part of the growth."""
    yield wanted
    yield from range(wanted - STREAM_STEP_BYTES, present, -STREAM_STEP_BYTES)


def message_bytes(subject: str, payload: bytes) -> int:
    """Upper bound of the bytes that the stream counts for a message without caller headers."""
    return len(subject) + len(payload) + _OVERHEAD_BYTES


def subtract_headroom(limit: int) -> int:
    """Return the limit rounded down to whole steps less the headroom; one below a step stays as it is."""
    steps = (limit + HEADROOM_BYTES) // STREAM_STEP_BYTES
    return steps * STREAM_STEP_BYTES - HEADROOM_BYTES if steps else limit
