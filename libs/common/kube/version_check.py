"""Checks beside a watch whether the API server has reached the version that the watch began from."""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from itertools import count
from typing import Final, Generic

from libs.common.bus.delivery import backoff_seconds
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.objects import Item, Page, Resource

_FIRST_SECONDS: Final = 2.0  # a watch that ends sooner needs no check


@dataclass(eq=False)
class VersionCheck(Generic[Item]):
    """Compares versions by a list of one object.

    A server whose etcd was restored from a backup opens a watch from a version that it has not reached, and
    sends nothing until it has caught up. A check that fails proves nothing: it is repeated until there is an
    answer, and the watch goes on.
    """

    api: KubeApi
    resource: Resource[Item]
    _: KW_ONLY
    clock: Callable[[], float]  # monotonic
    jitter: Callable[[], float]
    stale_seconds: float  # to fail for longer is a problem
    on_answer: Callable[[], None]  # called when the API server has answered

    def __post_init__(self) -> None:
        self._failing_since: float | None = None
        self._error = ""

    def problems(self) -> tuple[str, ...]:
        """Return why the watch may be one that never sends anything, in words for /readyz."""
        if self._failing_since is None:
            return ()
        seconds = self.clock() - self._failing_since
        if seconds <= self.stale_seconds:
            return ()
        return (f"the watch of {self.resource.plural} cannot be checked for {seconds:.0f} s: {self._error}",)

    def clear(self) -> None:
        """End the check: a list has succeeded."""
        self._failing_since = None

    async def is_ahead_of_server(self, version: str) -> bool:
        """Return whether the server has not reached this version. Retries until there is an answer."""
        await asyncio.sleep(_FIRST_SECONDS)
        page = await self._first_page()
        self.clear()
        self.on_answer()
        try:
            return int(page.resource_version) < int(version)
        except ValueError:
            return True  # not comparable: an aggregated API; a list is always right

    async def _first_page(self) -> Page[Item]:
        for attempt in count(1):
            try:
                return await self.api.list_page(self.resource, limit=1, on_unreadable=lambda _: None)
            except KubeError as error:
                self._error = str(error)
                if self._failing_since is None:
                    self._failing_since = self.clock()
                requested = error.retry_after_seconds or 0.0
            await asyncio.sleep(max(requested, backoff_seconds(attempt, self.jitter())))
        raise AssertionError("count() has no end")
