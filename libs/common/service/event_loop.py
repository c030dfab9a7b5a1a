"""Keeps the event loop free: fewer garbage collections; measures its lag and logs code that blocks it."""

import asyncio
import gc
import logging
import sys
import threading
import time
import traceback
from typing import Final

from libs.common.observability import metrics

log = logging.getLogger(__name__)

# New objects before a collection of the young generation; 700 by default. While hundreds of Nodes join, new
# objects stay alive. With the default, collections took a sixth of the CPU time, in pauses of up to 0.1 s.
_YOUNG: Final = 20_000


_TICK_SECONDS: Final = 0.5
_STUCK_SECONDS: Final = 5.0


def reduce_gc_frequency() -> None:
    """Collect less often from now on, and exclude all existing objects, which stay alive anyway.

    A collection pauses the event loop, and the services create few reference cycles.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG)


class EventLoopMonitor:
    """A heartbeat on the event loop, and a thread that checks it."""

    def __init__(self, *, stuck_seconds: float = _STUCK_SECONDS) -> None:
        self._stuck_seconds = stuck_seconds
        self._beat_at = time.monotonic()
        self._over = threading.Event()

    async def run(self) -> None:
        """Run the heartbeat and the thread until cancelled."""
        self._beat_at = time.monotonic()
        watcher = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="loop-watch", daemon=True
        )
        watcher.start()
        try:
            while True:
                due = time.monotonic() + _TICK_SECONDS
                await asyncio.sleep(_TICK_SECONDS)
                self._beat_at = time.monotonic()
                metrics.LOOP_LAG.observe(max(0.0, self._beat_at - due))
        finally:
            self._over.set()

    def _watch(self, loop_thread: int) -> None:
        reported_beat = 0.0
        while not self._over.wait(min(1.0, self._stuck_seconds / 2)):
            beat_at = self._beat_at
            stuck_for = time.monotonic() - beat_at
            if stuck_for > self._stuck_seconds and reported_beat != beat_at:
                reported_beat = beat_at
                frame = sys._current_frames().get(loop_thread)  # noqa: SLF001 - documented for this purpose
                stack = "".join(traceback.format_stack(frame)) if frame else "unknown"
                log.error("event loop blocked", extra={"seconds": round(stuck_for, 1), "stack": stack})
