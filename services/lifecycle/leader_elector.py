"""Leader election of lifecycle, by its own Lease. A replica that loses it continues as a standby."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

from libs.common.kube.errors import KubeError
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant
from libs.common.observability import metrics

log = logging.getLogger(__name__)

_JITTER: Final = 0.2  # a pause may be up to a fifth longer, as in client-go


class ElectionLock(Protocol):
    """The part of `libs.common.kube.lease_lock.LeaseLock` that the election needs."""

    @property
    def is_leading(self) -> bool: ...

    async def try_acquire_or_renew(self) -> LeaseGrant | LeaseDenial: ...

    async def release(self) -> bool: ...


@dataclass(eq=False)
class LeaderElector:
    """Acquires and renews the Lease until cancelled. Without a lock it leads from the start."""

    lock: ElectionLock | None
    _: KW_ONLY
    on_started_leading: Callable[
        [], None
    ]  # called each time this replica starts to lead, also after a short gap
    retry_seconds: float
    clock: Callable[[], float]
    jitter: Callable[[], float]

    def __post_init__(self) -> None:
        self._leading_since: float | None = self.clock() if self.lock is None else None
        self._transitions = -1
        self._holder = ""
        self._problem = ""
        self._write_lock = asyncio.Lock()  # a renewal and the record of deletions write the same object

    @property
    def write_lock(self) -> asyncio.Lock:
        """The lock for other writes to the Lease, which must not conflict with a renewal."""
        return self._write_lock

    def leading_since(self) -> float | None:
        """Return the monotonic time when this replica began to lead; None if it does not lead."""
        if self.lock is not None and not self.lock.is_leading:
            return None
        return self._leading_since

    def problems(self) -> tuple[str, ...]:
        """Return why the leader is unknown, in words for /readyz; a standby is ready."""
        return (f"cannot read or write the Lease: {self._problem}",) if self._problem else ()

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled, then release it."""
        if self.lock is None:
            metrics.LIFECYCLE_LEADER.set(1)
            return
        try:
            while True:
                await self._try_acquire(self.lock)
                metrics.LIFECYCLE_LEADER.set(self.leading_since() is not None)
                await asyncio.sleep(self.retry_seconds * (1 + _JITTER * self.jitter()))
        finally:
            metrics.LIFECYCLE_LEADER.set(0)
            self._leading_since = None
            await self.lock.release()

    async def _try_acquire(self, lock: ElectionLock) -> None:
        led = self.leading_since() is not None
        try:
            async with self._write_lock:
                answer = await lock.try_acquire_or_renew()
        except KubeError as error:
            if not self._problem:
                log.warning("cannot read or write the Lease", extra={"error": str(error)})
            self._problem = str(error)
            return  # the last renewal counts until its deadline
        self._problem = ""
        if isinstance(answer, LeaseDenial):
            self._follow(answer.holder)
        elif not led or answer.transitions != self._transitions:
            self._transitions, self._leading_since, self._holder = answer.transitions, self.clock(), ""
            log.info("leadership acquired", extra={"lease_transitions": answer.transitions})
            self.on_started_leading()

    def _follow(self, holder: str) -> None:
        self._leading_since = None
        if holder != self._holder:
            self._holder = holder
            log.info("standing by, another replica leads", extra={"holder": holder})
