"""Leader election, with a Lease or by the stream alone."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, Protocol

from libs.common.bus.delivery import TemporaryError
from libs.common.kube.errors import KubeError
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant
from libs.common.observability import metrics
from libs.common.service.service import ServiceEnded
from libs.common.settings.lease_times import RETRY_JITTER
from services.watcher.bus_reachability import BusReachability
from services.watcher.published_state import PublishedState

log = logging.getLogger(__name__)
_BUS_POLL_SECONDS: Final = 0.02
_NEVER: Final = float("inf")


class LeadershipLost(ServiceEnded):
    """Another watcher may lead from now on; the text gives the reason."""


class Lock(Protocol):
    """The part of `libs.common.kube.lease_lock.LeaseLock` that the election needs."""

    @property
    def leading_until(self) -> float: ...

    @property
    def reported_at(self) -> float: ...

    @property
    def holder_reads_reports(self) -> bool: ...

    async def report_standby(self) -> None: ...

    async def try_acquire_or_renew(self, *, may_acquire: bool = True) -> LeaseGrant | LeaseDenial: ...

    async def release(self) -> bool: ...


class LeaderElector(Protocol):
    """Acquires, renews and releases leadership."""

    async def acquire(self) -> int:
        """Wait until this watcher leads; return the number of earlier leaders known outside the stream."""

    async def renew(self, on_renewed: Callable[[], None]) -> None:
        """Call `on_renewed` at each renewal. Ends only with LeadershipLost."""

    async def confirm_leadership(self) -> None:
        """Verify the leadership after the stream contradicted it.

        Raises LeadershipLost if another watcher leads, TemporaryError if there is no answer.
        """

    async def release(self) -> None:
        """Release leadership, so that another watcher can acquire it."""

    def problems(self) -> tuple[str, ...]:
        """Return why the leader is unknown, in words for /readyz."""


@dataclass(eq=False)
class LeaseElector:
    """Leader election with a Lease, by the rules of client-go."""

    lock: Lock
    _: KW_ONLY
    retry_seconds: float
    clock: Callable[[], float]
    jitter: Callable[[], float]
    reachability: BusReachability  # whether the bus answers, and whether the leader publishes

    def __post_init__(self) -> None:
        self._holder = ""
        self._silent_holder = ""
        self._holder_since = float("-inf")
        self._report_due = float("-inf")
        self._is_leading = False
        self._has_answer = False
        self._last_error = ""
        self._is_lost = False

    async def acquire(self) -> int:
        await self._wait_for_bus()
        while True:
            # A leader without the bus publishes nothing, and keeps other watchers from leading.
            answer = await self._try_acquire(take=self.reachability.may_lead())
            if isinstance(answer, LeaseGrant):
                metrics.LEADER.set(1)
                self._is_lost = False
                self._silent_holder = ""
                self._is_leading = True
                log.info("leadership acquired", extra={"lease_transitions": answer.transitions})
                return answer.transitions
            await self._report_silence(answer)
            await self._sleep(answer.seconds if answer is not None else _NEVER)

    async def _report_silence(self, answer: LeaseDenial | None) -> None:
        """Report to a leader that renews the Lease but publishes nothing: another watcher could lead.

        The reference controller gets no report. It holds the same Lease during a migration and publishes
        nothing.
        """
        now = self.clock()
        misses = self.reachability.is_leader_silent(holder_seconds=now - self._holder_since)
        is_silent = answer is not None and self.lock.holder_reads_reports and misses
        self._silent_holder = answer.holder if answer is not None and is_silent else ""
        if not is_silent or now < self._report_due:
            return
        self._report_due = now + self.reachability.report_seconds
        try:
            await self.lock.report_standby()
        except KubeError as error:
            log.info("cannot report a silent leader, will retry", extra={"error": str(error)})

    async def renew(self, on_renewed: Callable[[], None]) -> None:
        failed_for = 0.0  # duration of the last attempt, if it failed
        while True:
            try:
                # Count from the last confirmed renewal, not from a hanging one: other candidates do the same.
                async with asyncio.timeout(self.lock.leading_until - self.clock()):
                    # An attempt that hung for the whole period is repeated at once: time is short.
                    await asyncio.sleep(max(0.0, self._retry_pause() - failed_for))
                    began = self.clock()
                    answer = await self._try_acquire()
                    failed_for = self.clock() - began if answer is None else 0.0
            except TimeoutError:
                raise self._lose(f"not renewed in time{self._error_suffix()}") from None
            if isinstance(answer, LeaseDenial):
                raise self._lose(f"{answer.holder or 'no watcher'} holds it now")
            if answer is not None:
                self._step_down_if_cut_off()
                on_renewed()

    def _step_down_if_cut_off(self) -> None:
        """Step down if a standby reaches the bus. Without reports the bus is down for every watcher."""
        age = self.clock() - self.lock.reported_at
        if self.reachability.must_step_down(reported_seconds_ago=age):
            log.warning("stepping down: the bus answers a standby, but not this leader")
            raise LeadershipLost("stepped down: the bus answers a standby, but not this leader")

    async def confirm_leadership(self) -> None:
        answer = await self._try_acquire()
        if answer is None:
            raise TemporaryError("cannot confirm the leadership", self._last_error)
        if isinstance(answer, LeaseDenial):
            raise self._lose(f"{answer.holder or 'no watcher'} holds it now")

    async def release(self) -> None:
        self._is_leading = False
        metrics.LEADER.set(0)
        if not self._is_lost and await self.lock.release():
            log.info("Lease released")

    def problems(self) -> tuple[str, ...]:
        if self._last_error:
            return (f"cannot read or write the Lease: {self._last_error}",)
        if why := self.reachability.describe_problem(
            is_leading=self._is_leading, silent_holder=self._silent_holder
        ):
            return (why,)
        return () if self._has_answer else ("the holder of the Lease is not known yet",)

    async def _try_acquire(self, *, take: bool = True) -> LeaseGrant | LeaseDenial | None:
        try:
            answer = await self.lock.try_acquire_or_renew(may_acquire=take)
        except KubeError as error:
            if not self._last_error:
                log.warning("cannot read or write the Lease", extra={"error": str(error)})
            self._last_error = str(error)
            return None
        self._last_error = ""
        self._has_answer = True
        if isinstance(answer, LeaseDenial) and answer.holder != self._holder:
            self._holder, self._holder_since = answer.holder, self.clock()
            log.info("standing by, another watcher leads", extra={"holder": answer.holder})
        return answer

    async def _wait_for_bus(self) -> None:
        """Wait for the first answer of the bus, for one retry period at most. It takes milliseconds.

        Without it, the first attempt would acquire nothing, and the next one comes a retry period later.
        """
        for _ in range(math.ceil(self._retry_pause() / _BUS_POLL_SECONDS)):
            if self.reachability.may_lead():
                return
            await asyncio.sleep(_BUS_POLL_SECONDS)

    async def _sleep(self, at_most: float) -> None:
        await asyncio.sleep(min(at_most, self._retry_pause()))

    def _retry_pause(self) -> float:
        return self.retry_seconds * (1 + (RETRY_JITTER - 1) * self.jitter())

    def _lose(self, why: str) -> LeadershipLost:
        self._is_lost = True  # nothing to release, and shutdown must not wait for an unresponsive server
        metrics.LEADER.set(0)
        return LeadershipLost(f"the Lease is lost: {why}")

    def _error_suffix(self) -> str:
        return f" ({self._last_error})" if self._last_error else ""


@dataclass(eq=False)
class StreamElector:
    """Leader election by the stream alone: the newest candidate leads and displaces the former leader."""

    published: PublishedState
    _: KW_ONLY
    retry_seconds: float
    # A deposed leader waits until it has received no other heartbeat for this time.
    silence_seconds: float

    def __post_init__(self) -> None:
        self._deposed_by = ""

    async def acquire(self) -> int:
        while self._deposed_by:
            silent = self.silence_seconds - self.published.seconds_since_leader_heartbeat()
            if silent <= 0:
                break
            await asyncio.sleep(silent)
        self._deposed_by = ""
        metrics.LEADER.set(1)
        log.info("leadership acquired without a Lease")
        return 0

    async def renew(self, on_renewed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self.retry_seconds)
            on_renewed()

    async def confirm_leadership(self) -> None:
        leading = self.published.leader_heartbeat
        self._deposed_by = leading.holder if leading is not None else "another watcher"
        raise LeadershipLost(f"{self._deposed_by} started later and publishes to this stream, too")

    async def release(self) -> None:
        metrics.LEADER.set(0)

    def problems(self) -> tuple[str, ...]:
        if not self._deposed_by:
            return ()
        return (f"{self._deposed_by} publishes to this stream, too: without a Lease run only one watcher",)
