"""Opens the parts of a process in this order: traces, health, Kubernetes, bus and services."""

import asyncio
import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from libs.common.bus.protocol import Bus
from libs.common.clocks import utc_now
from libs.common.contract.services import WATCHER
from libs.common.observability import telemetry
from libs.common.service.event_loop import EventLoopMonitor, reduce_gc_frequency
from libs.common.service.health import Readiness, ReadinessCheck, make_health_application
from libs.common.service.open_bus import is_standby, observe_kubernetes, open_bus
from libs.common.service.pulse_publisher import EventJournal, publish_pulses
from libs.common.service.service import Dependencies, Service, ServiceDefinition
from libs.common.service.service_supervisor import (
    CLOSE_TIMEOUT_SECONDS,
    ServiceSupervisor,
    close_at_exit,
    run_in_background,
)
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.service.web_listener import WebListener
from libs.common.settings.process_settings import ProcessSettings
from libs.common.settings.read_settings import ParsedSettings, SettingsError

if TYPE_CHECKING:
    from libs.common.kube.api import KubeApi

log = logging.getLogger(__name__)


class Application:
    """One process: opens its dependencies, runs its services, and closes everything in reverse order."""

    def __init__(
        self,
        definitions: Sequence[ServiceDefinition[Any]],
        parsed: ParsedSettings,
        certificate: ServingCertificate | None,
    ) -> None:
        self._runs = definitions
        self._certificate = certificate
        self._reading = parsed
        self._settings = parsed.get(ProcessSettings)
        self._name = definitions[0].spec.service if len(definitions) == 1 else "all-in-one"
        self._identity = f"{socket.gethostname()}_{uuid.uuid4()}"
        self._readiness = Readiness(time.monotonic)
        self._running = ServiceSupervisor(self._readiness)
        self._journal = EventJournal()

    async def run(self) -> int:
        """Run until a signal or the end of a service; return the exit status. Raises SettingsError."""
        with telemetry.log_fields(service=self._name):
            self._running.install_signal_handlers()
            loop = type(asyncio.get_running_loop()).__module__
            fields = {"version": version("talos-ccm"), "identity": self._identity, "loop": loop}
            log.info("starting", extra=fields)
            for warning in self._reading.warnings:
                log.warning("settings warning", extra={"why": warning})
            kube = self._open_kubernetes()
            async with AsyncExitStack() as endings:
                return await self._run_between(endings, kube)

    async def _run_between(self, endings: AsyncExitStack, kube: "KubeApi | None") -> int:
        """Open all parts and run; close them in reverse order."""
        telemetry.setup_tracing(self._name, self._settings.otlp_endpoint)
        close_at_exit(endings, "traces", lambda: telemetry.flush(CLOSE_TIMEOUT_SECONDS - 0.2))
        run_in_background(endings, EventLoopMonitor().run())
        await self._serve_health(endings)
        if kube is not None:
            close_at_exit(endings, "Kubernetes", kube.close)
            self._readiness.add_check(
                "kubernetes-credentials", kube.problems
            )  # services report whether the API server is reachable
        bus = await open_bus(self._runs, self._settings, self._name)
        close_at_exit(endings, "bus", bus.close)
        services = [self._build(run, bus, kube) for run in self._runs]
        reduce_gc_frequency()
        self._watch_readiness(bus, services)
        pulses = publish_pulses(bus, services, self._identity, self._readiness.problems, self._journal)
        run_in_background(endings, pulses)
        run_in_background(endings, self._readiness.log_changes())
        return await self._running.run(services)

    # ---- the parts of a process

    def _open_kubernetes(self) -> "KubeApi | None":
        if not any(run.spec.policy_rules for run in self._runs):
            return None
        # Imported here: a service without Kubernetes permissions does not load the client.
        from libs.common.kube.api import KubeApi  # noqa: PLC0415
        from libs.common.kube.kube_config import KubeConfigError  # noqa: PLC0415
        from libs.common.kube.load_kube_config import load_kube_config, with_server  # noqa: PLC0415

        try:
            config = load_kube_config(self._settings.kubeconfig, os.environ)
            if self._settings.master:
                config = with_server(config, self._settings.master, "--master")
            return KubeApi(
                config,
                user_agent=f"talos-ccm/{version('talos-ccm')} ({self._name})",
                instance=self._identity.partition("_")[0],
                observe=observe_kubernetes,
                on_event=self._journal.add,
            )
        except KubeConfigError as error:
            raise SettingsError(" ".join(str(error).split())) from error  # errors of YAML have several lines

    async def _serve_health(self, endings: AsyncExitStack) -> None:
        settings = self._settings
        own_port = self._runs[0].spec.port if len(self._runs) == 1 else WATCHER.port  # as all-in-one
        port = own_port if settings.secure_port is None else settings.secure_port
        if not port:
            return
        if self._certificate is not None:
            run_in_background(endings, self._certificate.keep_fresh())
        server = WebListener(make_health_application(self._readiness), self._certificate)
        port = await server.start(settings.bind_address, port, flag="--secure-port")
        close_at_exit(endings, "health server", server.stop)
        log.info("serving health and metrics", extra={"port": port, "https": self._certificate is not None})

    def _build(self, run: ServiceDefinition[Any], bus: Bus, kube: "KubeApi | None") -> Service:
        parts = Dependencies(
            bus=bus,
            kube=kube if run.spec.policy_rules else None,
            monotonic=time.monotonic,
            now=utc_now,
            random=random.Random(),  # noqa: S311 - jitter, not secrets
            identity=self._identity,
        )
        return run.build(parts, self._reading.get(run.settings))

    def _watch_readiness(self, bus: Bus, services: Sequence[Service]) -> None:
        def unless_standing_by(problems: ReadinessCheck) -> ReadinessCheck:
            return lambda: () if is_standby(bus, services) else problems()

        self._readiness.add_check("bus", unless_standing_by(bus.problems))
        for service in services:
            self._readiness.add_check(service.spec.service, unless_standing_by(service.problems))
