"""How large the stream may be: whole steps for what it holds, and a headroom that only the leader uses."""

from collections.abc import Iterator
from typing import Final

STREAM_STEP_BYTES: Final = 64 * 1024 * 1024  # the smallest stream, and the step in which it grows
HEADROOM_BYTES: Final = 1024 * 1024  # the last part of the last step; the limit never includes it
# What the stream stores for a message beside subject and payload: its record, the expected sequence, the TTL.
_OVERHEAD_BYTES: Final = 192


def limit_for(needed: int) -> int:
    """The smallest limit in whole steps, less the headroom, that has room for that many bytes."""
    return max(1, -(-(needed + HEADROOM_BYTES) // STREAM_STEP_BYTES)) * STREAM_STEP_BYTES - HEADROOM_BYTES


def first_limit(wanted: int) -> int:
    """The limit to create a stream with, before it grows to the wanted one."""
    return min(wanted, limit_for(0))


def grown(limit: int, held: int) -> int:
    """The limit, or a larger one if more than half of it is in use. Never a smaller one."""
    return max(limit, limit_for(2 * held)) if is_half_full(limit, held) else limit


def is_half_full(limit: int, held: int) -> bool:
    """Whether a stream with that limit has to grow; a limit below 0 is none."""
    return 0 <= limit < 2 * held


def candidates(wanted: int, present: int) -> Iterator[int]:
    """The limits to try, largest first: a store may have room for some of the growth only."""
    yield wanted
    yield from range(wanted - STREAM_STEP_BYTES, present, -STREAM_STEP_BYTES)


def message_bytes(subject: str, payload: bytes) -> int:
    """The most that a message without headers of its own takes of the limit."""
    return len(subject) + len(payload) + _OVERHEAD_BYTES


def without_headroom(limit: int) -> int:
    """The largest limit up to that one which leaves the headroom free: something may have used it before."""
    steps = (limit + HEADROOM_BYTES) // STREAM_STEP_BYTES
    return steps * STREAM_STEP_BYTES - HEADROOM_BYTES if steps else limit
