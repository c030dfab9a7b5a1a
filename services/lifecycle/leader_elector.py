"""Whether we lead: by a Lease of our own. Losing it ends nothing: what was seen meanwhile counts no more."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from libs.common.kube.errors import KubeError
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant
from libs.common.observability import metrics

log = logging.getLogger(__name__)

_JITTER: Final = 0.2  # a pause may be a fifth longer than asked for (client-go)


class ElectionLock(Protocol):
    """What is needed of `kube_api.lock.LeaseLock`."""

    @property
    def is_leading(self) -> bool: ...

    async def try_acquire_or_renew(self) -> LeaseGrant | LeaseDenial: ...

    async def release(self) -> bool: ...


class LeaderElector:
    """Tries to hold it for ever. Without a lock, by configuration, we lead from the start."""

    def __init__(
        self,
        lock: ElectionLock | None,
        *,
        on_started_leading: Callable[[], None],
        retry_seconds: float,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        """`on_started_leading` hears when we come to lead, also after a moment in which we did not."""
        self._lock = lock
        self._on_started_leading = on_started_leading
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._jitter = jitter
        self._leading_since: float | None = clock() if lock is None else None
        self._transitions = -1
        self._holder = ""
        self._problem = ""
        self._write_lock = asyncio.Lock()  # a renewal and the record of deletions write the same object

    @property
    def write_lock(self) -> asyncio.Lock:
        """Held by whoever else writes the Lease, so that no renewal is in the way."""
        return self._write_lock

    def leading_since(self) -> float | None:
        """Since when we lead without a gap, on our monotonic clock; None if we do not."""
        if self._lock is not None and not self._lock.is_leading:
            return None
        return self._leading_since

    def problems(self) -> tuple[str, ...]:
        """Why nobody can say who leads, in words for /readyz; a standby is ready."""
        return (f"the Lease cannot be read or written: {self._problem}",) if self._problem else ()

    async def run(self) -> None:
        """Until cancelled; then the next one is let in."""
        if self._lock is None:
            metrics.LIFECYCLE_LEADER.set(1)
            return
        try:
            while True:
                await self._try_acquire(self._lock)
                metrics.LIFECYCLE_LEADER.set(self.leading_since() is not None)
                await asyncio.sleep(self._retry_seconds * (1 + _JITTER * self._jitter()))
        finally:
            metrics.LIFECYCLE_LEADER.set(0)
            self._leading_since = None
            await self._lock.release()

    async def _try_acquire(self, lock: ElectionLock) -> None:
        led = self.leading_since() is not None
        try:
            async with self._write_lock:
                answer = await lock.try_acquire_or_renew()
        except KubeError as error:
            if not self._problem:
                log.warning("the Lease cannot be read or written", extra={"error": str(error)})
            self._problem = str(error)
            return  # the last renewal counts until its deadline
        self._problem = ""
        if isinstance(answer, LeaseDenial):
            self._follow(answer.holder)
        elif not led or answer.transitions != self._transitions:
            self._transitions, self._leading_since, self._holder = answer.transitions, self._clock(), ""
            log.info("leading from now on", extra={"lease_transitions": answer.transitions})
            self._on_started_leading()

    def _follow(self, holder: str) -> None:
        self._leading_since = None
        if holder != self._holder:
            self._holder = holder
            log.info("standing by, another one leads", extra={"holder": holder})
