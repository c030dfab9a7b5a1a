"""How long the stream keeps a message, how many bytes it may have, and what derives from both."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

MAX_MESSAGE_AGE: Final = timedelta(hours=1)  # the stream drops older messages
MAX_MESSAGE_AGE_TEXT: Final = "an hour"
# The longest wait until a message is published again: one failed publish does not let it expire.
MAX_REPUBLISH_INTERVAL: Final = MAX_MESSAGE_AGE / 2
# The longest wait until the watcher publishes an object again.
MAX_RESYNC_INTERVAL: Final = MAX_MESSAGE_AGE / 3
MAX_RESYNC_INTERVAL_TEXT: Final = "20 minutes"
# A SnapshotComplete leaves the stream before the objects that it counts. The oldest of them was published one
# interval before it. Otherwise a follower that starts in between would take that object for absent.
SNAPSHOT_TTL: Final = MAX_MESSAGE_AGE / 2


def has_expired(published_at: datetime, now: datetime) -> bool:
    """Return whether the stream has dropped a message. It does not report that to followers."""
    return now - published_at > MAX_MESSAGE_AGE


STREAM_STEP_BYTES: Final = 64 * 1024 * 1024  # the smallest stream, and the step in which it grows
HEADROOM_BYTES: Final = 1024 * 1024  # the last part of the last step; the limit never includes it
# JetStream stores a record and the headers for expected sequence and TTL beside subject and payload.
_OVERHEAD_BYTES: Final = 192


def limit_for_bytes(needed: int) -> int:
    """Return the smallest limit with room for the needed bytes: whole steps, less the headroom."""
    return max(1, -(-(needed + HEADROOM_BYTES) // STREAM_STEP_BYTES)) * STREAM_STEP_BYTES - HEADROOM_BYTES


def initial_limit(wanted: int) -> int:
    """Return the limit with which to create a stream, before it grows to the wanted one."""
    return min(wanted, limit_for_bytes(0))


def grow_limit(limit: int, used_bytes: int) -> int:
    """Return the limit, or a larger one if more than half of it is used."""
    return max(limit, limit_for_bytes(2 * used_bytes)) if is_half_full(limit, used_bytes) else limit


def is_half_full(limit: int, used_bytes: int) -> bool:
    """Return whether more than half of the limit is used; a negative limit means no limit."""
    return 0 <= limit < 2 * used_bytes


def has_room_again(limit: int, used_bytes: int, rejected_bytes: int) -> bool:
    """Return whether a stream that rejected a publish is no longer full: it fits twice."""
    return limit < 0 or used_bytes + 2 * rejected_bytes < limit


def candidate_limits(wanted: int, present: int) -> Iterator[int]:
    """Yield the limits to try, largest first; the store may have room for only a part of the growth."""
    yield wanted
    yield from range(wanted - STREAM_STEP_BYTES, present, -STREAM_STEP_BYTES)


def message_bytes(subject: str, payload: bytes) -> int:
    """Return an upper bound of the bytes that the stream counts for a message without caller headers."""
    return len(subject) + len(payload) + _OVERHEAD_BYTES


def subtract_headroom(limit: int) -> int:
    """Return the limit rounded down to whole steps, less the headroom; one below a step is unchanged."""
    steps = (limit + HEADROOM_BYTES) // STREAM_STEP_BYTES
    return steps * STREAM_STEP_BYTES - HEADROOM_BYTES if steps else limit
