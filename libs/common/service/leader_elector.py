"""Leader election with a Lease, by the rules of client-go."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NoReturn

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import ServerLiveness
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, KubeError, NotFound
from libs.common.kube.lease import (
    Lease,
    acquired_document,
    released_document,
    set_annotation,
    vacant_lease,
)
from libs.common.service.bus_reachability import HOLDER_READS_REPORTS_ANNOTATION, BusReachability
from libs.common.service.service import Dependencies, ServiceEnded
from libs.common.settings.lease_times import RETRY_JITTER, LeaseSettings, validate_lease_times

log = logging.getLogger(__name__)
_BUS_POLL_SECONDS: Final = 0.02
_RELEASE_SECONDS: Final = 4.0  # a shutdown does not wait longer
_NEVER: Final = float("inf")
_LONG_AGO: Final = float("-inf")
# Of a bus that does not matter here: it answers, but never for so long that a standby reports its leader.
_ANSWERS_NOW: Final = ServerLiveness(silent_seconds=0.0, responsive_seconds=0.0)


class LeadershipLost(ServiceEnded):
    """Another replica may lead from now on; the text gives the reason."""


@dataclass(eq=False)
class LeaderElector:
    """Acquires, renews and releases one Lease. `run_term` ends with the leadership, `run` stands by again.

    A replica leads until the renew deadline, counted from when its last confirmed renewal was *sent*. The
    deadline is shorter than the duration after which others acquire the Lease. So a replica whose connection
    hangs stops leading before another one starts.

    With `leader_silence`, the seconds since the leader last published, only a replica that reaches the bus
    leads, and a standby reports a leader that does not.
    """

    kube: KubeApi | None  # with connections of its own for the Lease; None: each replica leads
    settings: LeaseSettings
    dependencies: Dependencies
    _: KW_ONLY
    set_gauge: Callable[[float], None]  # 1 while this replica leads, else 0
    leader_silence: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if problems := validate_lease_times(self.settings):
            raise ValueError("; ".join(problems))
        self.clock = self.dependencies.monotonic
        self.identity = self.dependencies.identity
        self.renewed = asyncio.Event()  # set at each renewal; the waiting task clears it
        self.leading_until = _LONG_AGO  # by the clock: it leads until then without another renewal
        self._leading_since: float | None = None
        self._vacant = vacant_lease(self.settings.lease_namespace, self.settings.lease_name)
        self._lease = self._vacant  # as last read or written; vacant if it does not exist
        self._unchanged_since = _LONG_AGO  # when its present spec was first observed
        self._attempted_at = _LONG_AGO  # when the last attempt to acquire or renew it began
        self._has_answer = False
        self._last_error = ""
        has_bus = self.kube is not None and self.leader_silence is not None
        self._reachability = BusReachability(
            identity=self.identity,
            contact=self.dependencies.bus.server_liveness if has_bus else lambda: _ANSWERS_NOW,
            leader_silence=self.leader_silence or (lambda: 0.0),
            candidate_seconds=self.settings.renew_deadline_seconds,
            leader_seconds=self.settings.lease_duration_seconds,
        )

    def leading_since(self) -> float | None:
        """Return the monotonic time when this replica began to lead; None if it does not lead."""
        return self._leading_since if self.clock() < self.leading_until else None

    def problems(self) -> tuple[str, ...]:
        """Return why the leader is unknown, in words for /readyz; a standby is ready."""
        if self._last_error:
            return (f"cannot read or write the Lease: {self._last_error}",)
        if why := self._reachability.describe_problem(is_leading=self._leading_since is not None):
            return (why,)
        return () if self._has_answer else ("the holder of the Lease is not known yet",)

    # ---- terms

    async def run(self, lead: Callable[[int], Coroutine[Any, Any, None]]) -> NoReturn:
        """Run one term after the other until cancelled; see `run_term`."""
        while True:
            try:
                await self.run_term(lead)
            except* LeadershipLost as lost:
                log.warning("leadership lost, standing by", extra={"reason": str(find_root_cause(lost))})
            _raise_if_cancelled()

    async def run_term(self, lead: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Wait until this replica leads, run `lead` while it does, then release the Lease.

        `lead` gets the number of earlier holders. Raises an exception group with LeadershipLost, and with
        other errors of `lead`.
        """
        try:
            transitions = await self.acquire()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(lead(transitions))
                await self.renew()
        finally:
            await self.release()

    async def acquire(self) -> int:
        """Wait until this replica leads; return how often the Lease has changed its holder."""
        await self._wait_for_bus()
        # A leader without the bus publishes nothing, and keeps other replicas from leading.
        while not await self._acquire_or_renew(may_acquire=self._reachability.may_lead()):
            await self._report_silent_leader()
            pause, seconds_left = self._retry_pause(), self._seconds_left()
            await asyncio.sleep(min(seconds_left, pause) if seconds_left > 0 else pause)
        self._leading_since = self.clock()
        self.set_gauge(1)
        log.info("leadership acquired", extra={"lease_transitions": self._lease.transitions})
        return self._lease.transitions

    async def renew(self) -> NoReturn:
        """Renew every retry period, and set `renewed` each time. Ends only with LeadershipLost."""
        while True:
            try:
                # Count from the last confirmed renewal, not from a hanging one: other candidates do the same.
                async with asyncio.timeout(self.leading_until - self.clock()):
                    # A period after the last attempt began: after one that was slow or hung, time is short.
                    due = self._attempted_at + self._retry_pause()
                    await asyncio.sleep(max(0.0, due - self.clock()))
                    is_renewed = await self._renew()
            except TimeoutError:
                reason = f" ({self._last_error})" if self._last_error else ""
                raise self._lose(f"not renewed in time{reason}") from None
            if is_renewed:
                self._step_down_if_cut_off()
                self.renewed.set()

    async def confirm_leadership(self) -> None:
        """Verify the leadership after messages of another leader.

        Raises LeadershipLost if another replica leads, TemporaryError if there is no answer.
        """
        if not await self._renew():
            raise TemporaryError("cannot confirm the leadership", self._last_error)

    async def release(self) -> None:
        """Release the leadership, so that another replica can acquire it."""
        is_leading = self._leading_since is not None
        self._stop_leading()
        # A lost Lease is not released: shutdown must not wait for an unresponsive server.
        if is_leading and self.kube is not None:
            with suppress(KubeError, TimeoutError):  # the Lease expires by itself
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._write_release(self.kube)

    def _lose(self, why: str) -> LeadershipLost:
        self._stop_leading()
        return LeadershipLost(f"the Lease is lost: {why}")

    def _stop_leading(self) -> None:
        self._leading_since, self.leading_until = None, _LONG_AGO
        self.set_gauge(0)

    def _step_down_if_cut_off(self) -> None:
        """Step down if a standby reaches the bus. Without reports the bus is down for every replica."""
        if self._reachability.must_step_down(self.clock()):
            log.warning("stepping down: the bus answers a standby, but not this leader")
            raise LeadershipLost("stepped down: the bus answers a standby, but not this leader")

    async def _report_silent_leader(self) -> None:
        """Report to a leader that renews the Lease but publishes nothing: another replica could lead."""
        if self.kube is None or self._last_error:
            return
        report = self._reachability.plan_report(self._lease, self.clock(), self.dependencies.now())
        if report is None:
            return
        try:
            await self.kube.write_lease(report, deadline_seconds=self._request_seconds)
        except KubeError as error:
            log.info("cannot report a silent leader, will retry", extra={"error": str(error)})

    async def _wait_for_bus(self) -> None:
        """Wait for the first answer of the bus, for one retry period at most. It takes milliseconds.

        Without it, the first attempt would acquire nothing, and the next one comes a retry period later.
        """
        for _ in range(math.ceil(self._retry_pause() / _BUS_POLL_SECONDS)):
            if self._reachability.may_lead():
                return
            await asyncio.sleep(_BUS_POLL_SECONDS)

    def _retry_pause(self) -> float:
        spread = (RETRY_JITTER - 1) * self.dependencies.random.random()
        return self.settings.retry_period_seconds * (1 + spread)

    # ---- the Lease

    async def _renew(self) -> bool:
        """Renew once; return whether the API server answered. Raises LeadershipLost.

        A term ends when its Lease was deleted or released: another replica may have led meanwhile.
        """
        if await self._acquire_or_renew(may_acquire=False):
            return True
        if self._last_error:
            return False
        raise self._lose(f"{self._lease.holder or 'no replica'} holds it now")

    async def _acquire_or_renew(self, *, may_acquire: bool) -> bool:
        """Acquire or renew the Lease, once; return whether this replica holds it.

        Without an answer of the API server it returns False and `_last_error` gives the reason.
        """
        self._attempted_at = self.clock()
        try:
            is_held = await self._take(may_acquire=may_acquire)
        except KubeError as error:
            if not self._last_error:
                log.warning("cannot read or write the Lease", extra={"error": str(error)})
            self._last_error = str(error)
            return False
        self._last_error, self._has_answer = "", True
        return is_held

    async def _take(self, *, may_acquire: bool) -> bool:
        """Acquire or renew the Lease, once. Raises KubeError if it does not know who holds it now."""
        if self.kube is None:
            self.leading_until = _NEVER
            return True
        if self._is_holder and self.clock() < self.leading_until:
            with suppress(Conflict):
                return await self._write(self.kube)
            # Another client wrote or deleted it, or the last response was lost: read it.
        await self._read(self.kube)
        was_holder = self._is_holder
        if not was_holder and (not may_acquire or self._seconds_left() > 0):
            return False
        try:
            return await self._write(self.kube)
        except Conflict:
            if was_holder:
                raise  # another client wrote it again, which says nothing about the leadership
            return False  # another candidate is faster

    async def _read(self, kube: KubeApi) -> None:
        where, name = self.settings.lease_namespace, self.settings.lease_name
        try:
            lease = await kube.get_lease(where, name, deadline_seconds=self._request_seconds)
        except NotFound:
            lease = self._vacant
        self._observe(lease, self.clock())

    async def _write(self, kube: KubeApi) -> bool:
        """Write this replica as the holder; return True. Raises Conflict if another client wrote first."""
        sent, seconds = self.clock(), int(self.settings.lease_duration_seconds)
        acquired = acquired_document(self._lease, self.identity, seconds, self.dependencies.now())
        document = set_annotation(acquired, HOLDER_READS_REPORTS_ANNOTATION, self.identity)
        self._observe(await kube.write_lease(document, deadline_seconds=self._request_seconds), sent)
        self.leading_until = sent + self.settings.renew_deadline_seconds
        return True

    async def _write_release(self, kube: KubeApi) -> None:
        while self._is_holder:
            document = released_document(self._lease, self.dependencies.now())
            try:
                self._lease = await kube.write_lease(document, deadline_seconds=self._request_seconds)
                log.info("Lease released")
            except Conflict:
                # Most likely this replica's own renewal, whose response the shutdown did not await.
                await self._read(kube)

    def _observe(self, lease: Lease, at: float) -> None:
        before, self._lease = self._lease, lease
        self._reachability.observe(before, lease, at)
        if before.spec != lease.spec:
            self._unchanged_since = at
        if lease.holder not in (before.holder, self.identity, ""):
            log.info("standing by, another replica leads", extra={"holder": lease.holder})

    @property
    def _is_holder(self) -> bool:
        return self._lease.holder == self.identity

    def _seconds_left(self) -> float:
        """Return for how long the holder has the Lease unless it renews; 0 or less: another may acquire it.

        It expires when its spec has not changed for its duration on the local clock, as in client-go. So
        clocks of different machines are never compared. A Lease without a duration has that of this replica.
        """
        if not self._lease.holder:
            return 0.0
        duration = self._lease.spec.lease_duration_seconds or self.settings.lease_duration_seconds
        return self._unchanged_since + duration - self.clock()

    @property
    def _request_seconds(self) -> float:
        """Return the deadline of one request, as in client-go: half of the renew deadline.

        A renewal that an overloaded server answers within that time counts. After a request that hangs
        there is still time for another one, on a new connection.
        """
        return self.settings.renew_deadline_seconds / 2


def find_root_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception inside nested groups, for a log of one sentence instead of a tree."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _raise_if_cancelled() -> None:
    """Raise CancelledError if the current task was cancelled.

    Before Python 3.13, a task group that ends by an exception drops a cancellation that arrives with it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
