"""The election: patience, renewal in time, terms, and a leader that alone is cut off from the bus."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import ServerLiveness
from libs.common.kube.errors import Unreachable
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant
from libs.common.service.leader_elector import BusReachability, LeaderElector, LeadershipLost, NoLock
from libs.testbed.child_process import HANG_SECONDS
from tests.bus_actors import wait_until
from tests.clocks import ManualClock

HELD = LeaseGrant(transitions=3)
OF_B = LeaseDenial(holder="b", seconds=9.0)
HANGS = "hangs"
REFUSED = Unreachable("connection refused")
Answer = LeaseGrant | LeaseDenial | Exception | str


class ScriptedLock:
    """A lock with scripted answers; it repeats the last one."""

    def __init__(self, *answers: Answer, renew_deadline_seconds: float = 10 * HANG_SECONDS) -> None:
        self.answers = list(answers)
        self.leading_until = float("-inf")
        self.tries = 0
        self.releases = 0
        self.reports = 0
        self.reported_at = float("-inf")
        self.holder_reads_reports = True
        self._deadline = renew_deadline_seconds

    async def try_acquire_or_renew(self, *, may_acquire: bool = True) -> LeaseGrant | LeaseDenial:
        self.tries += 1
        if not may_acquire:
            return LeaseDenial(holder="", seconds=float("inf"))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        while isinstance(answer, str):
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        sent = time.monotonic()
        self.leading_until = sent + self._deadline if isinstance(answer, LeaseGrant) else float("-inf")
        return answer

    async def report_standby(self) -> None:
        self.reports += 1

    async def release(self) -> bool:
        self.releases += 1
        return True


@dataclass
class Bus:
    """What a replica knows of its bus."""

    silent: float = 0.0
    answering: float = 100.0
    leader: float = 0.0

    def reach(self) -> BusReachability:
        return BusReachability(
            contact=lambda: ServerLiveness(silent_seconds=self.silent, responsive_seconds=self.answering),
            leader_silence=lambda: self.leader,
            candidate_seconds=10.0,
            leader_seconds=15.0,
        )


def by_lease(
    lock: ScriptedLock,
    retry_seconds: float = 0.01,
    bus: Bus | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LeaderElector:
    return LeaderElector(
        lock,
        set_gauge=lambda value: None,
        retry_seconds=retry_seconds,
        clock=clock,
        jitter=lambda: 0.5,
        reachability=(bus or Bus()).reach(),
    )


async def test_a_candidate_waits_through_another_holder_and_an_unreachable_server():
    lock = ScriptedLock(OF_B, REFUSED, HELD)
    candidate = by_lease(lock)
    assert candidate.problems() == ("the holder of the Lease is not known yet",)
    assert (await candidate.acquire(), lock.tries) == (3, 3)
    assert candidate.problems() == ()


async def test_a_candidate_acquires_the_lease_as_soon_as_its_bus_answers():
    bus, lock = Bus(silent=60.0), ScriptedLock(HELD)
    winning = asyncio.create_task(by_lease(lock, retry_seconds=10 * HANG_SECONDS, bus=bus).acquire())
    await asyncio.sleep(0)
    assert lock.tries == 0
    bus.silent = 0.0
    async with asyncio.timeout(HANG_SECONDS):
        assert await winning == 3
    assert lock.tries == 1


async def test_a_candidate_that_cannot_ask_says_why():
    candidate = by_lease(ScriptedLock(REFUSED))
    winning = asyncio.create_task(candidate.acquire())
    await wait_until(lambda: "connection refused" in candidate.problems()[0])
    winning.cancel()


async def test_an_expiring_lease_is_tried_for_when_it_expires_and_not_a_period_later():
    lock = ScriptedLock(LeaseDenial(holder="b", seconds=0.02), HELD)
    async with asyncio.timeout(HANG_SECONDS):
        await by_lease(lock, retry_seconds=10 * HANG_SECONDS).acquire()


async def test_without_a_lease_a_replica_leads_until_it_ends():
    elector = by_lease(NoLock())  # type: ignore[arg-type]
    assert elector.leading_since() is None
    renewals: list[int] = []

    async def lead(lease_transitions: int) -> None:
        while len(renewals) < 2:
            await elector.renewed.wait()
            elector.renewed.clear()
            renewals.append(lease_transitions)

    leading = asyncio.create_task(elector.run(lead))
    await wait_until(lambda: renewals == [0, 0])
    assert elector.leading_since() is not None
    assert elector.problems() == ()
    leading.cancel()
    with suppress(asyncio.CancelledError):
        await leading
    assert elector.leading_since() is None


# ---- a term


async def test_failures_between_renewals_are_survived_and_the_next_term_begins_after_a_loss():
    lock = ScriptedLock(HELD, HELD, REFUSED, HELD, OF_B, HELD)
    candidate, tries, terms = by_lease(lock), [], []

    async def lead(lease_transitions: int) -> None:
        terms.append(lease_transitions)
        while True:
            await candidate.renewed.wait()
            candidate.renewed.clear()
            tries.append(lock.tries)

    leading = asyncio.create_task(candidate.run(lead))
    await wait_until(lambda: len(terms) == 2, "it leads again")
    assert tries[:2] == [2, 4]
    leading.cancel()


async def test_a_replica_that_is_cancelled_as_it_loses_the_leadership_does_not_lead_again():
    lock = ScriptedLock(HELD, OF_B, HELD)
    terms: list[int] = []

    async def lead(lease_transitions: int) -> None:
        terms.append(lease_transitions)
        try:
            await asyncio.Event().wait()
        finally:
            leading.cancel()

    leading = asyncio.create_task(by_lease(lock).run(lead))
    await asyncio.wait([leading], timeout=HANG_SECONDS)
    assert leading.cancelled()
    assert len(terms) == 1


@pytest.mark.parametrize("trouble", [HANGS, REFUSED], ids=["hangs", "refused"])
async def test_the_lead_ends_with_the_renew_deadline_whatever_the_server_does(trouble: Answer):
    lock = ScriptedLock(HELD, trouble, renew_deadline_seconds=0.3)
    candidate = by_lease(lock)
    await candidate.acquire()
    with pytest.raises(LeadershipLost, match="not renewed in time"):
        await candidate.renew()
    assert time.monotonic() >= lock.leading_until
    await candidate.release()
    assert lock.releases == 0, "a lost Lease is not ours to release"


class HangingLock(ScriptedLock):
    """An attempt that fails hangs first; `on_hang` advances the clock."""

    def __init__(self, *answers: Answer, clock: ManualClock, on_hang: Callable[[], None]) -> None:
        super().__init__(*answers)
        self._clock = clock
        self._on_hang = on_hang

    async def try_acquire_or_renew(self, *, may_acquire: bool = True) -> LeaseGrant | LeaseDenial:
        if isinstance(self.answers[0], Exception):
            self._on_hang()
        try:
            return await super().try_acquire_or_renew(may_acquire=may_acquire)
        finally:
            self.leading_until = self._clock() + 10.0


async def test_a_renewal_that_hung_for_the_retry_period_is_repeated_at_once():
    clock = ManualClock()

    def hang() -> None:
        clock.advance(70.0)
        candidate.retry_seconds = 60.0

    candidate = by_lease(HangingLock(HELD, REFUSED, HELD, clock=clock, on_hang=hang), clock=clock)
    await candidate.acquire()
    renewing = asyncio.create_task(candidate.renew())
    await wait_until(candidate.renewed.is_set)
    renewing.cancel()


async def test_a_lead_that_lapsed_meanwhile_ends_although_the_lease_is_still_free():
    clock, lock = ManualClock(), ScriptedLock(HELD)
    candidate = by_lease(lock, clock=clock, retry_seconds=0.05)
    await candidate.acquire()
    lock.leading_until = clock() + 10.0
    renewing = asyncio.create_task(candidate.renew())
    await asyncio.sleep(0)
    clock.advance(11.0)
    assert candidate.leading_since() is None
    with pytest.raises(LeadershipLost, match="not renewed in time"):
        await renewing


async def test_a_lease_that_was_deleted_meanwhile_ends_the_term_and_is_released():
    lock = ScriptedLock(HELD, LeaseGrant(transitions=0))
    candidate = by_lease(lock)
    await candidate.acquire()
    assert candidate.leading_since() is not None
    with pytest.raises(LeadershipLost, match="deleted"):
        await candidate.renew()
    await candidate.release()
    assert lock.releases == 1


async def test_a_leader_that_is_doubted_asks():
    lock = ScriptedLock(HELD, HELD, REFUSED, OF_B)
    candidate = by_lease(lock)
    await candidate.acquire()
    await candidate.confirm_leadership()
    with pytest.raises(TemporaryError, match="connection refused"):
        await candidate.confirm_leadership()
    with pytest.raises(LeadershipLost, match="b holds it"):
        await candidate.confirm_leadership()


# ---- the bus


async def test_a_leader_that_the_bus_does_not_answer_steps_down_once_a_standby_reports_that_it_does():
    lock, bus = ScriptedLock(HELD), Bus()
    candidate = by_lease(lock, bus=bus)
    await candidate.acquire()
    bus.silent = 16.0
    keeping = asyncio.create_task(candidate.renew())
    renewed = lock.tries
    await wait_until(lambda: lock.tries > renewed + 5, "without a report the Lease does not rotate")
    assert "NATS does not answer" in candidate.problems()[0]
    lock.reported_at = time.monotonic()
    with pytest.raises(LeadershipLost, match="stepped down"):
        await keeping
    await candidate.release()
    assert lock.releases == 1, "the standby need not wait until it expires"


@pytest.mark.parametrize(
    ("silent", "reported_ago"),
    [(14.0, 0.0), (0.0, 0.0), (1000.0, 16.0)],
    ids=["a short gap", "it answers", "an old report"],
)
async def test_a_leader_keeps_the_lease(silent: float, reported_ago: float):
    lock, bus = ScriptedLock(HELD), Bus()
    candidate = by_lease(lock, bus=bus)
    await candidate.acquire()
    bus.silent, lock.reported_at = silent, time.monotonic() - reported_ago
    keeping = asyncio.create_task(candidate.renew())
    await wait_until(lambda: lock.tries > 5)
    assert not keeping.done()
    keeping.cancel()


@asynccontextmanager
async def a_standby(lock: ScriptedLock, bus: Bus, clock: ManualClock) -> AsyncIterator[LeaderElector]:
    """A standby that has received an answer about the Lease."""
    candidate = by_lease(lock, bus=bus, clock=clock)
    winning = asyncio.create_task(candidate.acquire())
    await several_tries(lock)
    yield candidate
    winning.cancel()


async def several_tries(lock: ScriptedLock) -> None:
    before = lock.tries
    await wait_until(lambda: lock.tries > before + 3)


async def test_a_standby_gives_a_new_holder_time_and_repeats_a_report_only_every_few_seconds():
    lock, bus, clock = ScriptedLock(OF_B), Bus(leader=17.0), ManualClock()
    async with a_standby(lock, bus, clock) as candidate:
        for seconds, reports in ((0.0, 0), (15.0, 1), (4.0, 1), (1.0, 2)):
            clock.advance(seconds)
            await several_tries(lock)
            assert lock.reports == reports
        assert "b holds the Lease and has published nothing for 17 s" in candidate.problems()[0]
        lock.answers = [LeaseDenial(holder="c", seconds=9.0)]
        await several_tries(lock)
        clock.advance(14.0)
        await several_tries(lock)
        assert (lock.reports, candidate.problems()) == (2, ()), "c has just begun"


@pytest.mark.parametrize(
    ("bus", "holder_reads_reports"),
    [
        (Bus(leader=float("inf")), False),
        (Bus(leader=14.0), True),
        (Bus(leader=99.0, answering=14.0), True),
        (Bus(leader=99.0, silent=11.0), True),
    ],
    ids=["another program leads", "the leader publishes", "the bus only just answers", "the bus is silent"],
)
async def test_a_standby_reports_nothing(bus: Bus, *, holder_reads_reports: bool):
    lock, clock = ScriptedLock(OF_B), ManualClock()
    lock.holder_reads_reports = holder_reads_reports
    async with a_standby(lock, bus, clock) as candidate:
        clock.advance(99.0)
        await several_tries(lock)
        assert lock.reports == 0
        assert (candidate.problems() == ()) is (bus.silent == 0.0)


async def test_a_candidate_that_the_bus_does_not_answer_leaves_a_free_lease_to_others():
    lock, bus = ScriptedLock(HELD), Bus(silent=float("inf"))
    candidate = by_lease(lock, bus=bus)
    winning = asyncio.create_task(candidate.acquire())
    await wait_until(lambda: "does not acquire the Lease" in candidate.problems()[0])
    await several_tries(lock)
    assert not winning.done()
    bus.silent = 0.0
    assert await winning == 3
