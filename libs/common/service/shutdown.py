"""How a process ends: every part in its turn and its time, and in any case."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_SECONDS: Final = 2.0


def close_at_exit(exit_stack: AsyncExitStack, name: str, close: Callable[[], Awaitable[None]]) -> None:
    """End that part when the stack unwinds, within its time; what it raises does not stop the rest."""

    async def ended() -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await close()
        except Exception as error:  # noqa: BLE001 - the process ends: whatever one part raises, the others end too
            log.warning("could not be ended in order", extra={"part": name, "error": repr(error)})

    exit_stack.push_async_callback(ended)


def run_in_background(exit_stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Do that until the stack unwinds; should it fail, that is told and the process goes on."""

    async def watched() -> None:
        try:
            await work
        except Exception:
            log.exception("work in the background failed")

    task = asyncio.create_task(watched())

    async def ended() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    exit_stack.push_async_callback(ended)


def force_exit(status: int) -> None:
    """End the process now, from any thread."""
    log.error("ending at once, work in flight is abandoned", extra={"status": status})
    logging.shutdown()
    os._exit(status)


def force_exit_after(seconds: float, status: int) -> None:
    """End the process by then, also if its loop is stuck."""
    timer = threading.Timer(seconds, force_exit, [status])
    timer.daemon = True
    timer.start()
