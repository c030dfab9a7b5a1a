"""The newest few of each queue: what is older has no place in it."""

from bisect import insort
from datetime import UTC, datetime
from typing import Final

from libs.common.contract.node import ObjectMeta

_MIN_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
_Entry = tuple[datetime, str]


class BoundedQueues:
    """Names in queues, by the creation of their objects; of the same second, by name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[str, list[_Entry]] = {}

    def add(self, queue: str, metadata: ObjectMeta) -> str | None:
        """Give it a place; returns whose was lost for it: nobody's, the oldest one's or its own."""
        places = self._entries.setdefault(queue, [])
        insort(places, _make_entry(metadata))
        return places.pop(0)[1] if len(places) > self._limit else None

    def is_full(self, queue: str) -> bool:
        """Whether one more costs the oldest its place."""
        return len(self._entries.get(queue, ())) >= self._limit

    def remove(self, queue: str, metadata: ObjectMeta) -> None:
        """It waits no more."""
        places = self._entries[queue]
        places.remove(_make_entry(metadata))
        if not places:
            del self._entries[queue]


def _make_entry(metadata: ObjectMeta) -> _Entry:
    return (metadata.creation_timestamp or _MIN_TIME, metadata.name)
