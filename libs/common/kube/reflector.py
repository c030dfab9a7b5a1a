"""Lists and watches one kind of object, and passes every change on, through every failure."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import Final, Generic, NoReturn, Protocol

from libs.common.bus.delivery import backoff_seconds
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import (
    Forbidden,
    KubeError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from libs.common.kube.objects import Item, Page, Resource, UnreadableObject, select_by_name
from libs.common.kube.request import Request
from libs.common.kube.watch_events import (
    ListAgain,
    ListSnapshot,
    WatchEvent,
    decode_watch_event,
    resource_version_of,
)

# Duration of one watch. The server ends it then, even without events (it sends bookmarks only with news).
# So a connection that lasts longer is dead, whatever TCP reports. The next watch continues from the same
# version and costs one request. This limits a half-open watch to less than a minute.
WATCH_SECONDS: Final = (35, 45)
SILENCE_SECONDS: Final = 8.0  # after the requested end of the watch
STALE_SECONDS: Final = 60.0  # without contact: not ready
_CHECK_AFTER_SECONDS: Final = 2.0  # a watch that ends sooner needs no check of its version
_SETTLED_SECONDS: Final = 5.0  # a watch of this duration is no failure, however it ended
# The API server ends the watch of a client that does not receive events fast enough. While a thousand
# machines join, this happens to every watch within a second. The watch has sent events, so the next one
# continues soon: a backoff would stall just when there are most events.
_MOVED_ON_SECONDS: Final = 0.2
_PAUSE_FIRST_SECONDS: Final = 1.0
_PAUSE_CAP_SECONDS: Final = 15.0
# After these errors the watch continues at its version. All others need a new list, as in client-go.
# A watch that cannot be opened because the server is unreachable needs one too: during the outage, etcd may
# have been restored from a backup. Soon afterwards, its versions have passed ours, with other contents.
_SAME_VERSION: Final = (Unreachable, TooManyRequests, Unauthorized, Forbidden)


def pause_seconds(failures: int, jitter: float) -> float:
    """Return the wait after consecutive failures: 0 for none, otherwise between half and all of the step.

    Steps are 1, 2, 4, 8, 15 s; `jitter` is uniform in [0, 1). A list and a watch after each wait stay
    below one request per second on average.
    """
    if failures == 0:
        return 0.0
    return backoff_seconds(failures, jitter, first=_PAUSE_FIRST_SECONDS, cap=_PAUSE_CAP_SECONDS)


class ItemCollector(Protocol[Item]):
    """Collects the pages of a list."""

    def extend(self, items: Iterable[Item], /) -> None:
        """Add a page."""

    def __iter__(self) -> Iterator[Item]: ...


@dataclass(eq=False)
class Reflector(Generic[Item]):
    """Follows one kind of object. `run` ends only by cancellation or an exception of its handler."""

    api: KubeApi
    resource: Resource[Item]
    _: KW_ONLY
    on_unreadable: Callable[[UnreadableObject], None]  # receives skipped objects
    on_failure: Callable[[Exception], None] = lambda error: None  # receives each failure before its retry
    # creates the collector of a list, which may drop unneeded objects
    new_collector: Callable[[], ItemCollector[Item]] = list[Item]
    watch_seconds: tuple[int, int] = WATCH_SECONDS
    silence_seconds: float = SILENCE_SECONDS
    stale_seconds: float = STALE_SECONDS
    clock: Callable[[], float] = time.monotonic  # monotonic
    jitter: Callable[[], float] = random.random  # uniform in [0, 1)

    def __post_init__(self) -> None:
        self._version = ""  # "" = list before watching
        self._last_contact_at: float | None = None
        self._listed = False
        self._last_error = ""
        self._needs_version_check = False
        self._is_watch_open = False
        self._check_failing_since: float | None = None
        self._check_error = ""

    def seconds_since_contact(self) -> float | None:
        """Return the seconds since the last contact with the API server for this kind, None before it."""
        return None if self._last_contact_at is None else self.clock() - self._last_contact_at

    def problems(self) -> tuple[str, ...]:
        """Return why the objects may be out of date, in words for /readyz; empty if they are current."""
        because = f": {self._last_error}" if self._last_error else ""
        if not self._listed:
            return (f"{self.resource.plural} have not been listed yet{because}",)
        age = self.seconds_since_contact() or 0.0
        if age > self.stale_seconds:
            stale = f"no contact about {self.resource.plural} for {age:.0f} s{because}"
            return (stale, *self._check_problems())
        return self._check_problems()

    async def absent_as_of_version(
        self, name: str, is_relevant: Callable[[Item], bool] = lambda each: True
    ) -> str | None:
        """Return the resourceVersion at which no relevant object has that name, else None. Raises KubeError.

        It uses a consistent (quorum) list, which needs no permission beyond those of the watch.
        """
        unreadable: list[UnreadableObject] = []
        only = select_by_name(self.resource, name)
        page = await self.api.list_page(only, limit=1, on_unreadable=unreadable.append)
        return None if unreadable or any(map(is_relevant, page.items)) else page.resource_version

    async def run(self, handle: Callable[[WatchEvent[Item]], Awaitable[None]]) -> NoReturn:
        """Pass all events to `handle` in order: first a ListSnapshot, then changes.

        A new ListSnapshot follows whenever changes may be missing. After a break changes may be repeated.
        """
        failures = 0
        while True:
            watching_since: float | None = None
            least = 0.0
            try:
                if not self._version:
                    await self._list(handle)
                watching_since, since_version = self.clock(), self._version
                await (
                    self._watch_and_check_version(handle)
                    if self._needs_version_check
                    else self._watch(handle)
                )
            except (KubeError, ListAgain) as error:
                least = self._failed(error)
                moved_on = False
            else:
                moved_on = self._version != since_version
            settled = watching_since is not None and self.clock() - watching_since >= _SETTLED_SECONDS
            if moved_on and not settled:
                least = _MOVED_ON_SECONDS * (0.5 + 0.5 * self.jitter())
            failures = 0 if settled or moved_on else failures + 1
            await asyncio.sleep(max(least, pause_seconds(failures, self.jitter())))

    async def _list(self, handle: Callable[[WatchEvent[Item]], Awaitable[None]]) -> None:
        items = self.new_collector()
        unreadable: list[str] = []

        def note(what: UnreadableObject) -> None:
            unreadable.append(what.name)
            self.on_unreadable(what)

        token = ""
        while True:
            page: Page[Item] = await self.api.list_page(
                self.resource, continue_token=token, on_unreadable=note
            )
            self._record_contact()
            items.extend(page.items)
            token = page.continue_token
            if not token:
                break
        await handle(ListSnapshot(tuple(items), page.resource_version, tuple(unreadable)))
        self._listed = True
        self._needs_version_check = False
        self._check_failing_since = None
        self._version = page.resource_version

    async def _watch(self, handle: Callable[[WatchEvent[Item]], Awaitable[None]]) -> None:
        shortest, longest = self.watch_seconds
        seconds = shortest + int((longest - shortest + 1) * self.jitter())
        request = Request(
            verb="watch",
            resource=self.resource.plural,
            path=self.resource.path,
            query={
                **self.resource.query,
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": self._version,
                "timeoutSeconds": str(seconds),
            },
        )
        opened = self.clock()
        self._is_watch_open = False
        async with self.api.transport.open_watch(
            request, seconds=seconds + self.silence_seconds
        ) as read_line:
            self._is_watch_open = True
            self._record_contact()
            while line := await read_line():
                self._record_contact()
                await self._handle_line(line, request, handle)
        if self.clock() - opened < seconds - 1.0:
            self._needs_version_check = True  # an early end may be that of the server

    async def _watch_and_check_version(self, handle: Callable[[WatchEvent[Item]], Awaitable[None]]) -> None:
        """Watch, and check the version at the same time, because a busy server needs seconds to answer.

        If the watch ends before the answer, the next watch repeats the check.
        """
        asking = asyncio.create_task(self._is_ahead_of_server(self._version))
        watching = asyncio.create_task(self._watch(handle))
        try:
            await asyncio.wait({asking, watching}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                self._needs_version_check = False
                if asking.result():
                    raise ListAgain("the server is behind our resourceVersion (restored etcd?)")
            await watching
        finally:
            asking.cancel()
            watching.cancel()
            await asyncio.gather(asking, watching, return_exceptions=True)

    async def _is_ahead_of_server(self, version: str) -> bool:
        """Return whether the server has not reached this version. Retries until there is an answer.

        A server whose etcd was restored from a backup opens a watch from a version that it has not reached,
        and sends nothing until it has caught up. A check that fails proves nothing, so the watch goes on.
        """
        await asyncio.sleep(_CHECK_AFTER_SECONDS)
        for attempt in count(1):
            try:
                page = await self.api.list_page(self.resource, limit=1, on_unreadable=lambda _: None)
                break
            except KubeError as error:
                self._check_error = str(error)
                if self._check_failing_since is None:
                    self._check_failing_since = self.clock()
                requested = error.retry_after_seconds or 0.0
            await asyncio.sleep(max(requested, backoff_seconds(attempt, self.jitter())))
        self._check_failing_since = None
        self._record_contact()
        try:
            return int(page.resource_version) < int(version)
        except ValueError:
            return True  # not comparable: an aggregated API; a list is always right

    def _check_problems(self) -> tuple[str, ...]:
        """Return why the watch may be one that never sends anything."""
        since, name = self._check_failing_since, self.resource.plural
        if since is None or self.clock() - since <= self.stale_seconds:
            return ()
        return (
            f"the watch of {name} cannot be checked for {self.clock() - since:.0f} s: {self._check_error}",
        )

    async def _handle_line(
        self, line: bytes, request: Request, handle: Callable[[WatchEvent[Item]], Awaitable[None]]
    ) -> None:
        event = decode_watch_event(line, self.resource, request, self.on_unreadable)
        if event is not None:
            await handle(event)
            self._version = resource_version_of(event) or self._version

    def _record_contact(self) -> None:
        self._last_contact_at = self.clock()
        self._last_error = ""

    def _failed(self, error: KubeError | ListAgain) -> float:
        """Record the failure; return the wait that the server requested, in seconds."""
        self._last_error = str(error)
        self.on_failure(error)
        self._needs_version_check = True
        is_outage = isinstance(error, Unreachable) and not self._is_watch_open
        if is_outage or not isinstance(error, _SAME_VERSION):
            self._version = ""
        return getattr(error, "retry_after_seconds", None) or 0.0
