"""The process of the bootstrap: reads its flags, then runs once, or continuously with --keep."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from typing import Final

import msgspec

from libs.common.clocks import utc_now
from libs.common.kube.api import KubeApi
from libs.common.kube.kube_config import KubeConfigError
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.observability.telemetry import level_of_verbosity, log_fields, setup_logging
from libs.common.service.health import Readiness, make_health_application
from libs.common.service.service_supervisor import close_at_exit, run_in_background
from libs.common.service.serving_certificate import ServingCertificate
from libs.common.service.web_listener import WebListener
from libs.common.settings.help_text import format_help
from libs.common.settings.read_settings import SettingsError, list_options, read_settings
from services.bootstrap.key_stores import DirectoryKeyStore, KubernetesKeyStore
from services.bootstrap.server_reconciler import KeyStore, ServerReconciler
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
        asyncio.run(_run(settings))
    except SettingsError as error:
        sys.stderr.write("".join(f"{_PROGRAM}: {mistake}\n" for mistake in str(error).splitlines()))
        return EXIT_CONFIGURATION
    return 0


async def _run(settings: BootstrapSettings) -> None:
    # nats.conf refers to its files by absolute paths
    settings = msgspec.structs.replace(settings, out=settings.out.absolute())
    store = _make_store(settings)
    async with AsyncExitStack() as endings:
        close_at_exit(endings, "store", store.close)
        reconciler = ServerReconciler(store, settings, now=utc_now)
        with log_fields(service="bootstrap"):
            if settings.keep:
                await _serve_health(endings, settings, reconciler)
            work = asyncio.create_task(reconciler.run() if settings.keep else reconciler.run_once())
            await _run_until_signalled(work)


async def _run_until_signalled(task: "asyncio.Task[None]") -> None:
    """Run until the task ends or a signal arrives; the first process of a container must handle signals."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _serve_health(
    endings: AsyncExitStack, settings: BootstrapSettings, reconciler: ServerReconciler
) -> None:
    readiness = Readiness(time.monotonic)
    readiness.add_check("nats", reconciler.problems)
    readiness.mark_started()
    if settings.secure_port:
        certificate = ServingCertificate(None, None, now=utc_now()) if settings.secure_serving else None
        server = WebListener(make_health_application(readiness), certificate)
        await server.start(settings.bind_address, settings.secure_port, flag="--secure-port")
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
