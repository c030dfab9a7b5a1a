"""The sidecar of a server: looks again and again, and has the server reload what has changed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from libs.common import metrics
from libs.common.bus import BusError
from libs.common.kube_api.errors import KubeError
from libs.common.nats_bus.access import Access
from libs.common.nats_bus.reload import reload_server
from services.bootstrap.certificates import expires
from services.bootstrap.names import Names
from services.bootstrap.nats_rights import SYSTEM
from services.bootstrap.prepare import (
    SYSTEM_SEED,
    TRUSTED,
    Made,
    Store,
    Unusable,
    Wanted,
    gather,
    reloaded,
    write,
)

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 2.0


class Keeper:
    """Of one server; `problems` says what it could not do."""

    def __init__(
        self,
        store: Store,
        names: Names,
        out: Path,
        wanted: Wanted,
        *,
        now: Callable[[], datetime],
        look_seconds: float,
    ) -> None:
        self._store = store
        self._names = names
        self._out = out
        self._wanted = wanted
        self._now = now
        self._look_seconds = look_seconds
        self._problem = "has not looked yet"
        # At first, too: whoever wrote the files before us may have ended before the server read them.
        self._reload_is_due = True

    def problems(self) -> tuple[str, ...]:
        """Why keys, certificate or the server's configuration may not be what they should be."""
        return (self._problem,) if self._problem else ()

    async def once(self) -> None:
        """Until everything has been made once."""
        while True:
            if await self._tried(self._make):
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            done = await self._tried(self._look)
            await asyncio.sleep(self._look_seconds if done else min(_RETRY_SECONDS, self._look_seconds))

    async def _look(self) -> None:
        made = await self._make()
        self._reload_is_due = self._reload_is_due or made.changed
        if self._reload_is_due:
            await reload_server(self._access())
            reloaded(self._out)
            self._reload_is_due = False
            log.info("the server has read its configuration")

    async def _make(self) -> Made:
        kept = await gather(self._store, self._names, self._now())
        made = write(self._out, self._wanted, kept, self._now())
        for name, pair in (("server", made.certificate), ("authority", made.authority)):
            metrics.NATS_CERTIFICATE_EXPIRES.labels(name).set(expires(pair).timestamp())
        return made

    async def _tried(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Whether it succeeded; whatever the world does, there is another look."""
        problem = ""
        try:
            await work()
        except (KubeError, BusError, OSError, Unusable) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("not done, trying again", extra={"reason": problem})
        self._problem = problem
        return not problem

    def _access(self) -> Access:
        server = self._wanted.server
        return Access(
            servers=(f"tls://{server.own_address}",),
            service=SYSTEM,
            nkey_seed_file=self._out / SYSTEM_SEED,
            tls_ca_file=self._out / TRUSTED,
        )
