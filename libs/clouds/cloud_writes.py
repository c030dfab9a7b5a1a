"""Shared by all writers of load balancers and routes: deadlines, polls, the results of failed requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

from libs.clouds.balancers import UnknownOutcome, WriteRejection
from libs.clouds.instances import Unanswered

_POLL_GROWTH: Final = 1.4  # each wait is longer than the one before by this factor

AnswerT = TypeVar("AnswerT")


def set_deadline(seconds: float) -> float:
    """Return the time after these seconds, by the clock of the event loop."""
    return asyncio.get_running_loop().time() + seconds


async def poll(
    read: Callable[[], Awaitable[AnswerT]], *, deadline: float, first_seconds: float, max_seconds: float
) -> AsyncIterator[AnswerT]:
    """Yield answers until the deadline. The wait before each grows from the first to the longest one."""
    loop, wait = asyncio.get_running_loop(), first_seconds
    while loop.time() + wait < deadline:
        await asyncio.sleep(wait)
        yield await read()
        wait = min(wait * _POLL_GROWTH, max_seconds)


def explain_failed_write(result: WriteRejection | Unanswered) -> WriteRejection | UnknownOutcome:
    """Return the rejection. Without an answer, the API may have made the change."""
    return UnknownOutcome(reason=result.reason) if isinstance(result, Unanswered) else result
