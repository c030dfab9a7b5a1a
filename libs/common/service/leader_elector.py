"""Leader election with a Lease, by the rules of client-go, and reports to a leader that has lost NATS."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NoReturn, Protocol

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import ServerLiveness
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant, LeaseLock
from libs.common.service.service import Dependencies, ServiceEnded
from libs.common.settings.lease_times import RETRY_JITTER, LeaseSettings

log = logging.getLogger(__name__)
_BUS_POLL_SECONDS: Final = 0.02
_NEVER: Final = float("inf")
_LONG_AGO: Final = float("-inf")


class LeadershipLost(ServiceEnded):
    """Another replica may lead from now on; the text gives the reason."""


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


class NoLock:
    """The lock of a service that runs without a Lease: each replica leads."""

    leading_until = _NEVER
    reported_at = _LONG_AGO
    holder_reads_reports = False

    async def report_standby(self) -> None:
        """No other replica reads a report."""

    async def try_acquire_or_renew(self, *, may_acquire: bool = True) -> LeaseGrant | LeaseDenial:
        """Return a grant."""
        return LeaseGrant(transitions=0)

    async def release(self) -> bool:
        """Return False: nothing was written."""
        return False


@dataclass(eq=False, kw_only=True)
class BusReachability:
    """Compares this replica's contact with the bus with the reports of standbys on the Lease.

    A leader that alone is cut off from the bus steps down if a standby reaches the bus. If the bus is down
    for every replica, no standby reports, and the holder keeps the Lease.
    """

    contact: Callable[[], ServerLiveness]
    leader_silence: Callable[[], float]  # seconds since the leader last published
    candidate_seconds: float  # a candidate must have had an answer within this time
    leader_seconds: float  # a leader may be without an answer for this time

    def may_lead(self) -> bool:
        """Whether the bus answers; otherwise another replica should acquire the Lease."""
        return self.contact().silent_seconds <= self.candidate_seconds

    @property
    def report_seconds(self) -> float:
        """Seconds between two reports: the leader receives several while one is valid."""
        return self.leader_seconds / 3

    def is_leader_silent(self, *, holder_seconds: float) -> bool:
        """Whether the bus has answered for a while without a message from the Lease holder.

        The period is `leader_seconds`: after an outage for all replicas the leader reconnects within that
        time. `holder_seconds`: the known time since the holder acquired the Lease; a new watcher lists Nodes
        first.
        """
        is_steady = self.may_lead() and self.contact().responsive_seconds >= self.leader_seconds
        return is_steady and min(self.leader_silence(), holder_seconds) >= self.leader_seconds

    def must_step_down(self, *, reported_seconds_ago: float) -> bool:
        """Whether a leader must step down: the bus does not answer it, but answers a standby."""
        is_cut_off = self.contact().silent_seconds >= self.leader_seconds
        return is_cut_off and reported_seconds_ago <= self.leader_seconds

    def describe_problem(self, *, is_leading: bool, silent_holder: str) -> str:
        """Return why this replica cannot lead or stand by, in words for /readyz; "" if it can."""
        if silent_holder:
            return (
                f"{silent_holder} holds the Lease and has published nothing for "
                f"{self.leader_silence():.0f} s; NATS answers here, which is reported on the Lease"
            )
        if self.may_lead():
            return ""
        if is_leading:
            return "NATS does not answer this leader: it releases the Lease when a standby reaches NATS"
        return "NATS does not answer: this replica does not acquire the Lease"


@dataclass(eq=False)
class LeaderElector:
    """Acquires, renews and releases one Lease.

    `run_term` ends with the leadership, `run` continues as a standby.
    """

    lock: Lock
    _: KW_ONLY
    set_gauge: Callable[[float], None]  # 1 while this replica leads, else 0
    retry_seconds: float
    clock: Callable[[], float]
    jitter: Callable[[], float]
    reachability: BusReachability | None = None  # only if a standby reports a leader that publishes nothing

    def __post_init__(self) -> None:
        self.renewed = asyncio.Event()  # set at each renewal; the waiting task clears it
        self._leading_since: float | None = None
        self._transitions = 0
        self._holder = ""
        self._silent_holder = ""
        self._holder_since = _LONG_AGO
        self._report_due = _LONG_AGO
        self._has_answer = False
        self._last_error = ""

    def leading_since(self) -> float | None:
        """Return the monotonic time when this replica began to lead; None if it does not lead."""
        return self._leading_since if self.clock() < self.lock.leading_until else None

    def problems(self) -> tuple[str, ...]:
        """Return why the leader is unknown, in words for /readyz; a standby is ready."""
        if self._last_error:
            return (f"cannot read or write the Lease: {self._last_error}",)
        if self.reachability is not None and (
            why := self.reachability.describe_problem(
                is_leading=self._leading_since is not None, silent_holder=self._silent_holder
            )
        ):
            return (why,)
        return () if self._has_answer else ("the holder of the Lease is not known yet",)

    async def run(self, lead: Callable[[int], Coroutine[Any, Any, None]]) -> NoReturn:
        """Run one term after the other until cancelled; see `run_term`."""
        while True:
            try:
                await self.run_term(lead)
            except* LeadershipLost as lost:
                log.warning("leadership lost, standing by", extra={"reason": str(find_root_cause(lost))})
            _raise_if_cancelled()

    async def run_term(self, lead: Callable[[int], Coroutine[Any, Any, None]]) -> NoReturn:
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
        raise AssertionError("unreachable: renew() ends only by an exception")

    async def acquire(self) -> int:
        """Wait until this replica leads; return how often the Lease has changed its holder."""
        await self._wait_for_bus()
        while True:
            # A leader without the bus publishes nothing, and keeps other replicas from leading.
            answer = await self._try_acquire(take=self._may_lead())
            if isinstance(answer, LeaseGrant):
                self._silent_holder = ""
                self._leading_since, self._transitions = self.clock(), answer.transitions
                self.set_gauge(1)
                log.info("leadership acquired", extra={"lease_transitions": answer.transitions})
                return answer.transitions
            await self._report_silence(answer)
            pause = self._retry_pause()
            await asyncio.sleep(pause if answer is None else min(answer.seconds, pause))

    async def renew(self) -> NoReturn:
        """Set `renewed` at each renewal. Ends only with LeadershipLost."""
        failed_for = 0.0  # duration of the last attempt, if it failed
        while True:
            try:
                # Count from the last confirmed renewal, not from a hanging one: other candidates do the same.
                async with asyncio.timeout(self.lock.leading_until - self.clock()):
                    # An attempt that hung for the whole period is repeated at once: time is short.
                    await asyncio.sleep(max(0.0, self._retry_pause() - failed_for))
                    self._raise_if_lapsed()
                    began = self.clock()
                    answer = await self._try_acquire()
                    failed_for = self.clock() - began if answer is None else 0.0
            except TimeoutError:
                raise self._lose(f"not renewed in time{self._error_suffix()}") from None
            self._verify(answer)
            if answer is not None:
                self._step_down_if_cut_off()
                self.renewed.set()

    async def confirm_leadership(self) -> None:
        """Verify the leadership after messages of another leader.

        Raises LeadershipLost if another replica leads, TemporaryError if there is no answer.
        """
        answer = await self._try_acquire()
        if answer is None:
            raise TemporaryError("cannot confirm the leadership", self._last_error)
        self._verify(answer)

    async def release(self) -> None:
        """Release the leadership, so that another replica can acquire it."""
        is_leading, self._leading_since = self._leading_since is not None, None
        self.set_gauge(0)
        # A lost Lease is not released: shutdown must not wait for an unresponsive server.
        if is_leading and await self.lock.release():
            log.info("Lease released")

    def _verify(self, answer: LeaseGrant | LeaseDenial | None) -> None:
        if isinstance(answer, LeaseDenial):
            raise self._lose(f"{answer.holder or 'no replica'} holds it now")
        if answer is not None and answer.transitions != self._transitions:
            # The Lease was deleted, and is acquired again: another replica may have led meanwhile.
            raise LeadershipLost("the Lease was deleted or changed its holder")

    def _raise_if_lapsed(self) -> None:
        """Raise TimeoutError if another replica may have led since the last renewal, as after a pause."""
        if self.clock() >= self.lock.leading_until:
            raise TimeoutError

    async def _report_silence(self, answer: LeaseDenial | None) -> None:
        """Report to a leader that renews the Lease but publishes nothing: another replica could lead.

        The reference controller gets no report. It holds the watcher's Lease during a migration and publishes
        nothing.
        """
        if self.reachability is None:
            return
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

    def _step_down_if_cut_off(self) -> None:
        """Step down if a standby reaches the bus. Without reports the bus is down for every replica."""
        age = self.clock() - self.lock.reported_at
        if self.reachability is not None and self.reachability.must_step_down(reported_seconds_ago=age):
            log.warning("stepping down: the bus answers a standby, but not this leader")
            raise LeadershipLost("stepped down: the bus answers a standby, but not this leader")

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
            log.info("standing by, another replica leads", extra={"holder": answer.holder})
        return answer

    def _may_lead(self) -> bool:
        return self.reachability is None or self.reachability.may_lead()

    async def _wait_for_bus(self) -> None:
        """Wait for the first answer of the bus, for one retry period at most. It takes milliseconds.

        Without it, the first attempt would acquire nothing, and the next one comes a retry period later.
        """
        for _ in range(math.ceil(self._retry_pause() / _BUS_POLL_SECONDS)):
            if self._may_lead():
                return
            await asyncio.sleep(_BUS_POLL_SECONDS)

    def _retry_pause(self) -> float:
        return self.retry_seconds * (1 + (RETRY_JITTER - 1) * self.jitter())

    def _lose(self, why: str) -> LeadershipLost:
        self._leading_since = None
        self.set_gauge(0)
        return LeadershipLost(f"the Lease is lost: {why}")

    def _error_suffix(self) -> str:
        return f" ({self._last_error})" if self._last_error else ""


def build_leader_elector(
    kube: KubeApi | None,
    settings: LeaseSettings,
    dependencies: Dependencies,
    *,
    set_gauge: Callable[[float], None],
    leader_silence: Callable[[], float] | None = None,
) -> LeaderElector:
    """Return the elector for the Lease of the settings, or one that always leads, without `kube`.

    `kube` has connections of its own for the Lease. With `leader_silence`, the seconds since the leader last
    published, only a replica that reaches the bus leads, and a standby reports a leader that does not.
    """
    lock: Lock = NoLock()
    if kube is not None:
        lock = LeaseLock(
            kube,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=dependencies.identity,
            now=dependencies.now,
            clock=dependencies.monotonic,
            duration_seconds=int(settings.lease_duration_seconds),
            renew_deadline_seconds=settings.renew_deadline_seconds,
        )
    reachability = None
    if leader_silence is not None and kube is not None:
        reachability = BusReachability(
            contact=dependencies.bus.server_liveness,
            leader_silence=leader_silence,
            candidate_seconds=settings.renew_deadline_seconds,
            leader_seconds=settings.lease_duration_seconds,
        )
    return LeaderElector(
        lock,
        set_gauge=set_gauge,
        retry_seconds=settings.retry_period_seconds,
        clock=dependencies.monotonic,
        jitter=dependencies.random.random,
        reachability=reachability,
    )


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
