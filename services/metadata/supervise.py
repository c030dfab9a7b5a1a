"""Keeps the task of one object running: a defect that its data bring to light takes no other with it."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from libs.common.bus.delivery import backoff_seconds

log = logging.getLogger(__name__)


async def supervise(run: Callable[[], Awaitable[None]], jitter: random.Random, **fields: str) -> None:
    """Until it returns; begun anew with back-off when it raises. `fields` say in the log which it was."""
    failures = 0
    while True:
        try:
            return await run()
        except Exception:
            log.exception("the task of one object failed", extra=fields)
            failures += 1
        await asyncio.sleep(backoff_seconds(failures, jitter.random()))
