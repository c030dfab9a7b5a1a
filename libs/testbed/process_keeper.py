"""Restarts processes of the services that end, as a kubelet does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from libs.testbed.service_processes import ServiceProcesses

_POLL_SECONDS: Final = 0.3


@contextlib.asynccontextmanager
async def keep_running(services: ServiceProcesses) -> AsyncIterator[list[str]]:
    """During the block, restart each process that ends without `services.kill`; yields their names so far.

    Raises the error of a restart at the end of the block.
    """
    restarted: list[str] = []

    async def keep() -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for name, child in list(services.children.items()):
                if not child.is_running:
                    restarted.append(name)
                    services.restart(name)

    keeping = asyncio.create_task(keep())
    try:
        yield restarted
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        if not keeping.cancelled():
            keeping.result()
