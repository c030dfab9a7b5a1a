"""console: follows the stream, and serves a page about it. It publishes and writes nothing."""

import asyncio
import logging
from typing import Final

import msgspec

from libs.common.bus.protocol import BusError
from libs.common.contract.services import CONSOLE
from libs.common.contract.subjects import ALL_SUBJECTS
from libs.common.service.service import Dependencies, ServiceDefinition, run_every, run_together
from libs.common.service.serving_certificate import ServingCertificate
from services.console.core.console_state import ConsoleState
from services.console.follower import ConsoleFollower
from services.console.login.session_keeper import SessionKeeper
from services.console.settings import ConsoleSettings
from services.console.web_server import Exposure, WebServer

log = logging.getLogger(__name__)

_STATS_SECONDS: Final = 2.0
_ADVANCE_SECONDS: Final = 1.0
# A user who may list these can read in the API what the console shows of them.
_SHOWN: Final = (("", "nodes"), ("certificates.k8s.io", "certificatesigningrequests"), ("", "services"))


class ConsoleService:
    """Any number of replicas, each with a page of its own."""

    spec = CONSOLE

    def __init__(self, dependencies: Dependencies, settings: ConsoleSettings) -> None:
        self._dependencies = dependencies
        self._settings = settings
        self._state = ConsoleState(now=self._now(), namespace=settings.namespace)
        self._follower = ConsoleFollower(self._state, monotonic=dependencies.monotonic, now=dependencies.now)
        self.port = 0  # once it listens

    async def run(self) -> None:
        """Run until cancelled."""
        exposure = self._expose() if self._settings.exposed else None
        server = WebServer(self._state, self._follower, self._dependencies, self._settings, exposure)
        self.port = await server.start(self._settings.address, self._settings.port)
        try:
            await run_together(
                self._dependencies.bus.follow(CONSOLE.service, ALL_SUBJECTS, self._follower),
                self._read_stats(),
                run_every(_ADVANCE_SECONDS, lambda: self._state.advance(self._now())),
                *((exposure.keeper.run(), exposure.certificate.keep_fresh()) if exposure else ()),
            )
        finally:
            await server.stop()

    def _expose(self) -> Exposure:
        """Load the certificate, and create the sessions. Raises SettingsError."""
        settings, parts = self._settings, self._dependencies
        certificate = ServingCertificate(
            settings.tls_cert_file,
            settings.tls_key_file,
            now=parts.now(),
            flags=("--console-tls-cert-file", "--console-tls-key-file"),
        )
        keeper = SessionKeeper(parts.require_kube(), _SHOWN, parts.monotonic)
        return Exposure(certificate, keeper)

    def problems(self) -> tuple[str, ...]:
        """Return why the page may be outdated."""
        return self._follower.problems()

    async def _read_stats(self) -> None:
        while True:
            try:
                self._state.stats = await self._dependencies.bus.stats()
            except BusError as error:
                self._state.stats = None
                log.debug("cannot read the state of the stream, will retry", extra={"error": str(error)})
            await asyncio.sleep(_STATS_SECONDS)

    def _now(self) -> float:
        return self._dependencies.now().timestamp()


def expand_definition(settings: ConsoleSettings) -> tuple[ServiceDefinition[ConsoleSettings], ...]:
    """Return the service with the rights that it needs with these settings."""
    rules = CONSOLE.policy_rules if settings.exposed else ()
    spec = msgspec.structs.replace(CONSOLE, policy_rules=rules)
    return (ServiceDefinition(spec=spec, settings=ConsoleSettings, build=ConsoleService),)


CONSOLE_DEFINITION = ServiceDefinition(
    spec=CONSOLE, settings=ConsoleSettings, build=ConsoleService, expand=expand_definition
)
