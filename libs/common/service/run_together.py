"""Runs the parts of a service at the same time."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all parts until they return; the failure of one cancels the others and raises an ExceptionGroup."""
    async with asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part)
