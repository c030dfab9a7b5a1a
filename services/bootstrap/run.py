"""The process of the bootstrap: reads its flags, then runs once, or continuously with --keep."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from importlib.metadata import version
from typing import Final

from libs.common.clocks import utc_now
from libs.common.kube.api import KubeApi
from libs.common.kube.kube_config import KubeConfigError
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.observability.telemetry import level_of_verbosity, log_fields, setup_logging
from libs.common.service.health import HealthServer, Readiness
from libs.common.service.service_supervisor import close_at_exit, run_in_background
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.settings.help_text import format_help
from libs.common.settings.read_settings import SettingsError, list_options, read_settings
from services.bootstrap.key_stores import DirectoryKeyStore, KubernetesKeyStore
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.server_config import NatsServerConfig
from services.bootstrap.server_reconciler import KeyStore, ServerReconciler, ServerSpec
from services.bootstrap.settings import BootstrapSettings

EXIT_CONFIGURATION: Final = 2
_PROGRAM: Final = "python -m services.bootstrap"
_DESCRIPTION: Final = (
    "Creates the credentials of NATS and the services: a key for each service, a certificate authority and "
    "this server's certificate. Writes the server's configuration, which gives each service only the "
    "permissions that it declares."
)


def main(arguments: Sequence[str]) -> int:
    """Return the exit status: 0 after success or a signal, 2 for invalid configuration."""
    try:
        reading = read_settings([BootstrapSettings], arguments, os.environ)
        if reading.wants_help or reading.wants_version:
            help_text = format_help(_PROGRAM, _DESCRIPTION, list_options(BootstrapSettings))
            sys.stdout.write(help_text if reading.wants_help else f"talos-ccm {version('talos-ccm')}\n")
            return 0
        settings = reading.get(BootstrapSettings)
        setup_logging(log_format=settings.logging_format, level=level_of_verbosity(settings.verbosity))
        return asyncio.run(_run(settings))
    except SettingsError as error:
        sys.stderr.write("".join(f"{_PROGRAM}: {mistake}\n" for mistake in str(error).splitlines()))
        return EXIT_CONFIGURATION


async def _run(settings: BootstrapSettings) -> int:
    names = ResourceNames(
        namespace=settings.namespace,
        prefix=settings.prefix,
        cluster_domain=settings.cluster_domain,
        cloud_accounts=settings.cloud_accounts,
    )
    store = _make_store(settings)
    async with AsyncExitStack() as endings:
        close_at_exit(endings, "store", store.close)
        reconciler = ServerReconciler(
            store,
            names,
            settings.out.absolute(),
            _make_spec(settings, names),
            now=utc_now,
            interval_seconds=settings.reconcile_interval_seconds,
        )
        with log_fields(service="bootstrap"):
            if settings.keep:
                await _serve_health(endings, settings, reconciler)
            work = asyncio.create_task(reconciler.run() if settings.keep else reconciler.run_once())
            return await _run_until_signalled(work)


async def _run_until_signalled(task: "asyncio.Task[None]") -> int:
    """Run until the task ends or a signal arrives; the first process of a container must handle signals."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return 0
    return 0


async def _serve_health(
    endings: AsyncExitStack, settings: BootstrapSettings, reconciler: ServerReconciler
) -> None:
    readiness = Readiness(time.monotonic)
    readiness.add_check("nats", reconciler.problems)
    readiness.mark_started()
    if settings.secure_port:
        certificate = ServingCertificate(None, None, now=utc_now()) if settings.secure_serving else None
        server = HealthServer(readiness, certificate)
        await server.start(settings.bind_address, settings.secure_port)
        close_at_exit(endings, "health server", server.stop)
    run_in_background(endings, readiness.log_changes())


def _make_store(settings: BootstrapSettings) -> KeyStore:
    if settings.files is not None:
        return DirectoryKeyStore(settings.files.absolute())
    try:
        config = load_kube_config(settings.kubeconfig, os.environ)
        kube = KubeApi(config, user_agent=f"talos-ccm/{version('talos-ccm')} (bootstrap)")
    except KubeConfigError as error:
        raise SettingsError(" ".join(str(error).split())) from error
    return KubernetesKeyStore(kube, settings.namespace, settings.instance or settings.prefix)


def _make_spec(settings: BootstrapSettings, names: ResourceNames) -> ServerSpec:
    server = NatsServerConfig(
        name=settings.server_name,
        listen_address=settings.listen_address,
        client_port=settings.client_port,
        route_port=settings.route_port,
        monitor_port=settings.monitor_port,
        routes=names.list_routes(settings.replicas),
        files_dir=settings.out.absolute(),
        store_dir=settings.store_dir,
        store_bytes=settings.store_bytes,
        cloud_accounts=settings.cloud_accounts,
    )
    hosts = (*names.list_hosts(), server.own_host, *settings.tls_names)
    return ServerSpec(
        server=server,
        tls_names=tuple(dict.fromkeys(hosts)),
        certificate_lifetime=timedelta(seconds=settings.certificate_seconds),
    )
