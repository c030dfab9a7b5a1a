"""How a process ends: every part in its turn and its time, and in any case."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

log = logging.getLogger(__name__)

PART_ENDS_SECONDS: Final = 2.0


def at_end(endings: AsyncExitStack, name: str, end: Callable[[], Awaitable[None]]) -> None:
    """End that part when the stack unwinds, within its time; what it raises does not stop the rest."""

    async def ended() -> None:
        try:
            async with asyncio.timeout(PART_ENDS_SECONDS):
                await end()
        except Exception as error:  # noqa: BLE001 - the process ends: whatever one part raises, the others end too
            log.warning("could not be ended in order", extra={"part": name, "error": repr(error)})

    endings.push_async_callback(ended)


def in_background(endings: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
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

    endings.push_async_callback(ended)


def end_hard(status: int) -> None:
    """End the process now, from any thread."""
    log.error("ending at once, work in flight is abandoned", extra={"status": status})
    logging.shutdown()
    os._exit(status)


def end_hard_after(seconds: float, status: int) -> None:
    """End the process by then, also if its loop is stuck."""
    timer = threading.Timer(seconds, end_hard, [status])
    timer.daemon = True
    timer.start()
