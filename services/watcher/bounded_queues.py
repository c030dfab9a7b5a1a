"""Queues that keep a limited number of the newest entries."""

from bisect import insort
from datetime import UTC, datetime
from typing import Final

from libs.common.contract.node import ObjectMeta

_MIN_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
_Entry = tuple[datetime, str]


class BoundedQueues:
    """Keeps names in queues, ordered by the creation time of their objects, then by name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[str, list[_Entry]] = {}

    def add(self, queue: str, metadata: ObjectMeta) -> str | None:
        """Add an object; return the name evicted for it: None, the oldest one or its own."""
        entries = self._entries.setdefault(queue, [])
        insort(entries, _make_entry(metadata))
        return entries.pop(0)[1] if len(entries) > self._limit else None

    def is_full(self, queue: str) -> bool:
        """Whether one more entry evicts the oldest."""
        return len(self._entries.get(queue, ())) >= self._limit

    def remove(self, queue: str, metadata: ObjectMeta) -> None:
        """Remove an object that no longer waits."""
        entries = self._entries[queue]
        entries.remove(_make_entry(metadata))
        if not entries:
            del self._entries[queue]


def _make_entry(metadata: ObjectMeta) -> _Entry:
    return (metadata.creation_timestamp or _MIN_TIME, metadata.name)
