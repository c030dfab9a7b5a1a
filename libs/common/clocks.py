"""The clocks of a process."""

import asyncio
from datetime import UTC, datetime


def loop_time() -> float:
    """Return the monotonic seconds of the running event loop."""
    return asyncio.get_running_loop().time()


def utc_now() -> datetime:
    """Return the time of day in UTC."""
    return datetime.now(UTC)
