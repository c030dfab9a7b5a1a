"""Runs the parts of a service at the same time, and periodic work."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn


async def run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all parts until they return; the failure of one cancels the others and raises an ExceptionGroup."""
    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part)


async def run_every(seconds: float, work: Callable[[], None]) -> NoReturn:
    """Call `work` after each interval, until cancelled."""
    while True:
        await asyncio.sleep(seconds)
        work()
