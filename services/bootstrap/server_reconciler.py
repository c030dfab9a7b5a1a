"""Updates the files of a server periodically, and lets the server reload changed ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.nats.reload import reload_server
from libs.common.bus.protocol import BusError
from libs.common.kube.errors import KubeError
from libs.common.observability import metrics
from services.bootstrap.certificates import get_expiry
from services.bootstrap.nats_permissions import SYSTEM_USER
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.server_files import (
    SYSTEM_SEED,
    TRUSTED_CERTIFICATES,
    InvalidSecretError,
    KeyStore,
    ServerSpec,
    WriteResult,
    drop_old_authority,
    ensure_installation_keys,
    write_server_files,
)

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 2.0


@dataclass(eq=False)
class ServerReconciler:
    """Reconciles the keys, the certificate and the configuration of one server."""

    store: KeyStore
    names: ResourceNames
    directory: Path
    spec: ServerSpec
    _: KW_ONLY
    now: Callable[[], datetime]
    interval_seconds: float

    def __post_init__(self) -> None:
        self._problem = "the files of the server have not been written yet"
        # Initially true: an earlier process may have ended between its write and the reload.
        self._needs_reload = True

    def problems(self) -> tuple[str, ...]:
        """Return why keys, certificate or configuration of the server may be out of date."""
        return (self._problem,) if self._problem else ()

    async def run_once(self) -> None:
        """Retry until everything was written once."""
        while True:
            if await self._try(self._update_files):
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def run(self) -> None:
        """Reconcile periodically until cancelled."""
        while True:
            done = await self._try(self._reconcile)
            await asyncio.sleep(self.interval_seconds if done else min(_RETRY_SECONDS, self.interval_seconds))

    async def _reconcile(self) -> None:
        made = await self._update_files()
        self._needs_reload = self._needs_reload or made.is_changed
        if self._needs_reload:
            await reload_server(self._access())
            drop_old_authority(self.directory)
            self._needs_reload = False
            log.info("server configuration reloaded")

    async def _update_files(self) -> WriteResult:
        kept = await ensure_installation_keys(self.store, self.names, self.now())
        made = write_server_files(self.directory, self.spec, kept, self.now())
        for name, pair in (("server", made.certificate), ("authority", made.authority)):
            metrics.NATS_CERTIFICATE_EXPIRES.labels(name).set(get_expiry(pair).timestamp())
        return made

    async def _try(self, attempt: Callable[[], Awaitable[object]]) -> bool:
        """Return whether the attempt succeeded; the caller retries after a failure."""
        problem = ""
        try:
            await attempt()
        except (KubeError, BusError, OSError, InvalidSecretError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.warning("reconcile failed, will retry", extra={"reason": problem})
        self._problem = problem
        return not problem

    def _access(self) -> NatsAccess:
        server = self.spec.server
        return NatsAccess(
            servers=(f"tls://{server.own_address}",),
            service=SYSTEM_USER,
            nkey_seed_file=self.directory / SYSTEM_SEED,
            tls_ca_file=self.directory / TRUSTED_CERTIFICATES,
        )
