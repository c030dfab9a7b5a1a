"""The election: patience, renewal in time, and an end that does not wait for a server that hangs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import ServerLiveness
from libs.common.kube.errors import Unreachable
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant
from services.watcher.bus_reachability import BusReachability
from services.watcher.leader_elector import LeadershipLost, LeaseElector
from services.watcher.settings import WatcherSettings
from tests.bus_actors import wait_until
from tests.manual_clock import ManualClock

HELD = LeaseGrant(transitions=3)
HANGS = "hangs"
Answer = LeaseGrant | LeaseDenial | Exception | str


class ScriptedLock:
    """A lock with scripted answers; it repeats the last one."""

    def __init__(self, *answers: Answer, renew_deadline_seconds: float = 0.3) -> None:
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


class Bus:
    """What a watcher knows of its bus."""

    def __init__(self, *, silent: float = 0.0, answering: float = 100.0, leader: float = 0.0) -> None:
        self.silent, self.answering, self.leader = silent, answering, leader

    def server_liveness(self) -> ServerLiveness:
        return ServerLiveness(silent_seconds=self.silent, responsive_seconds=self.answering)

    def reach(self) -> BusReachability:
        return BusReachability(
            self.server_liveness, lambda: self.leader, candidate_seconds=10.0, leader_seconds=15.0
        )


def by_lease(
    lock: ScriptedLock,
    retry_seconds: float = 0.01,
    bus: Bus | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> LeaseElector:
    return LeaseElector(
        lock,
        retry_seconds=retry_seconds,
        clock=clock,
        jitter=lambda: 0.5,
        reachability=(bus or Bus()).reach(),
    )


async def test_a_candidate_waits_through_another_holder_and_an_unreachable_server():
    lock = ScriptedLock(LeaseDenial(holder="b", seconds=9.0), Unreachable("connection refused"), HELD)
    candidate = by_lease(lock)
    assert candidate.problems() == ("the holder of the Lease is not known yet",)
    assert await candidate.acquire() == 3
    assert lock.tries == 3
    assert candidate.problems() == ()


async def test_a_candidate_acquires_the_lease_as_soon_as_its_bus_answers():
    bus, lock = Bus(silent=60.0), ScriptedLock(HELD)
    winning = asyncio.create_task(by_lease(lock, retry_seconds=60.0, bus=bus).acquire())
    await asyncio.sleep(0)
    assert lock.tries == 0
    bus.silent = 0.0
    async with asyncio.timeout(20):
        assert await winning == 3
    assert lock.tries == 1


async def test_a_candidate_that_cannot_ask_says_why():
    candidate = by_lease(ScriptedLock(Unreachable("connection refused")))
    winning = asyncio.create_task(candidate.acquire())
    await wait_until(lambda: "connection refused" in candidate.problems()[0])
    winning.cancel()


async def test_an_expiring_lease_is_tried_for_when_it_expires_and_not_a_period_later():
    lock = ScriptedLock(LeaseDenial(holder="b", seconds=0.02), HELD)
    began = time.monotonic()
    await by_lease(lock, retry_seconds=60.0).acquire()
    assert time.monotonic() - began < 30.0


async def test_each_renewal_is_told_and_failures_between_them_are_survived():
    lock = ScriptedLock(HELD, HELD, Unreachable("once"), HELD, LeaseDenial(holder="b", seconds=1.0))
    candidate = by_lease(lock)
    await candidate.acquire()
    renewals = []
    with pytest.raises(LeadershipLost, match="b holds it now"):
        await candidate.renew(lambda: renewals.append(lock.tries))
    assert renewals == [2, 4]


@pytest.mark.parametrize("trouble", [HANGS, Unreachable("connection refused")], ids=["hangs", "refused"])
async def test_the_lead_ends_with_the_renew_deadline_whatever_the_server_does(trouble):
    lock = ScriptedLock(HELD, trouble)
    candidate = by_lease(lock)
    await candidate.acquire()
    with pytest.raises(LeadershipLost, match="not renewed in time"):
        await candidate.renew(lambda: None)
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

    def on_renewed() -> None:
        candidate.retry_seconds = 0.01

    answers = (HELD, Unreachable("no answer"), HELD, LeaseDenial(holder="b", seconds=1.0))
    candidate = by_lease(HangingLock(*answers, clock=clock, on_hang=hang), clock=clock)
    await candidate.acquire()
    with pytest.raises(LeadershipLost, match="b holds it now"):
        await candidate.renew(on_renewed)


async def test_a_lease_that_is_given_up_is_released():
    lock = ScriptedLock(HELD)
    candidate = by_lease(lock)
    await candidate.acquire()
    await candidate.release()
    assert lock.releases == 1


async def test_a_leader_that_is_doubted_asks():
    lock = ScriptedLock(HELD, HELD, Unreachable("connection refused"), LeaseDenial(holder="b", seconds=1.0))
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
    keeping = asyncio.create_task(candidate.renew(lambda: None))
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
async def test_a_leader_keeps_the_lease(silent, reported_ago):
    lock, bus = ScriptedLock(HELD), Bus()
    candidate = by_lease(lock, bus=bus)
    await candidate.acquire()
    bus.silent, lock.reported_at = silent, time.monotonic() - reported_ago
    keeping = asyncio.create_task(candidate.renew(lambda: None))
    await wait_until(lambda: lock.tries > 5)
    assert not keeping.done()
    keeping.cancel()


async def test_a_standby_reports_a_leader_that_renews_and_publishes_nothing():
    lock, bus, clock = ScriptedLock(LeaseDenial(holder="b", seconds=9.0)), Bus(), ManualClock()
    candidate = by_lease(lock, bus=bus, clock=clock)
    winning = asyncio.create_task(candidate.acquire())
    await wait_until(lambda: lock.tries > 3)
    assert (lock.reports, candidate.problems()) == (0, ())
    bus.leader = 17.0
    clock.advance(17.0)
    await wait_until(lambda: lock.reports > 0)
    assert "b holds the Lease and has published nothing for 17 s" in candidate.problems()[0]
    bus.leader = 0.0
    await wait_until(lambda: candidate.problems() == ())
    winning.cancel()


async def test_a_standby_gives_a_new_holder_time_and_repeats_a_report_only_every_few_seconds():
    lock, bus, clock = ScriptedLock(LeaseDenial(holder="b", seconds=9.0)), Bus(leader=99.0), ManualClock()
    candidate = by_lease(lock, bus=bus, clock=clock)

    async def several_tries() -> None:
        before = lock.tries
        await wait_until(lambda: lock.tries > before + 3)

    winning = asyncio.create_task(candidate.acquire())
    await several_tries()
    assert (lock.reports, candidate.problems()) == (0, ())
    clock.advance(15.0)
    await several_tries()
    assert lock.reports == 1
    clock.advance(4.0)
    await several_tries()
    assert lock.reports == 1
    clock.advance(1.0)
    await several_tries()
    assert lock.reports == 2
    lock.answers = [LeaseDenial(holder="c", seconds=9.0)]
    await several_tries()
    clock.advance(14.0)
    await several_tries()
    assert (lock.reports, candidate.problems()) == (2, ()), "c has just begun"
    winning.cancel()


@asynccontextmanager
async def a_standby_of_99_seconds(lock: ScriptedLock, bus: Bus) -> AsyncIterator[LeaseElector]:
    clock = ManualClock()
    candidate = by_lease(lock, bus=bus, clock=clock)
    winning = asyncio.create_task(candidate.acquire())
    await wait_until(lambda: lock.tries > 3)
    clock.advance(99.0)
    await wait_until(lambda: lock.tries > 6)
    yield candidate
    winning.cancel()


async def test_a_standby_is_ready_and_reports_nothing_while_another_program_holds_the_lease():
    lock, bus = ScriptedLock(LeaseDenial(holder="reference", seconds=9.0)), Bus(leader=float("inf"))
    lock.holder_reads_reports = False
    async with a_standby_of_99_seconds(lock, bus) as candidate:
        assert (lock.reports, candidate.problems()) == (0, ())


@pytest.mark.parametrize("bus", [Bus(leader=99.0, answering=14.0), Bus(leader=99.0, silent=11.0)])
async def test_a_standby_that_reaches_the_bus_only_just_or_not_reports_nothing(bus):
    lock = ScriptedLock(LeaseDenial(holder="b", seconds=9.0))
    async with a_standby_of_99_seconds(lock, bus):
        assert lock.reports == 0


async def test_a_candidate_that_the_bus_does_not_answer_leaves_a_free_lease_to_others():
    lock, bus = ScriptedLock(HELD), Bus(silent=float("inf"))
    candidate = by_lease(lock, bus=bus)
    winning = asyncio.create_task(candidate.acquire())
    await wait_until(lambda: "does not acquire the Lease" in candidate.problems()[0])
    await wait_until(lambda: lock.tries > 3)
    assert not winning.done()
    bus.silent = 0.0
    assert await winning == 3


# ---- settings


def test_the_defaults_are_those_of_the_reference():
    settings = WatcherSettings()
    assert settings.problems() == ()
    assert (settings.lease_duration_seconds, settings.renew_deadline_seconds) == (15.0, 10.0)
    assert (settings.lease_namespace, settings.lease_name) == (
        "kube-system",
        "cloud-controller-manager-talos",
    )
    assert (settings.retry_period_seconds, settings.resync_seconds) == (2.0, 300.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lease_duration_seconds": 10.0}, "two could lead at once"),
        ({"retry_period_seconds": 9.0}, "no second attempt"),
        ({"lease_duration_seconds": 15.5}, "whole seconds"),
    ],
)
def test_contradictions_are_told_by_the_names_of_their_flags(fields, words):
    (problem,) = WatcherSettings(**fields).problems()
    assert words in problem
    assert "--leader-elect" in problem


def test_observing_only_takes_no_lease():
    assert WatcherSettings().takes_lease
    assert not WatcherSettings(observe_only=True).takes_lease
    assert not WatcherSettings(leader_elect=False).takes_lease


@pytest.mark.parametrize(("configured", "expected"), [(300.0, 300.0), (1800.0, 1800.0), (7200.0, 1800.0)])
def test_every_object_is_published_again_before_the_stream_drops_it(configured: float, expected: float):
    assert WatcherSettings(resync_seconds=configured).republish_seconds == expected
