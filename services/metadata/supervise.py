"""Restarts the task of one object: a defect that its data trigger does not affect other objects."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from libs.common.bus.delivery import backoff_seconds

log = logging.getLogger(__name__)


async def supervise(run: Callable[[], Awaitable[None]], jitter: random.Random, **fields: str) -> None:
    """Run until `run` returns; restart it with back-off if it raises. `fields` name the object in logs."""
    failures = 0
    while True:
        try:
            return await run()
        except Exception:
            log.exception("the task of one object failed", extra=fields)
            failures += 1
        await asyncio.sleep(backoff_seconds(failures, jitter.random()))
