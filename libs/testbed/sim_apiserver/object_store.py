"""Objects by kind and name, with one version counter and the history of changes for watches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import msgspec

ObjectPredicate = Callable[[Any], bool]

_SNAPSHOTS: Final = 32  # paged lists that are kept at once


class Key(NamedTuple):
    """The key of an object within its kind; namespace "" for kinds without namespaces."""

    namespace: str
    name: str


class StoredObject(msgspec.Struct, frozen=True):
    """An object at a version, and its JSON without kind and apiVersion, as in lists."""

    version: int
    key: Key
    item: Any
    raw: bytes


class StoredChange(msgspec.Struct, frozen=True):
    """One change for a watch; a deletion has the last state of the object and the version of the deletion."""

    type: str  # ADDED, MODIFIED, DELETED
    stored: StoredObject


class CompactedError(Exception):
    """The history does not reach back to that version."""


class ListPage(NamedTuple):
    """A page of the list at `version`; `remaining` objects follow, selected or not."""

    items: tuple[StoredObject, ...]
    version: int
    remaining: int


class ObjectTable:
    """All objects of one kind."""

    def __init__(self, history_limit: int) -> None:
        self.objects: dict[Key, StoredObject] = {}
        self.compacted = 0  # changes up to this version are dropped
        self._history: list[StoredChange] = []
        self._history_limit = history_limit
        self._snapshots: dict[tuple[str, int], tuple[StoredObject, ...]] = {}

    def append_change(self, change: StoredChange) -> None:
        """Append to the history; a full history drops its older half."""
        self._history.append(change)
        if len(self._history) > self._history_limit:
            half = len(self._history) // 2
            self.compacted = self._history[half - 1].stored.version
            del self._history[:half]

    def list_changes(self, since: int) -> list[StoredChange]:
        """Return the changes after version `since`, in order. Raises CompactedError."""
        if since < self.compacted:
            raise CompactedError(f"too old resource version: {since} ({self.compacted})")
        return self._history[bisect_right(self._history, since, key=lambda change: change.stored.version) :]

    def compact(self, version: int) -> None:
        """Drop all history and all snapshots of paged lists."""
        self.compacted = version
        self._history.clear()
        self._snapshots.clear()

    def list_namespace(self, namespace: str) -> tuple[StoredObject, ...]:
        """Return the objects of a namespace ("" for all), in etcd's order."""
        wanted = (key for key in self.objects if not namespace or key.namespace == namespace)
        return tuple(self.objects[key] for key in sorted(wanted))

    def keep_snapshot(self, namespace: str, version: int, items: tuple[StoredObject, ...]) -> None:
        """Keep a list for its next pages."""
        self._snapshots[namespace, version] = items
        if len(self._snapshots) > _SNAPSHOTS:
            del self._snapshots[next(iter(self._snapshots))]

    def get_snapshot(self, namespace: str, version: int) -> tuple[StoredObject, ...]:
        """Return a kept list. Raises CompactedError."""
        try:
            return self._snapshots[namespace, version]
        except KeyError as error:
            raise CompactedError(f"no list of version {version} is kept") from error


class ObjectStore:
    """The tables of all kinds with one version counter, like etcd's revision."""

    def __init__(self, plurals: Iterable[str], *, history_limit: int = 10_000) -> None:
        self.version = 1
        self._tables = {plural: ObjectTable(history_limit) for plural in plurals}

    def table(self, plural: str) -> ObjectTable:
        """Return the objects of a kind."""
        return self._tables[plural]

    def put(self, plural: str, key: Key, item: Any, raw: bytes) -> StoredObject:
        """Create or replace an object, which must have `version + 1` as its resourceVersion."""
        self.version += 1
        table = self._tables[plural]
        kind = "MODIFIED" if key in table.objects else "ADDED"
        stored = table.objects[key] = StoredObject(self.version, key, item, raw)
        table.append_change(StoredChange(kind, stored))
        return stored

    def delete(self, plural: str, key: Key, raw: bytes) -> None:
        """Delete an object; `raw` is its last state with `version + 1` as its resourceVersion."""
        self.version += 1
        table = self._tables[plural]
        gone = table.objects.pop(key)
        table.append_change(StoredChange("DELETED", StoredObject(self.version, key, gone.item, raw)))

    def page(self, plural: str, namespace: str, limit: int, selected: ObjectPredicate) -> ListPage:
        """Return the first `limit` objects (0 for all); `next_page` returns the rest until a compaction."""
        table = self._tables[plural]
        items = table.list_namespace(namespace)
        page = _take_page(items, self.version, limit, selected)
        if page.remaining:
            table.keep_snapshot(namespace, self.version, items)
        return page

    def next_page(
        self, plural: str, namespace: str, limit: int, selected: ObjectPredicate, *, version: int, after: Key
    ) -> ListPage:
        """Return the objects after `after` in the list at `version`. Raises CompactedError."""
        items = self._tables[plural].get_snapshot(namespace, version)
        start = bisect_right(items, after, key=lambda stored: stored.key)
        return _take_page(items[start:], version, limit, selected)

    def compact(self) -> None:
        """Drop all history, as etcd's compaction does."""
        for table in self._tables.values():
            table.compact(self.version)


def _take_page(
    items: tuple[StoredObject, ...], version: int, limit: int, selected: ObjectPredicate
) -> ListPage:
    found: list[StoredObject] = []
    for at, stored in enumerate(items, 1):
        if selected(stored.item):
            found.append(stored)
        if len(found) == limit and limit:
            return ListPage(tuple(found), version, len(items) - at)
    return ListPage(tuple(found), version, 0)
