"""The election: patience, renewal in time, and an end that does not wait for a server that hangs."""

import asyncio
import time

import pytest

from libs.common.delivery import TemporaryError
from libs.common.kube_api.errors import Unreachable
from libs.common.kube_api.lock import Held, NotHeld
from services.watcher.leader import ByLease, LeadershipLost
from services.watcher.settings import WatcherSettings
from tests.bus_actors import eventually

HELD = Held(transitions=3)
HANGS = "hangs"
Answer = Held | NotHeld | Exception | str


class ScriptedLock:
    """A lock that answers as it is told, the last answer again and again."""

    def __init__(self, *answers: Answer, renew_deadline_seconds: float = 0.3) -> None:
        self.answers = list(answers)
        self.leading_until = float("-inf")
        self.tries = 0
        self.releases = 0
        self._deadline = renew_deadline_seconds

    async def try_hold(self) -> Held | NotHeld:
        self.tries += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        while isinstance(answer, str):
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        sent = time.monotonic()
        self.leading_until = sent + self._deadline if isinstance(answer, Held) else float("-inf")
        return answer

    async def release(self) -> bool:
        self.releases += 1
        return True


def by_lease(lock: ScriptedLock, retry_seconds: float = 0.01) -> ByLease:
    return ByLease(lock, retry_seconds=retry_seconds, clock=time.monotonic, jitter=lambda: 0.5)


async def test_a_candidate_waits_through_another_holder_and_an_unreachable_server():
    lock = ScriptedLock(NotHeld(holder="b", seconds=9.0), Unreachable("nobody answers"), HELD)
    candidate = by_lease(lock)
    assert candidate.problems() == ("nobody has said yet who holds the Lease",)
    assert await candidate.win() == 3
    assert lock.tries == 3
    assert candidate.problems() == ()


async def test_a_candidate_that_cannot_ask_says_why():
    candidate = by_lease(ScriptedLock(Unreachable("nobody answers")))
    winning = asyncio.create_task(candidate.win())
    await eventually(lambda: "nobody answers" in candidate.problems()[0])
    winning.cancel()


async def test_an_expiring_lease_is_tried_for_when_it_expires_and_not_a_period_later():
    lock = ScriptedLock(NotHeld(holder="b", seconds=0.02), HELD)
    began = time.monotonic()
    await by_lease(lock, retry_seconds=60.0).win()
    assert time.monotonic() - began < 5.0


async def test_each_renewal_is_told_and_failures_between_them_are_survived():
    lock = ScriptedLock(HELD, HELD, Unreachable("once"), HELD, NotHeld(holder="b", seconds=1.0))
    candidate = by_lease(lock)
    await candidate.win()
    renewals = []
    with pytest.raises(LeadershipLost, match="b holds it now"):
        await candidate.keep(lambda: renewals.append(lock.tries))
    assert renewals == [2, 4]


@pytest.mark.parametrize("trouble", [HANGS, Unreachable("nobody answers")], ids=["hangs", "refused"])
async def test_the_lead_ends_with_the_renew_deadline_whatever_the_server_does(trouble):
    lock = ScriptedLock(HELD, trouble)
    candidate = by_lease(lock)
    await candidate.win()
    with pytest.raises(LeadershipLost, match="could not be renewed in time"):
        await candidate.keep(lambda: None)
    assert time.monotonic() >= lock.leading_until
    await candidate.give_up()
    assert lock.releases == 0, "a lost Lease is not ours to release"


async def test_a_lease_that_is_given_up_is_released():
    lock = ScriptedLock(HELD)
    candidate = by_lease(lock)
    await candidate.win()
    await candidate.give_up()
    assert lock.releases == 1


async def test_a_leader_that_is_doubted_asks():
    lock = ScriptedLock(HELD, HELD, Unreachable("nobody answers"), NotHeld(holder="b", seconds=1.0))
    candidate = by_lease(lock)
    await candidate.win()
    await candidate.confirm()
    with pytest.raises(TemporaryError, match="nobody answers"):
        await candidate.confirm()
    with pytest.raises(LeadershipLost, match="b holds it"):
        await candidate.confirm()


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
        ({"retry_period_seconds": 9.0}, "no second try"),
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
