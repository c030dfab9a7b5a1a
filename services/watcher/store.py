"""The objects of one kind as the API server last told them, and as of when."""

from collections.abc import Iterable, Iterator, KeysView
from typing import Generic

from libs.common.contract.node import parse_resource_version
from services.watcher.bounded_queues import BoundedQueues
from services.watcher.kinds import MAX_PENDING_PER_REQUESTER, Kind, ObjectT


class Store(Generic[ObjectT]):
    """A list, kept up to date by what a watch tells; each change names the objects that it concerns.

    It holds what is said: not what is none of our business, and of a queue the newest only. What has lost
    its place there is forgotten until it is told again; to everybody else it has gone.
    """

    def __init__(self, kind: Kind[ObjectT]) -> None:
        self._kind = kind
        self._objects: dict[str, ObjectT] = {}
        self._queues = BoundedQueues(MAX_PENDING_PER_REQUESTER)
        self._unreadable: set[str] = set()
        self._last_resource_version = 0
        self._has_synced = False

    @property
    def has_synced(self) -> bool:
        """Whether there has been a list: before it, no name that is missing has gone."""
        return self._has_synced

    @property
    def last_resource_version(self) -> int:
        """The last resourceVersion heard: who is missing here did not exist as of it."""
        return self._last_resource_version

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[ObjectT]:
        return iter(self._objects.values())

    def extend(self, objects: Iterable[ObjectT]) -> None:
        """Some of a list; what has no place beside the rest is not even remembered until its end."""
        for each in objects:
            self._upsert(each)

    def names(self) -> KeysView[str]:
        """Of every object that can be read."""
        return self._objects.keys()

    def get(self, name: str) -> ObjectT | None:
        """What we read of that object, None if there is none or it cannot be read."""
        return self._objects.get(name)

    def may_be_evicted(self, name: str) -> bool:
        """Whether that object will lose its place to the next ones of its queue."""
        found = self._objects.get(name)
        queue = self._kind.queue_key(found) if found is not None else ""
        return bool(queue) and self._queues.is_full(queue)

    def is_unreadable(self, name: str) -> bool:
        """Whether an object of that name exists which cannot be read: it has not gone."""
        return name in self._unreadable

    def republished_names_by_uid(self) -> dict[str, str]:
        """For the resync, whose turns belong to uids: of those only that have turns."""
        return {each.uid: name for name, each in self._objects.items() if self._kind.is_republished(each)}

    def replace(
        self, objects: Iterable[ObjectT], unreadable: Iterable[str], resource_version: str
    ) -> set[str]:
        """A list; returns the names that it changed, those that are no more included."""
        before = self._objects
        self._objects, self._queues = {}, BoundedQueues(MAX_PENDING_PER_REQUESTER)
        self.extend(objects)
        self._unreadable = set(unreadable)
        self._has_synced = True
        self._last_resource_version = parse_resource_version(resource_version)
        now = self._objects
        kept = {name for name in before.keys() & now.keys() if before[name] == now[name]}
        return (before.keys() | now.keys()) - kept

    def put(self, changed: ObjectT) -> set[str]:
        """It was added or modified; returns the names that it changed in a way that we read."""
        self.advance_version(changed.metadata.resource_version)
        self._unreadable.discard(changed.name)
        return self._upsert(changed)

    def remove(self, name: str, resource_version: str) -> None:
        """It was deleted."""
        self._discard(name)
        self._unreadable.discard(name)
        self.advance_version(resource_version)

    def mark_unreadable(self, name: str) -> None:
        """It exists, but not in a shape that we read; what was known of it is old."""
        self._discard(name)
        self._unreadable.add(name)

    def advance_version(self, resource_version: str) -> None:
        """A bookmark, or any other object of the watch, bore this version."""
        self._last_resource_version = max(
            self._last_resource_version, parse_resource_version(resource_version)
        )

    def _upsert(self, obj: ObjectT) -> set[str]:
        kind, name = self._kind, obj.name
        if not kind.is_relevant(obj):
            return set()
        known, read = self._discard(name), kind.transform(obj)
        self._objects[name] = read
        queue = kind.queue_key(read)
        lost = self._queues.add(queue, read.metadata) if queue else None
        if lost is not None:
            del self._objects[lost]
        if lost == name:
            return set() if known is None else {name}
        news = set() if known is not None and kind.is_same(known, read) else {name}
        return news if lost is None else news | {lost}

    def _discard(self, name: str) -> ObjectT | None:
        known = self._objects.pop(name, None)
        if known is not None and (queue := self._kind.queue_key(known)):
            self._queues.remove(queue, known.metadata)
        return known
