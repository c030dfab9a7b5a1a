"""One watch over HTTP: what there is, each change as it comes, a bookmark before the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from aiohttp import web

from libs.testbed.sim_apiserver.api import Api
from libs.testbed.sim_apiserver.asked import Asked, number
from libs.testbed.sim_apiserver.reading import selector
from libs.testbed.sim_apiserver.refusals import Refusal, expired
from libs.testbed.sim_apiserver.rights import Identity
from libs.testbed.sim_apiserver.store import Change, CompactedError

_DEFAULT_SECONDS: Final = 1800  # the real server: 30 to 60 minutes
_BOOKMARK_SECONDS: Final = 2.0  # before the end, if there was news; the real server repeats it each minute


class News:
    """Wakes whoever waits for a change of a kind."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}

    def tell(self, plural: str) -> None:
        """Something of this kind has changed."""
        if waiting := self._waiting.pop(plural, None):
            waiting.set()

    async def wait(self, plural: str) -> None:
        """Return at the next change."""
        await self._waiting.setdefault(plural, asyncio.Event()).wait()


class Watch:
    """A watch that has been opened and may tell."""

    def __init__(self, api: Api, news: News, identity: Identity, asked: Asked) -> None:
        """Raises Refusal."""
        self._kind, self._position, self._present = api.open_watch(identity, asked)
        self._started_at = self._position
        self._table = api.store.table(self._kind.plural)
        self._selected = selector(asked, self._kind)
        self._asked = asked
        self._api = api
        self._seconds = number(asked, "timeoutSeconds") or _DEFAULT_SECONDS
        self._bookmarks = asked.query.get("allowWatchBookmarks") in {"1", "true"}
        self._news = news

    async def tell(self, response: web.StreamResponse) -> None:
        """Tell until the time is over, or until the history does not reach back."""
        end = asyncio.get_running_loop().time() + self._seconds
        await _write(response, (Change("ADDED", stored) for stored in self._present), self._line)
        if self._bookmarks:
            if not await self._tell_until(response, end - _BOOKMARK_SECONDS):
                return
            await self._bookmark(response)
        await self._tell_until(response, end)

    async def _tell_until(self, response: web.StreamResponse, moment: float) -> bool:
        """False if the watch is over before."""
        try:
            async with asyncio.timeout_at(moment):
                while await self._tell_news(response):
                    await self._news.wait(self._kind.plural)
        except TimeoutError:
            return True
        return False

    async def _tell_news(self, response: web.StreamResponse) -> bool:
        try:
            changes = self._table.changes(self._position)
        except CompactedError as error:
            await response.write(error_event(expired(str(error))))
            return False
        if changes:
            self._position = changes[-1].stored.version
            await _write(response, changes, self._line)
        return True

    async def _bookmark(self, response: web.StreamResponse) -> None:
        if self._position > self._started_at:
            metadata = {"resourceVersion": str(self._position)}
            bare = {"kind": self._kind.kind, "apiVersion": self._kind.api_version, "metadata": metadata}
            await response.write(_event("BOOKMARK", msgspec.json.encode(bare)))

    def _line(self, change: Change) -> bytes:
        stored = change.stored
        if self._asked.namespace not in {"", stored.key.namespace} or not self._selected(stored.item):
            return b""
        return _event(change.type, self._api.told(self._asked, self._kind, stored))


def error_event(refusal: Refusal) -> bytes:
    """How a watch that has been opened says no."""
    return _event("ERROR", msgspec.json.encode(refusal.status))


def _event(kind: str, raw: bytes) -> bytes:
    return f'{{"type":"{kind}","object":'.encode() + raw + b"}\n"


async def _write(
    response: web.StreamResponse, changes: Iterable[Change], line: Callable[[Change], bytes]
) -> None:
    if lines := b"".join(map(line, changes)):
        await response.write(lines)
