"""Who leads: by the Lease, or without one by what the stream says."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from libs.common import metrics
from libs.common.delivery import TemporaryError
from libs.common.kube_api.errors import KubeError
from libs.common.kube_api.lock import Held, NotHeld
from libs.common.process.service import ServiceEnded
from libs.common.settings.lease_times import RETRY_JITTER
from services.watcher.held import HeldFlow
from services.watcher.reach import Reach

log = logging.getLogger(__name__)
_NEVER: Final = float("inf")


class LeadershipLost(ServiceEnded):
    """Somebody else may lead from now on; the text says why."""


class Lock(Protocol):
    """What election needs of `kube_api.lock.LeaseLock`."""

    @property
    def leading_until(self) -> float: ...

    @property
    def reported_at(self) -> float: ...

    @property
    def is_held_by_reader(self) -> bool: ...

    async def report(self) -> None: ...

    async def try_hold(self, *, take: bool = True) -> Held | NotHeld: ...

    async def release(self) -> bool: ...


class Candidacy(Protocol):
    """How one process comes to lead, stays it, and stops."""

    async def win(self) -> int:
        """Wait until we lead; return how many have led before, as far as that is known outside the stream."""

    async def keep(self, renewed: Callable[[], None]) -> None:
        """Call `renewed` at each renewal. Ends only by LeadershipLost."""

    async def confirm(self) -> None:
        """Ask whether we lead, because the stream says otherwise.

        Raises LeadershipLost if we do not, TemporaryError if nobody answers.
        """

    async def give_up(self) -> None:
        """Let the next one in."""

    def problems(self) -> tuple[str, ...]:
        """Why nobody can say who leads, in words for /readyz."""


class ByLease:
    """client-go's election: a Lease, its holder, and patience."""

    def __init__(
        self,
        lock: Lock,
        *,
        retry_seconds: float,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        reach: Reach,
    ) -> None:
        """`reach` says whether the bus answers here, and whether the leader is heard on it."""
        self._reach = reach
        self._lock = lock
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._jitter = jitter
        self._holder = ""
        self._silent_holder = ""
        self._holder_since = float("-inf")
        self._report_due = float("-inf")
        self._leads = False
        self._answered = False
        self._trouble = ""
        self._is_lost = False

    async def win(self) -> int:
        while True:
            # A leader without the bus does nothing, and keeps others from leading.
            answer = await self._try(take=self._reach.may_lead())
            if isinstance(answer, Held):
                metrics.LEADER.set(1)
                self._is_lost = False
                self._silent_holder = ""
                self._leads = True
                log.info("leading from now on", extra={"lease_transitions": answer.transitions})
                return answer.transitions
            await self._report_silence(answer)
            await self._pause(answer.seconds if answer is not None else _NEVER)

    async def _report_silence(self, answer: NotHeld | None) -> None:
        """Report to a leader that renews the Lease and publishes nothing: another watcher could lead.

        Not to the reference controller, which holds the same Lease during a migration and publishes nothing.
        """
        now = self._clock()
        misses = self._reach.misses_leader(holder_seconds=now - self._holder_since)
        is_silent = answer is not None and self._lock.is_held_by_reader and misses
        self._silent_holder = answer.holder if answer is not None and is_silent else ""
        if not is_silent or now < self._report_due:
            return
        self._report_due = now + self._reach.report_seconds
        try:
            await self._lock.report()
        except KubeError as error:
            log.info("cannot report a silent leader, will retry", extra={"error": str(error)})

    async def keep(self, renewed: Callable[[], None]) -> None:
        while True:
            try:
                # The last confirmed renewal counts, not one that hangs: others count from it too.
                async with asyncio.timeout(self._lock.leading_until - self._clock()):
                    await self._pause()
                    answer = await self._try()
            except TimeoutError:
                raise self._lost(f"it could not be renewed in time{self._because()}") from None
            if isinstance(answer, NotHeld):
                raise self._lost(f"{answer.holder or 'nobody'} holds it now")
            if answer is not None:
                self._step_down_if_cut_off()
                renewed()

    def _step_down_if_cut_off(self) -> None:
        """The Lease stays where it is while no standby reports: then the bus is down for everybody."""
        age = self._clock() - self._lock.reported_at
        if self._reach.is_cut_off(reported_seconds_ago=age):
            log.warning("stepping down: the bus does not answer here, and does answer a standby")
            raise LeadershipLost("stepped down: the bus does not answer here, and does answer a standby")

    async def confirm(self) -> None:
        answer = await self._try()
        if answer is None:
            raise TemporaryError("whether we still lead cannot be asked", self._trouble)
        if isinstance(answer, NotHeld):
            raise self._lost(f"{answer.holder or 'nobody'} holds it now")

    async def give_up(self) -> None:
        self._leads = False
        metrics.LEADER.set(0)
        if not self._is_lost and await self._lock.release():
            log.info("the Lease is released")

    def problems(self) -> tuple[str, ...]:
        if self._trouble:
            return (f"the Lease cannot be read or written: {self._trouble}",)
        if why := self._reach.problem(leads=self._leads, silent_holder=self._silent_holder):
            return (why,)
        return () if self._answered else ("nobody has said yet who holds the Lease",)

    async def _try(self, *, take: bool = True) -> Held | NotHeld | None:
        try:
            answer = await self._lock.try_hold(take=take)
        except KubeError as error:
            if not self._trouble:
                log.warning("the Lease cannot be read or written", extra={"error": str(error)})
            self._trouble = str(error)
            return None
        self._trouble = ""
        self._answered = True
        if isinstance(answer, NotHeld) and answer.holder != self._holder:
            self._holder, self._holder_since = answer.holder, self._clock()
            log.info("standing by, another one leads", extra={"holder": answer.holder})
        return answer

    async def _pause(self, at_most: float = _NEVER) -> None:
        await asyncio.sleep(min(at_most, self._retry_seconds * (1 + (RETRY_JITTER - 1) * self._jitter())))

    def _lost(self, why: str) -> LeadershipLost:
        self._is_lost = (
            True  # nothing to release, and the end must not wait for a server that does not answer
        )
        metrics.LEADER.set(0)
        return LeadershipLost(f"the Lease is lost: {why}")

    def _because(self) -> str:
        return f" ({self._trouble})" if self._trouble else ""


class WithoutLease:
    """Nothing but the stream says who leads: the latest to come does, the one before it stops at its word."""

    def __init__(self, held: HeldFlow, *, retry_seconds: float, silence_seconds: float) -> None:
        """Who was outranked waits until no other leader was heard for `silence_seconds`."""
        self._held = held
        self._retry_seconds = retry_seconds
        self._silence_seconds = silence_seconds
        self._outranked_by = ""

    async def win(self) -> int:
        while self._outranked_by:
            silent = self._silence_seconds - self._held.seconds_since_leading()
            if silent <= 0:
                break
            await asyncio.sleep(silent)
        self._outranked_by = ""
        metrics.LEADER.set(1)
        log.info("leading without a Lease from now on")
        return 0

    async def keep(self, renewed: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._retry_seconds)
            renewed()

    async def confirm(self) -> None:
        leading = self._held.leading
        self._outranked_by = leading.holder if leading is not None else "another watcher"
        raise LeadershipLost(f"{self._outranked_by} publishes to this stream too, and came later")

    async def give_up(self) -> None:
        metrics.LEADER.set(0)

    def problems(self) -> tuple[str, ...]:
        if not self._outranked_by:
            return ()
        return (f"{self._outranked_by} publishes to this stream too; without a Lease there may be only one",)
