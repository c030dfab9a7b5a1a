"""Whether we lead: by a Lease of our own. Losing it ends nothing: what was seen meanwhile counts no more."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from libs.common import metrics
from libs.common.kube_api.errors import KubeError
from libs.common.kube_api.lock import Held, NotHeld

log = logging.getLogger(__name__)

_JITTER: Final = 0.2  # a pause may be a fifth longer than asked for (client-go)


class Lock(Protocol):
    """What is needed of `kube_api.lock.LeaseLock`."""

    @property
    def leading(self) -> bool: ...

    async def try_hold(self) -> Held | NotHeld: ...

    async def release(self) -> bool: ...


class WatchLease:
    """Tries to hold it for ever. Without a lock, by configuration, we lead from the start."""

    def __init__(
        self,
        lock: Lock | None,
        *,
        gained: Callable[[], None],
        retry_seconds: float,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        """`gained` hears when we come to lead, also after a moment in which we did not."""
        self._lock = lock
        self._gained = gained
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._jitter = jitter
        self._since: float | None = clock() if lock is None else None
        self._transitions = -1
        self._holder = ""
        self._trouble = ""
        self._one_at_a_time = asyncio.Lock()  # a renewal and the record of deletions write the same object

    @property
    def writing(self) -> asyncio.Lock:
        """Held by whoever else writes the Lease, so that no renewal is in the way."""
        return self._one_at_a_time

    def leading_since(self) -> float | None:
        """Since when we lead without a gap, on our monotonic clock; None if we do not."""
        if self._lock is not None and not self._lock.leading:
            return None
        return self._since

    def problems(self) -> tuple[str, ...]:
        """Why nobody can say who leads, in words for /readyz; a standby is ready."""
        return (f"the Lease cannot be read or written: {self._trouble}",) if self._trouble else ()

    async def run(self) -> None:
        """Until cancelled; then the next one is let in."""
        if self._lock is None:
            metrics.LIFECYCLE_LEADER.set(1)
            return
        try:
            while True:
                await self._try(self._lock)
                metrics.LIFECYCLE_LEADER.set(self.leading_since() is not None)
                await asyncio.sleep(self._retry_seconds * (1 + _JITTER * self._jitter()))
        finally:
            metrics.LIFECYCLE_LEADER.set(0)
            self._since = None
            await self._lock.release()

    async def _try(self, lock: Lock) -> None:
        led = self.leading_since() is not None
        try:
            async with self._one_at_a_time:
                answer = await lock.try_hold()
        except KubeError as error:
            if not self._trouble:
                log.warning("the Lease cannot be read or written", extra={"error": str(error)})
            self._trouble = str(error)
            return  # the last renewal counts until its deadline
        self._trouble = ""
        if isinstance(answer, NotHeld):
            self._stands_by(answer.holder)
        elif not led or answer.transitions != self._transitions:
            self._transitions, self._since, self._holder = answer.transitions, self._clock(), ""
            log.info("leading from now on", extra={"lease_transitions": answer.transitions})
            self._gained()

    def _stands_by(self, holder: str) -> None:
        self._since = None
        if holder != self._holder:
            self._holder = holder
            log.info("standing by, another one leads", extra={"holder": holder})
