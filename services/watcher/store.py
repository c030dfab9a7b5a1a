"""The objects of one kind as the API server last told them, and as of when."""

from collections.abc import Iterable, Iterator, KeysView
from typing import Generic

from libs.common.node import version_number
from services.watcher.kinds import PENDING_LIMIT, Kind, Seen
from services.watcher.newest import Newest


class Store(Generic[Seen]):
    """A list, kept up to date by what a watch tells; each change names the objects that it concerns.

    It holds what is said: not what is none of our business, and of a queue the newest only. What has lost
    its place there is forgotten until it is told again; to everybody else it has gone.
    """

    def __init__(self, kind: Kind[Seen]) -> None:
        self._kind = kind
        self._objects: dict[str, Seen] = {}
        self._newest = Newest(PENDING_LIMIT)
        self._unreadable: set[str] = set()
        self._seen_version = 0
        self._listed = False

    @property
    def listed(self) -> bool:
        """Whether there has been a list: before it, no name that is missing has gone."""
        return self._listed

    @property
    def seen_version(self) -> int:
        """The last resourceVersion heard: who is missing here did not exist as of it."""
        return self._seen_version

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Seen]:
        return iter(self._objects.values())

    def extend(self, told: Iterable[Seen]) -> None:
        """Some of a list; what has no place beside the rest is not even remembered until its end."""
        for each in told:
            self._keep(each)

    def names(self) -> KeysView[str]:
        """Of every object that can be read."""
        return self._objects.keys()

    def get(self, name: str) -> Seen | None:
        """What we read of that object, None if there is none or it cannot be read."""
        return self._objects.get(name)

    def is_crowded(self, name: str) -> bool:
        """Whether that object will lose its place to the next ones of its queue."""
        found = self._objects.get(name)
        queue = self._kind.queue(found) if found is not None else ""
        return bool(queue) and self._newest.is_full(queue)

    def is_unreadable(self, name: str) -> bool:
        """Whether an object of that name exists which cannot be read: it has not gone."""
        return name in self._unreadable

    def names_by_uid(self) -> dict[str, str]:
        """For the resync, whose turns belong to uids: of those only that have turns."""
        return {each.uid: name for name, each in self._objects.items() if self._kind.is_repeated(each)}

    def replace(self, objects: Iterable[Seen], unreadable: Iterable[str], resource_version: str) -> set[str]:
        """A list; returns the names that it changed, those that are no more included."""
        before = self._objects
        self._objects, self._newest = {}, Newest(PENDING_LIMIT)
        self.extend(objects)
        self._unreadable = set(unreadable)
        self._listed = True
        self._seen_version = version_number(resource_version)
        now = self._objects
        kept = {name for name in before.keys() & now.keys() if before[name] == now[name]}
        return (before.keys() | now.keys()) - kept

    def put(self, changed: Seen) -> set[str]:
        """It was added or modified; returns the names that it changed in a way that we read."""
        self.saw(changed.metadata.resource_version)
        self._unreadable.discard(changed.name)
        return self._keep(changed)

    def remove(self, name: str, resource_version: str) -> None:
        """It was deleted."""
        self._forget(name)
        self._unreadable.discard(name)
        self.saw(resource_version)

    def cannot_read(self, name: str) -> None:
        """It exists, but not in a shape that we read; what was known of it is old."""
        self._forget(name)
        self._unreadable.add(name)

    def saw(self, resource_version: str) -> None:
        """A bookmark, or any other object of the watch, bore this version."""
        self._seen_version = max(self._seen_version, version_number(resource_version))

    def _keep(self, told: Seen) -> set[str]:
        kind, name = self._kind, told.name
        if not kind.is_ours(told):
            return set()
        known, read = self._forget(name), kind.what_we_read(told)
        self._objects[name] = read
        queue = kind.queue(read)
        lost = self._newest.add(queue, read.metadata) if queue else None
        if lost is not None:
            del self._objects[lost]
        if lost == name:
            return set() if known is None else {name}
        news = set() if known is not None and kind.same_to_us(known, read) else {name}
        return news if lost is None else news | {lost}

    def _forget(self, name: str) -> Seen | None:
        known = self._objects.pop(name, None)
        if known is not None and (queue := self._kind.queue(known)):
            self._newest.remove(queue, known.metadata)
        return known
