"""Runs the services of a process, ends each part within a time limit, and determines the exit status."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from libs.common.observability import telemetry
from libs.common.service.health import Readiness
from libs.common.service.service import Service, ServiceEnded
from libs.common.settings.read_settings import SettingsError

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_SECONDS: Final = 2.0


EXIT_DEFECT: Final = 1
# Kubernetes kills a container after 30 s. Services get most of this time, other parts the rest. Then the
# process exits in any case.
_SERVICES_END_SECONDS: Final = 22.0
_HARD_END_SECONDS: Final = 29.0


def close_at_exit(exit_stack: AsyncExitStack, name: str, close: Callable[[], Awaitable[None]]) -> None:
    """Close that part within CLOSE_TIMEOUT_SECONDS when the stack unwinds; errors are logged."""

    async def ended() -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await close()
        except Exception as error:  # noqa: BLE001 - an error of one part must not stop the others
            log.warning("shutdown of part failed", extra={"part": name, "error": repr(error)})

    exit_stack.push_async_callback(ended)


def run_in_background(exit_stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine until the stack unwinds; an error is logged and the process continues."""

    async def watched() -> None:
        try:
            await work
        except Exception:
            log.exception("background task failed")

    task = asyncio.create_task(watched())

    async def ended() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    exit_stack.push_async_callback(ended)


def force_exit(status: int) -> None:
    """End the process now, from any thread."""
    log.error("forced exit, work in flight is lost", extra={"status": status})
    logging.shutdown()
    os._exit(status)


def force_exit_after(seconds: float, status: int) -> None:
    """End the process after `seconds`, even if its event loop is stuck."""
    timer = threading.Timer(seconds, force_exit, [status])
    timer.daemon = True
    timer.start()


class ServiceSupervisor:
    """Runs services until a signal arrives or one of them ends."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self._is_stopping = asyncio.Event()

    async def run(self, services: Sequence[Service]) -> int:
        """Run until a signal or the end of a service, then end all; return the exit status.

        Raises SettingsError.
        """
        tasks = {asyncio.create_task(_run(service)): service.spec.service for service in services}
        stopping = asyncio.create_task(self._is_stopping.wait())
        await asyncio.sleep(0)  # each service has started, so its readiness is valid from now on
        self._readiness.mark_started()
        await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
        by_themselves = [task for task in tasks if task.done()]
        self._begin_shutdown()
        stopping.cancel()
        for task in tasks:
            task.cancel()
        _, late = await asyncio.wait(tasks, timeout=_SERVICES_END_SECONDS)
        for task in late:
            log.error("service shutdown timed out", extra={"service": tasks[task]})
        failed = [_report_end(task, tasks[task], task in by_themselves) for task in tasks if task not in late]
        return EXIT_DEFECT if late or any(failed) else 0

    def install_signal_handlers(self) -> None:
        """Make SIGTERM and SIGINT shut down the services; a second signal ends the process at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("shutdown requested", extra={"signal": number.name, "again": self._is_stopping.is_set()})
        if self._is_stopping.is_set():
            force_exit(128 + number)
        self._begin_shutdown()

    def _begin_shutdown(self) -> None:
        if self._is_stopping.is_set():
            return
        self._is_stopping.set()
        self._readiness.mark_stopping()
        force_exit_after(_HARD_END_SECONDS, EXIT_DEFECT)


async def _run(service: Service) -> None:
    with telemetry.log_fields(service=service.spec.service):
        await service.run()


def _report_end(task: "asyncio.Task[None]", service: str, by_itself: bool) -> bool:
    """Log the end of a service; return whether it failed. Raises its SettingsError."""
    error = None if task.cancelled() else task.exception()
    fields = {"service": service, "error": str(error)}
    match error:
        case None if by_itself:
            log.error("service ended unexpectedly", extra=fields)
            return True
        case None:
            return False
        case SettingsError():
            raise error
        case ServiceEnded():
            log.error("service ended, process exits", extra=fields)
        case _:
            log.error("service failed, process exits", extra=fields, exc_info=error)
    return True
