"""Objects by kind and name, with one version counter and the history of changes for watches."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from libs.testbed.sim_apiserver.refusals import expired

HISTORY_LIMIT: Final = 10_000  # changes of a kind


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


class ObjectTable:
    """All objects of one kind."""

    def __init__(self) -> None:
        self.objects: dict[Key, StoredObject] = {}
        self.compacted = 0  # changes up to this version are dropped
        self._history: list[StoredChange] = []
        self._changed = asyncio.Event()  # another one after each change

    async def wait_for_change(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def append_change(self, change: StoredChange) -> None:
        """Append to the history; a full history drops its older half."""
        self._changed.set()
        self._changed = asyncio.Event()
        self._history.append(change)
        if len(self._history) > HISTORY_LIMIT:
            half = len(self._history) // 2
            self.compacted = self._history[half - 1].stored.version
            del self._history[:half]

    def list_changes(self, since: int) -> list[StoredChange]:
        """Return the changes after version `since`, in order. Raises Refusal if some are dropped."""
        if since < self.compacted:
            raise expired(f"too old resource version: {since} ({self.compacted})")
        return self._history[bisect_right(self._history, since, key=lambda change: change.stored.version) :]

    def list_namespace(self, namespace: str) -> tuple[StoredObject, ...]:
        """Return the objects of a namespace ("" for all), in etcd's order."""
        wanted = (key for key in self.objects if not namespace or key.namespace == namespace)
        return tuple(self.objects[key] for key in sorted(wanted))


class ObjectStore:
    """The tables of all kinds with one version counter, like etcd's revision."""

    def __init__(self, plurals: Iterable[str]) -> None:
        self.version = 1
        self._tables = {plural: ObjectTable() for plural in plurals}

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
