"""Repeats a request to kube-apiserver until an outage is over."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp

from libs.testbed.kubelets import RequestRejected

_RETRY_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 80.0


async def persist(what: str, send: Callable[[], Awaitable[None]]) -> None:
    """Send until it succeeds, as kubelets and operators do. Raises TimeoutError with the last error."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                await send()
        except (aiohttp.ClientError, RequestRejected, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: {error}") from error
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return
