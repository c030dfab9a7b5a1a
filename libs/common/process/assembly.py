"""What a process is made of: traces, health, Kubernetes, bus and services, opened in this order."""

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from libs.common import telemetry
from libs.common.bus import Bus
from libs.common.process.collecting import collect_seldom
from libs.common.process.endings import PART_ENDS_SECONDS, at_end, in_background
from libs.common.process.health import HealthServer
from libs.common.process.loop_watch import LoopWatch
from libs.common.process.messages import open_bus, stands_by
from libs.common.process.observers import observe_kubernetes
from libs.common.process.readiness import Problems, Readiness
from libs.common.process.running import Running
from libs.common.process.service import Parts, Run, Service
from libs.common.process.serving_certificate import ServingCertificate
from libs.common.settings.of_process import ProcessSettings
from libs.common.settings.reading import Reading, SettingsError

if TYPE_CHECKING:
    from libs.common.kube_api.api import KubeApi

log = logging.getLogger(__name__)

_REFERENCE_PORT: Final = 10458
# Several on one host; the all-in-one and the watcher have the reference's.
PORTS_ALONE: Final = {"metadata": 10459, "labeler": 10460, "csr": 10461, "ipam": 10462, "lifecycle": 10463}
_CERTIFICATE_LOOK_SECONDS: Final = 60.0


class Assembly:
    """One process: brings everything up, runs its services, and ends what it opened, the last first."""

    def __init__(
        self,
        runs: Sequence[Run[Any]],
        reading: Reading,
        environment: Mapping[str, str],
        certificate: ServingCertificate | None,
    ) -> None:
        self._runs = runs
        self._certificate = certificate
        self._reading = reading
        self._settings = reading.of(ProcessSettings)
        self._environment = environment
        self._name = runs[0].wiring.service if len(runs) == 1 else "all-in-one"
        self._identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._readiness = Readiness(time.monotonic)
        self._running = Running(self._readiness)

    async def run(self) -> int:
        """Until a signal, or until a service ends; the exit status. Raises SettingsError."""
        with telemetry.log_fields(service=self._name):
            self._running.hear_signals()
            loop = type(asyncio.get_running_loop()).__module__
            told = {"version": version("talos-ccm"), "identity": self._identity, "loop": loop}
            log.info("starting", extra=told)
            for warning in self._reading.warnings:
                log.warning("about the settings", extra={"why": warning})
            kube = self._open_kubernetes()
            async with AsyncExitStack() as endings:
                return await self._run_between(endings, kube)

    async def _run_between(self, endings: AsyncExitStack, kube: "KubeApi | None") -> int:
        """Bring everything up and run; what was opened last ends first."""
        telemetry.setup_tracing(self._name, self._settings.otlp_endpoint)
        at_end(endings, "traces", lambda: telemetry.flush(PART_ENDS_SECONDS - 0.2))
        in_background(endings, LoopWatch().run())
        await self._serve_health(endings)
        if kube is not None:
            at_end(endings, "Kubernetes", kube.close)
            self._readiness.add("kubernetes-credentials", kube.problems)  # whether it is there, services say
        bus = await open_bus(self._runs, self._settings, self._name)
        at_end(endings, "bus", bus.close)
        services = [self._build(run, bus, kube) for run in self._runs]
        collect_seldom()
        self._watch_readiness(bus, services)
        in_background(endings, self._readiness.tell())
        return await self._running.run(services)

    # ---- what a process is made of

    def _open_kubernetes(self) -> "KubeApi | None":
        if not any(run.wiring.rights for run in self._runs):
            return None
        # Only here: a service without Kubernetes rights does not even load the client.
        from libs.common.kube_api.api import KubeApi  # noqa: PLC0415
        from libs.common.kube_api.config import KubeConfigError, at_server, load_kube_config  # noqa: PLC0415

        try:
            config = load_kube_config(self._settings.kubeconfig, self._environment)
            if self._settings.master:
                config = at_server(config, self._settings.master, "--master")
            return KubeApi(
                config,
                user_agent=f"talos-ccm/{version('talos-ccm')} ({self._name})",
                instance=self._identity.partition("_")[0],
                observe=observe_kubernetes,
            )
        except KubeConfigError as error:
            raise SettingsError(" ".join(str(error).split())) from error  # YAML's errors have several lines

    async def _serve_health(self, endings: AsyncExitStack) -> None:
        settings = self._settings
        port = PORTS_ALONE.get(self._name, _REFERENCE_PORT)
        port = port if settings.secure_port is None else settings.secure_port
        if not port:
            return
        if self._certificate is not None:
            in_background(endings, _kept_fresh(self._certificate))
        server = HealthServer(self._readiness, self._certificate)
        port = await server.start(settings.bind_address, port)
        at_end(endings, "health server", server.stop)
        log.info(
            "health and metrics are served", extra={"port": port, "https": self._certificate is not None}
        )

    def _build(self, run: Run[Any], bus: Bus, kube: "KubeApi | None") -> Service:
        parts = Parts(
            bus=bus,
            kube=kube if run.wiring.rights else None,
            monotonic=time.monotonic,
            now=lambda: datetime.now(UTC),
            random=random.Random(),  # noqa: S311 - jitter, not secrets
            identity=self._identity,
        )
        return run.build(parts, self._reading.of(run.settings))

    def _watch_readiness(self, bus: Bus, services: Sequence[Service]) -> None:
        def unless_standing_by(problems: Problems) -> Problems:
            return lambda: () if stands_by(bus, services) else problems()

        self._readiness.add("bus", unless_standing_by(bus.problems))
        for service in services:
            self._readiness.add(service.wiring.service, unless_standing_by(service.problems))


async def _kept_fresh(certificate: ServingCertificate) -> None:
    while True:
        await asyncio.sleep(_CERTIFICATE_LOOK_SECONDS)
        try:
            certificate.refresh()
        except SettingsError as error:
            log.warning("the serving certificate stays the old one", extra={"error": str(error)})
