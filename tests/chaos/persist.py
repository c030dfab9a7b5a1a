"""Repeats a request to a server until an outage is over."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp

from libs.testbed.kubelets import RequestRejected

_RETRY_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 80.0


async def persist(what: str, send: Callable[[], Awaitable[None]]) -> None:
    """Send until it succeeds, as kubelets and operators do. Raises TimeoutError with the last error."""
    loop = asyncio.get_running_loop()
    deadline, last = loop.time() + _PATIENCE_SECONDS, ""
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await send()
        except (aiohttp.ClientError, RequestRejected, TimeoutError) as error:
            last = str(error) or last  # the text of a time limit is empty
            if loop.time() > deadline:
                raise TimeoutError(f"not within {_PATIENCE_SECONDS:g} s: {what}: {last}") from error
            await asyncio.sleep(_RETRY_SECONDS)
        else:
            return
