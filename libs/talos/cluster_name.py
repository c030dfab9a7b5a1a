"""The cluster's name, asked of a control plane once per credentials: it is the same for every machine."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from libs.talos.session import MachineUnavailable

RETRY_SECONDS: Final = 15.0
FETCH_TIMEOUT_SECONDS: Final = 2.0


class ClusterNameCache:
    """Never asked of the machine in question, which could name the cluster for all others.

    A name that cannot be learnt holds nobody up: the last known one is given, "" if there is none, and it is
    asked for again after 15 s.
    """

    def __init__(self, ask: Callable[[float], Awaitable[str]]) -> None:
        self._fetch = ask  # with the deadline on the event loop's clock
        self._name = ""
        self._known_for = ""
        self._retry_at = 0.0
        self._fetch_task: asyncio.Task[None] | None = None

    async def get(self, credentials: str, deadline: float) -> str:
        """The name under the credentials of that digest; everybody who waits shares one question."""
        now = asyncio.get_running_loop().time()
        if self._known_for == credentials or now < self._retry_at:
            return self._name
        if self._fetch_task is None:
            self._fetch_task = asyncio.create_task(
                self._refresh(credentials, now + FETCH_TIMEOUT_SECONDS), name="cluster name"
            )
        with suppress(TimeoutError):  # the question goes on for those who wait longer
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._fetch_task)
        return self._name

    async def _refresh(self, credentials: str, deadline: float) -> None:
        try:
            self._name = await self._fetch(deadline)
            self._known_for = credentials
        except MachineUnavailable:  # counted where it was asked
            self._retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS
        finally:
            self._fetch_task = None

    async def close(self) -> None:
        """End a question under way."""
        if self._fetch_task is not None:
            self._fetch_task.cancel()
            await asyncio.wait({self._fetch_task})
