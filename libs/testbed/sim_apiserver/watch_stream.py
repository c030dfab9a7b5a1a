"""One watch over HTTP: existing objects, then each change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import msgspec
from aiohttp import web

from libs.testbed.sim_apiserver.api import SimApi
from libs.testbed.sim_apiserver.api_request import ApiRequest, parse_number
from libs.testbed.sim_apiserver.object_store import StoredChange
from libs.testbed.sim_apiserver.refusals import Refusal
from libs.testbed.sim_apiserver.request_bodies import make_selector
from libs.testbed.sim_apiserver.resource_kind import Identity

_DEFAULT_SECONDS: Final = 1800  # the real server: 30 to 60 minutes


class WatchStream:
    """An open watch."""

    def __init__(self, api: SimApi, identity: Identity, asked: ApiRequest) -> None:
        """Open the watch. Raises Refusal."""
        self._kind, self._position, self._present = api.open_watch(identity, asked)
        self._table = api.store.table(self._kind.plural)
        self._selected = make_selector(asked, self._kind)
        self._asked = asked
        self._api = api
        self._seconds = parse_number(asked, "timeoutSeconds") or _DEFAULT_SECONDS

    async def stream_events(self, response: web.StreamResponse) -> None:
        """Send events until the timeout, or until the history is compacted."""
        await self._write(response, [StoredChange("ADDED", stored) for stored in self._present])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                while True:
                    try:
                        changes = self._table.list_changes(self._position)
                    except Refusal as expired:
                        await response.write(make_error_event(expired))
                        return
                    if not changes:
                        await self._table.wait_for_change()
                        continue
                    self._position = changes[-1].stored.version
                    await self._write(response, changes)

    async def _write(self, response: web.StreamResponse, changes: Iterable[StoredChange]) -> None:
        if lines := b"".join(map(self._encode_change, changes)):
            await response.write(lines)

    def _encode_change(self, change: StoredChange) -> bytes:
        stored = change.stored
        if self._asked.namespace not in {"", stored.key.namespace} or not self._selected(stored.item):
            return b""
        return _encode_event(change.type, self._api.encode_object(self._asked, self._kind, stored))


def make_error_event(refusal: Refusal) -> bytes:
    """Return the event with which an open watch reports an error."""
    return _encode_event("ERROR", msgspec.json.encode(refusal.status))


def _encode_event(kind: str, raw: bytes) -> bytes:
    return f'{{"type":"{kind}","object":'.encode() + raw + b"}\n"
