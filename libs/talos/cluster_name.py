"""Caches the name of the cluster, queried from a control plane once per credentials."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from libs.talos.session import MachineUnavailable

RETRY_SECONDS: Final = 15.0
FETCH_TIMEOUT_SECONDS: Final = 2.0


class ClusterNameCache:
    """The name is never queried from the machine of a Node, which could choose it for all others.

    A failed query delays no caller: it gets the last known name, "" without one. The query is repeated after
    15 s.
    """

    def __init__(self, fetch: Callable[[float], Awaitable[str]]) -> None:
        self._fetch = fetch  # with the deadline on the event loop's clock
        self._name = ""
        self._known_for = ""
        self._retry_at = 0.0
        self._fetch_task: asyncio.Task[None] | None = None

    async def get(self, credentials: str, deadline: float) -> str:
        """Return the name for the credentials of that digest; all callers share one query."""
        now = asyncio.get_running_loop().time()
        if self._known_for == credentials or now < self._retry_at:
            return self._name
        if self._fetch_task is None:
            self._fetch_task = asyncio.create_task(
                self._refresh(credentials, now + FETCH_TIMEOUT_SECONDS), name="cluster name"
            )
        with suppress(TimeoutError):  # the query continues for other callers
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._fetch_task)
        return self._name

    async def _refresh(self, credentials: str, deadline: float) -> None:
        try:
            self._name = await self._fetch(deadline)
            self._known_for = credentials
        except MachineUnavailable:  # counted by TalosCalls
            self._retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS
        finally:
            self._fetch_task = None

    async def close(self) -> None:
        """Cancel a running query."""
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.wait({self._fetch_task})
