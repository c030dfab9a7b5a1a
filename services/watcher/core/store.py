"""The objects of one kind as the API server last reported them, and their resourceVersion."""

from bisect import insort
from collections.abc import Iterable, Iterator, KeysView
from datetime import UTC, datetime
from typing import Final, Generic

from msgspec.structs import replace

from libs.common.contract.node import ObjectMeta, is_same_object, parse_resource_version
from services.watcher.core.kinds import MAX_PENDING_PER_REQUESTER, Kind, ObjectT

_MIN_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)
_Entry = tuple[datetime, str]


class BoundedQueues:
    """Keeps names in bounded queues, ordered by the creation time of their objects, then by name."""

    def __init__(self) -> None:
        self._entries: dict[str, list[_Entry]] = {}

    def add(self, queue: str, metadata: ObjectMeta) -> str | None:
        """Add an object; return the name evicted for it: None, the oldest one or its own."""
        entries = self._entries.setdefault(queue, [])
        insort(entries, _make_entry(metadata))
        return entries.pop(0)[1] if len(entries) > MAX_PENDING_PER_REQUESTER else None

    def is_full(self, queue: str) -> bool:
        """Whether one more entry evicts the oldest."""
        return len(self._entries.get(queue, ())) >= MAX_PENDING_PER_REQUESTER

    def remove(self, queue: str, metadata: ObjectMeta) -> None:
        """Remove an object that no longer waits."""
        entries = self._entries[queue]
        entries.remove(_make_entry(metadata))
        if not entries:
            del self._entries[queue]


class Store(Generic[ObjectT]):
    """A list that watch events keep up to date; each change returns the names of the affected objects.

    It stores only relevant objects, and only the newest ones of each queue. An evicted object counts as
    deleted until the API server reports it again.
    """

    def __init__(self, kind: Kind[ObjectT]) -> None:
        self._kind = kind
        self._objects: dict[str, ObjectT] = {}
        self._queues = BoundedQueues()
        self._unreadable: dict[str, str] = {}  # name -> reason, as far as known
        self._last_resource_version = 0
        self._has_synced = False

    @property
    def has_synced(self) -> bool:
        """Whether there has been a list; before it, a missing name proves no deletion."""
        return self._has_synced

    @property
    def last_resource_version(self) -> int:
        """The last resourceVersion received: objects that the store lacks did not exist at it."""
        return self._last_resource_version

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[ObjectT]:
        return iter(self._objects.values())

    def extend(self, objects: Iterable[ObjectT]) -> None:
        """Add one page of a list; objects beyond the limit of their queue are evicted at once."""
        for each in objects:
            self._upsert(each)

    def names(self) -> KeysView[str]:
        """Return the keys of all readable objects."""
        return self._objects.keys()

    def get(self, name: str) -> ObjectT | None:
        """Return the object; None if there is none or it is unreadable."""
        return self._objects.get(name)

    def may_be_evicted(self, name: str) -> bool:
        """Whether the next object of the same queue may evict that object."""
        found = self._objects.get(name)
        queue = self._kind.queue_key(found) if found is not None else ""
        return bool(queue) and self._queues.is_full(queue)

    def is_unreadable(self, name: str) -> bool:
        """Whether an object of that name exists but cannot be parsed: it is not deleted."""
        return name in self._unreadable

    def replace(
        self, objects: Iterable[ObjectT], unreadable: Iterable[str], resource_version: str
    ) -> set[str]:
        """Replace the contents with a list; return the changed names, including those of missing objects."""
        before = self._objects
        self._objects, self._queues = {}, BoundedQueues()
        self.extend(objects)
        self._unreadable = {name: self._unreadable.get(name, "") for name in unreadable}
        self._has_synced = True
        self._last_resource_version = parse_resource_version(resource_version)
        now = self._objects
        kept = {name for name in before.keys() & now.keys() if before[name] == now[name]}
        now.update({name: before[name] for name in kept})  # the stream has these values, too
        return (before.keys() | now.keys()) - kept

    def put(self, changed: ObjectT) -> set[str]:
        """Store an added or modified object; return the names whose relevant fields changed."""
        self.advance_version(changed.metadata.resource_version)
        self._unreadable.pop(changed.key, None)
        return self._upsert(changed)

    def remove(self, name: str, resource_version: str) -> None:
        """Remove a deleted object."""
        self._discard(name)
        self._unreadable.pop(name, None)
        self.advance_version(resource_version)

    def mark_unreadable(self, name: str, reason: str) -> bool:
        """Mark an object that cannot be parsed: its state is out of date. Return whether that is new."""
        self._discard(name)
        is_new = self._unreadable.get(name) != reason
        self._unreadable[name] = reason
        return is_new

    def advance_version(self, resource_version: str) -> None:
        """Record the version of a bookmark or of any other object of the watch."""
        self._last_resource_version = max(
            self._last_resource_version, parse_resource_version(resource_version)
        )

    def _upsert(self, obj: ObjectT) -> set[str]:
        kind, name = self._kind, obj.key
        if not kind.is_relevant(obj):
            return set() if self._discard(name) is None else {name}
        known = self._discard(name)
        is_same = known is not None and is_same_object(known, obj)
        # The stream has older states: memory contains parts that have not changed only once.
        if known is not None and is_same:
            version = obj.metadata.resource_version
            obj = replace(known, metadata=replace(known.metadata, resource_version=version))
        elif known is not None and known.spec == obj.spec:
            obj = replace(obj, spec=known.spec)
        self._objects[name] = obj
        queue = kind.queue_key(obj)
        evicted = self._queues.add(queue, obj.metadata) if queue else None
        if evicted is not None:
            del self._objects[evicted]
        if evicted == name:
            return set() if known is None else {name}
        changed = set() if is_same else {name}
        return changed if evicted is None else changed | {evicted}

    def _discard(self, name: str) -> ObjectT | None:
        known = self._objects.pop(name, None)
        if known is not None and (queue := self._kind.queue_key(known)):
            self._queues.remove(queue, known.metadata)
        return known


def _make_entry(metadata: ObjectMeta) -> _Entry:
    return (metadata.creation_timestamp or _MIN_TIME, metadata.name)
