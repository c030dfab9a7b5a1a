"""The process: from its command line to the files, and with --keep on from there."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Final

from libs.common.kube_api.api import KubeApi
from libs.common.kube_api.config import KubeConfigError, load_kube_config
from libs.common.logs import level_of_verbosity
from libs.common.process.endings import at_end, in_background
from libs.common.process.health import HealthServer
from libs.common.process.readiness import Readiness
from libs.common.process.serving_certificate import ServingCertificate
from libs.common.settings.help_text import help_text
from libs.common.settings.reading import SettingsError, options_of, read_settings
from libs.common.telemetry import log_fields, setup_logging
from services.bootstrap.files_api import FolderStore
from services.bootstrap.keep import Keeper
from services.bootstrap.names import Names
from services.bootstrap.prepare import Store, Wanted
from services.bootstrap.secrets_api import SecretStore
from services.bootstrap.server_config import Server
from services.bootstrap.settings import BootstrapSettings

EXIT_CONFIGURATION: Final = 2
_PROGRAM: Final = "python -m services.bootstrap"
_WHAT: Final = (
    "Makes what NATS and our services need to trust one another: a key for each service, an authority, this "
    "server's certificate, and its configuration, in which each may do what it declares and no more."
)


def main(arguments: Sequence[str]) -> int:
    """0 when all is made, or after a signal; 2 when only another configuration can help."""
    try:
        reading = read_settings([BootstrapSettings], arguments, os.environ)
        if reading.wants_help or reading.wants_version:
            told = help_text(_PROGRAM, _WHAT, options_of(BootstrapSettings))
            sys.stdout.write(told if reading.wants_help else f"talos-ccm {version('talos-ccm')}\n")
            return 0
        settings = reading.of(BootstrapSettings)
        setup_logging(log_format=settings.logging_format, level=level_of_verbosity(settings.verbosity))
        return asyncio.run(_run(settings))
    except SettingsError as error:
        sys.stderr.write("".join(f"{_PROGRAM}: {mistake}\n" for mistake in str(error).splitlines()))
        return EXIT_CONFIGURATION


async def _run(settings: BootstrapSettings) -> int:
    names = Names(
        namespace=settings.namespace, prefix=settings.prefix, cluster_domain=settings.cluster_domain
    )
    store = _store(settings)
    async with AsyncExitStack() as endings:
        at_end(endings, "store", store.close)
        keeper = Keeper(
            store,
            names,
            settings.out.absolute(),
            _wanted(settings, names),
            now=lambda: datetime.now(UTC),
            look_seconds=settings.look_seconds,
        )
        with log_fields(service="bootstrap"):
            if settings.keep:
                await _serve_health(endings, settings, keeper)
            work = asyncio.create_task(keeper.run() if settings.keep else keeper.once())
            return await _until_told(work)


async def _until_told(work: "asyncio.Task[None]") -> int:
    """Its end, or a signal: as the first process of a container it gets none that it does not ask for."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        return 0
    return 0


async def _serve_health(endings: AsyncExitStack, settings: BootstrapSettings, keeper: Keeper) -> None:
    readiness = Readiness(time.monotonic)
    readiness.add("nats", keeper.problems)
    readiness.started()
    if settings.secure_port:
        certificate = (
            ServingCertificate(None, None, now=datetime.now(UTC)) if settings.secure_serving else None
        )
        server = HealthServer(readiness, certificate)
        await server.start(settings.bind_address, settings.secure_port)
        at_end(endings, "health server", server.stop)
    in_background(endings, readiness.tell())


def _store(settings: BootstrapSettings) -> Store:
    if settings.files is not None:
        return FolderStore(settings.files.absolute())
    try:
        config = load_kube_config(settings.kubeconfig, os.environ)
        kube = KubeApi(config, user_agent=f"talos-ccm/{version('talos-ccm')} (bootstrap)")
    except KubeConfigError as error:
        raise SettingsError(" ".join(str(error).split())) from error
    return SecretStore(kube, settings.namespace, settings.instance or settings.prefix)


def _wanted(settings: BootstrapSettings, names: Names) -> Wanted:
    server = Server(
        name=settings.server_name,
        listen_address=settings.listen_address,
        client_port=settings.client_port,
        route_port=settings.route_port,
        monitor_port=settings.monitor_port,
        routes=names.routes(settings.replicas),
        files=settings.out.absolute(),
        store_dir=settings.store_dir,
        store_bytes=settings.store_bytes,
    )
    hosts = (*names.hosts(), server.own_host, *settings.tls_names)
    return Wanted(
        server=server,
        tls_names=tuple(dict.fromkeys(hosts)),
        certificate_lifetime=timedelta(seconds=settings.certificate_seconds),
    )
