"""The shutdown of a process: each part in order and within a time limit."""

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
