"""The newest few of each queue: what is older has no place in it."""

from bisect import insort
from datetime import UTC, datetime
from typing import Final

from libs.common.node import ObjectMeta

_BEFORE_ALL: Final = datetime(1, 1, 1, tzinfo=UTC)
_Place = tuple[datetime, str]


class Newest:
    """Names in queues, by the creation of their objects; of the same second, by name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: dict[str, list[_Place]] = {}

    def add(self, queue: str, metadata: ObjectMeta) -> str | None:
        """Give it a place; returns whose was lost for it: nobody's, the oldest one's or its own."""
        places = self._queues.setdefault(queue, [])
        insort(places, _place(metadata))
        return places.pop(0)[1] if len(places) > self._limit else None

    def is_full(self, queue: str) -> bool:
        """Whether one more costs the oldest its place."""
        return len(self._queues.get(queue, ())) >= self._limit

    def remove(self, queue: str, metadata: ObjectMeta) -> None:
        """It waits no more."""
        places = self._queues[queue]
        places.remove(_place(metadata))
        if not places:
            del self._queues[queue]


def _place(metadata: ObjectMeta) -> _Place:
    return (metadata.creation_timestamp or _BEFORE_ALL, metadata.name)
