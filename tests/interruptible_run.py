"""Runs the work of a harness until its end or a signal, so that it can stop its processes."""

import asyncio
import signal
from collections.abc import Awaitable, Callable


def run_until_signal(work: Callable[[], Awaitable[None]]) -> bool:
    """Run the work; whether it came to its end. Ctrl-C, SIGTERM and SIGHUP cancel it."""

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGHUP):  # asyncio handles Ctrl-C
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await work()

    try:
        asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return False
    return True


def list_messages(error: BaseException) -> list[str]:
    """Return the message of an error, or those of all errors in a group and in the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [message for each in error.exceptions for message in list_messages(each)]
    return [str(error) or type(error).__name__]
