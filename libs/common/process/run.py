"""The process around the services: settings, signals, health, bus and API client, and an orderly end."""

import asyncio
import logging
import os
import random
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from libs.common import telemetry
from libs.common.bus import Bus
from libs.common.logs import level_of_verbosity
from libs.common.process.endings import PART_ENDS_SECONDS, at_end, end_hard, end_hard_after, in_background
from libs.common.process.health import HealthServer
from libs.common.process.loop_watch import LoopWatch
from libs.common.process.messages import judge_bus, open_bus, stands_by
from libs.common.process.observers import observe_kubernetes
from libs.common.process.readiness import Problems, Readiness
from libs.common.process.service import Parts, Run, Service, ServiceEnded
from libs.common.process.serving_certificate import ServingCertificate
from libs.common.settings.flags import KUBERNETES
from libs.common.settings.help_text import help_text
from libs.common.settings.of_process import ProcessSettings
from libs.common.settings.reading import Option, Reading, SettingsError, options_of, read_settings

if TYPE_CHECKING:
    from libs.common.kube_api.api import KubeApi

log = logging.getLogger(__name__)

EXIT_DEFECT: Final = 1
EXIT_CONFIGURATION: Final = 2

_REFERENCE_PORT: Final = 10458
_PORTS_ALONE: Final = {"metadata": 10459, "labeler": 10460}  # several on one host; alone on the reference's

# Kubernetes grants 30 s. Services get most of it, each part a little, and then it is over in any case.
_SERVICES_END_SECONDS: Final = 22.0
_HARD_END_SECONDS: Final = 29.0
_CERTIFICATE_LOOK_SECONDS: Final = 60.0


def run_process(
    *runs: Run[Any],
    program: str = "",
    arguments: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run these services until SIGTERM or SIGINT; return the exit status.

    0 after a signal, 1 when a service ended by itself, 2 when only another configuration can help.
    """
    program = program or f"python -m services.{runs[0].wiring.service}"
    arguments = sys.argv[1:] if arguments is None else arguments
    environment = os.environ if environment is None else environment
    kinds: list[type[msgspec.Struct]] = [*(run.settings for run in runs), ProcessSettings]
    try:
        reading = read_settings(kinds, arguments, environment)
        if reading.wants_help:
            return _say(sys.stdout, help_text(program, _what(runs), _of_use(runs, options_of(*kinds))))
        if reading.wants_version:
            return _say(sys.stdout, f"talos-ccm {version('talos-ccm')}\n")
        settings = reading.of(ProcessSettings)
        judge_bus(runs, settings)
        telemetry.setup_logging(
            log_format=settings.logging_format, level=level_of_verbosity(settings.verbosity)
        )
        certificate = _certificate(settings)  # before there are threads: it forks
        with asyncio.Runner() as runner:
            return runner.run(_Process(runs, reading, environment, certificate).run())
    except SettingsError as error:
        _say(sys.stderr, "".join(f"{program}: {mistake}\n" for mistake in str(error).splitlines()))
        return EXIT_CONFIGURATION


def _certificate(settings: ProcessSettings) -> ServingCertificate | None:
    if settings.secure_port == 0 or not settings.secure_serving:
        return None
    return ServingCertificate(settings.tls_cert_file, settings.tls_private_key_file, now=datetime.now(UTC))


def _of_use(runs: Sequence[Run[Any]], options: Sequence[Option]) -> list[Option]:
    """The options without those of a Kubernetes client where no service has one; they are accepted."""
    needed = any(run.wiring.rights for run in runs)
    return [option for option in options if needed or option.flag.group != KUBERNETES]


def _what(runs: Sequence[Run[Any]]) -> str:
    return "Runs " + ", ".join(f"{run.wiring.service} (hears {run.wiring.hears})" for run in runs) + "."


def _say(stream: TextIO, text: str) -> int:
    stream.write(text)
    stream.flush()
    return 0


class _Process:
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
        self._told_to_end = asyncio.Event()

    async def run(self) -> int:
        with telemetry.log_fields(service=self._name):
            self._hear_signals()
            log.info("starting", extra={"version": version("talos-ccm"), "identity": self._identity})
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
        self._watch_readiness(bus, services)
        in_background(endings, self._readiness.tell())
        return await self._run_services(services)

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
        port = _PORTS_ALONE.get(self._name, _REFERENCE_PORT)
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

    # ---- running and ending

    async def _run_services(self, services: Sequence[Service]) -> int:
        tasks = {asyncio.create_task(_run(service)): service.wiring.service for service in services}
        told = asyncio.create_task(self._told_to_end.wait())
        await asyncio.sleep(0)  # each has begun: what it says of itself counts from here on
        self._readiness.started()
        await asyncio.wait({*tasks, told}, return_when=asyncio.FIRST_COMPLETED)
        by_themselves = [task for task in tasks if task.done()]
        self._begin_end()
        told.cancel()
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=_SERVICES_END_SECONDS)
        for task in late:
            log.error("a service did not end in time", extra={"service": tasks[task]})
        failed = [_judge(task, tasks[task], task in by_themselves) for task in tasks if task not in late]
        return EXIT_DEFECT if late or any(failed) else 0

    def _hear_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("told to end", extra={"signal": number.name, "again": self._told_to_end.is_set()})
        if self._told_to_end.is_set():
            end_hard(128 + number)
        self._begin_end()

    def _begin_end(self) -> None:
        if self._told_to_end.is_set():
            return
        self._told_to_end.set()
        self._readiness.ending()
        end_hard_after(_HARD_END_SECONDS, EXIT_DEFECT)


async def _run(service: Service) -> None:
    with telemetry.log_fields(service=service.wiring.service):
        await service.run()


def _judge(task: "asyncio.Task[None]", service: str, by_itself: bool) -> bool:
    """Whether a service failed, told in the log. Raises its SettingsError."""
    error = None if task.cancelled() else task.exception()
    fields = {"service": service, "error": str(error)}
    match error:
        case None if by_itself:
            log.error("a service ended though nobody told it to", extra=fields)
            return True
        case None:
            return False
        case SettingsError():
            raise error
        case ServiceEnded():
            log.error("a service ended, and the process with it", extra=fields)
        case _:
            log.error("a service failed, and the process with it", extra=fields, exc_info=error)
    return True


async def _kept_fresh(certificate: ServingCertificate) -> None:
    while True:
        await asyncio.sleep(_CERTIFICATE_LOOK_SECONDS)
        try:
            certificate.refresh()
        except SettingsError as error:
            log.warning("the serving certificate stays the old one", extra={"error": str(error)})
