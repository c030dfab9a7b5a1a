"""Who leads by a Lease, and until when, on a virtual clock: renewals, losses, takeovers and releases."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import ServerLiveness
from libs.common.kube.errors import Forbidden, KubeError, NotFound, Unreachable
from libs.common.kube.lease import Lease, released_document
from libs.common.service.bus_reachability import STANDBY_REPORT_ANNOTATION
from libs.common.service.leader_elector import LeaderElector, LeadershipLost, find_root_cause
from tests.builders import NOW
from tests.bus_actors import run_during, wait_until
from tests.clocks import VirtualClock, run_virtually, virtually
from tests.in_memory_api import InMemoryLeases, LeaseConnection, make_lease
from tests.service_flow import make_dependencies


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a Lease, with the times of client-go by default."""

    lease_name: str = "lease"
    lease_namespace: str = "kube-system"
    lease_duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_period_seconds: float = 2.0


TIMES: Final = Times()
LATEST_RETRY: Final = 2.4  # seconds between two attempts, with the most jitter


class Bus:
    """What a replica knows of its bus."""

    silent = 0.0  # seconds
    leader_silent = 0.0

    def server_liveness(self) -> ServerLiveness:
        return ServerLiveness(silent_seconds=self.silent, responsive_seconds=100.0)


class Replica:
    """A candidate with a connection of its own, and the terms in which it led."""

    def __init__(
        self,
        leases: InMemoryLeases,
        identity: str = "a",
        *,
        times: Times = TIMES,
        has_bus: bool = False,
        work: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        kube: Any = LeaseConnection(leases)
        bus: Any = Bus()
        self.kube: LeaseConnection = kube
        self.bus: Bus = bus
        self.clock = VirtualClock()
        self.terms: list[int] = []  # the number of earlier holders at the beginning of each
        self.gauge: list[float] = []
        self._work = work or asyncio.Event().wait
        self.elector = LeaderElector(
            kube,
            times,
            make_dependencies(bus, clock=self.clock, identity=identity),
            set_gauge=self.gauge.append,
            leader_silence=(lambda: self.bus.leader_silent) if has_bus else None,
        )

    async def lead(self, lease_transitions: int) -> None:
        self.terms.append(lease_transitions)
        await self._work()

    @property
    def is_leading(self) -> bool:
        return self.elector.leading_since() is not None

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Lead whenever it can."""
        async with run_during(self.elector.run(self.lead)):
            yield

    @asynccontextmanager
    async def run_leading(self) -> AsyncIterator[None]:
        """Lead, in one term, which must not end by itself."""
        async with run_during(self.elector.run_term(self.lead)):
            await wait_until(lambda: self.is_leading)
            yield

    async def begin_term(self) -> "asyncio.Task[None]":
        """Lead, in one term, until that ends by itself."""
        term = asyncio.create_task(self.elector.run_term(self.lead))
        await wait_until(lambda: self.is_leading)
        return term

    async def wait_for_loss(self, term: "asyncio.Task[None]") -> str:
        """Return why the term ends."""
        with pytest.raises(BaseExceptionGroup) as raised:
            await asyncio.wait_for(term, 60.0)
        lost = find_root_cause(raised.value)
        assert isinstance(lost, LeadershipLost)
        assert not self.is_leading
        return str(lost)


def change_lease(leases: InMemoryLeases, **spec: Any) -> None:
    """Another client changes these fields of the Lease."""
    document = leases.get("lease").document
    leases.write(document | {"spec": document["spec"] | spec})


# ---- never two


HARSH: Final = Times(renew_deadline_seconds=14.0)
STEPS: Final = st.tuples(
    st.sampled_from(("hang", "answer_slowly", "recover", "end", "begin")),
    st.integers(0, 2),
    st.sampled_from((0.3, 2.0, 7.0, 16.0, 20.0)),
)


class Election:
    """Three replicas, with faults of one each; at no moment do two of them lead."""

    def __init__(self) -> None:
        leases = InMemoryLeases()
        self._replicas = [Replica(leases, name, times=HARSH) for name in "abc"]
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def hang(self, i: int) -> None:
        self._replicas[i].kube.reach = asyncio.Event().wait

    def answer_slowly(self, i: int) -> None:
        self._replicas[i].kube.answer_seconds = 6.9

    def recover(self, i: int) -> None:
        self._replicas[i].kube.recover()

    def end(self, i: int) -> None:
        self._tasks[i].cancel()

    def begin(self, i: int) -> None:
        if i not in self._tasks or self._tasks[i].done():
            replica = self._replicas[i]
            self._tasks[i] = asyncio.create_task(replica.elector.run(replica.lead))

    async def run(self, steps: list[tuple[str, int, float]]) -> None:
        for i in range(3):
            self.begin(i)
        await self._watch(3.0)
        for fault, i, seconds in steps:
            getattr(self, fault)(i)
            await self._watch(seconds)
        for i in range(3):
            self.recover(i)
            self.begin(i)
        await self._watch(60.0)
        assert sum(each.is_leading for each in self._replicas) == 1

    async def _watch(self, seconds: float) -> None:
        for _ in range(math.ceil(seconds / 0.3)):
            await asyncio.sleep(0.3)
            assert sum(each.is_leading for each in self._replicas) <= 1


def test_times_with_which_two_could_lead_are_refused():
    async def elect() -> None:
        Replica(InMemoryLeases(), times=Times(renew_deadline_seconds=15.0))

    with pytest.raises(ValueError, match="two could lead at once"):
        run_virtually(elect())


@given(st.lists(STEPS, max_size=12))
@example([("answer_slowly", 0, 20.0), ("hang", 0, 20.0)])
@example([("hang", 0, 20.0), ("recover", 0, 7.0), ("end", 1, 7.0)])
def test_at_no_moment_do_two_replicas_lead(steps: list[tuple[str, int, float]]):
    async def run() -> None:
        await Election().run(steps)

    run_virtually(run())


@pytest.mark.parametrize("exists", [False, True], ids=["absent", "released"])
@virtually
async def test_of_candidates_that_try_at_the_same_time_one_leads(*, exists: bool):
    leases = InMemoryLeases()
    if exists:
        leases.leases["lease"] = make_lease()
    candidates = [Replica(leases, name) for name in "abc"]
    async with candidates[0].run(), candidates[1].run(), candidates[2].run():
        await asyncio.sleep(1.0)
        assert [each.is_leading for each in candidates] == [True, False, False]
        assert [each.elector.problems() for each in candidates] == [(), (), ()]


# ---- acquire


@pytest.mark.parametrize(
    ("lease", "seconds"),
    [
        (make_lease("gone"), 15.0),
        (make_lease("gone", duration=60), 60.0),
        (make_lease("gone", duration=None), 15.0),
        (make_lease(), 0.0),
    ],
    ids=["15 s", "60 s", "no duration", "released"],
)
@virtually
async def test_a_lease_that_is_not_renewed_is_acquired_as_soon_as_the_duration_of_its_holder_is_over(
    lease: Lease, seconds: float
):
    leases = InMemoryLeases()
    leases.leases["lease"] = lease
    candidate = Replica(leases, times=Times(retry_period_seconds=8.0))
    began = candidate.clock()
    async with candidate.run_leading():
        assert candidate.clock() - began == pytest.approx(seconds, abs=0.1)
        assert candidate.terms == [4]
        assert leases.get("lease").holder == "a"


@virtually
async def test_the_wait_begins_again_with_each_renewal_and_not_with_another_change():
    leases = InMemoryLeases()
    leases.leases["lease"] = make_lease("b")
    candidate = Replica(leases)
    async with candidate.run():
        await asyncio.sleep(10.0)
        change_lease(leases, renewTime="1999-01-01T00:00:00.000000Z")  # clocks of others do not matter
        await asyncio.sleep(10.0)
        leases.annotate("lease")
        await asyncio.sleep(4.9)
        assert candidate.terms == []
        await asyncio.sleep(0.2 + LATEST_RETRY)
        assert candidate.terms == [4]


@pytest.mark.parametrize("error", [Forbidden("no", status=403), NotFound('no namespace "a"', status=404)])
@virtually
async def test_a_candidate_says_why_it_does_not_know_the_holder_until_it_does(error: KubeError):
    candidate = Replica(InMemoryLeases())
    candidate.kube.error = error
    assert candidate.elector.problems() == ("the holder of the Lease is not known yet",)
    async with candidate.run():
        await asyncio.sleep(0.1)
        assert candidate.elector.problems() == (f"cannot read or write the Lease: {error}",)
        candidate.kube.recover()
        await wait_until(lambda: candidate.is_leading)
        assert candidate.elector.problems() == ()


@virtually
async def test_without_a_lease_each_replica_leads_until_it_ends():
    elector = LeaderElector(
        None, TIMES, make_dependencies(Bus(), clock=VirtualClock()), set_gauge=lambda _: None  # type: ignore[arg-type]
    )  # fmt: skip
    renewals: list[int] = []

    async def lead(lease_transitions: int) -> None:
        while True:
            await elector.renewed.wait()
            elector.renewed.clear()
            renewals.append(lease_transitions)

    async with run_during(elector.run(lead)):
        await wait_until(lambda: renewals == [0, 0])
        assert elector.leading_since() is not None
        assert elector.problems() == ()
    assert elector.leading_since() is None


# ---- renew


@virtually
async def test_a_leader_renews_in_each_retry_period_with_one_request():
    leader = Replica(InMemoryLeases())
    async with leader.run_leading():
        before, spec = len(leader.kube.verbs), leader.kube.leases.get("lease").document["spec"]
        await asyncio.sleep(60.0)
        sent = leader.kube.verbs[before:]
        assert set(sent) == {"write"}
        assert 60.0 / LATEST_RETRY - 1 <= len(sent) <= 30
        renewed = leader.kube.leases.get("lease").document["spec"]
        assert {key for key in spec if spec[key] != renewed[key]} == {"renewTime"}
        assert leader.gauge == [1]


@virtually
async def test_a_slow_server_keeps_its_leader_whose_time_counts_from_the_request():
    leader = Replica(InMemoryLeases())
    leader.kube.answer_seconds = 4.5
    async with leader.run_leading():
        assert leader.elector.leading_until == pytest.approx(leader.clock() - 4.5 + 10.0, abs=0.1)
        await asyncio.sleep(60.0)
        assert (leader.is_leading, leader.terms) == (True, [0])


@pytest.mark.parametrize("error", [None, Unreachable("connection refused")], ids=["hangs", "refuses"])
@virtually
async def test_a_term_ends_at_the_renew_deadline_if_the_server_does_not_answer(error: Unreachable | None):
    leader = Replica(leases := InMemoryLeases())
    term, until = await leader.begin_term(), leader.elector.leading_until
    leader.kube.error = error
    leader.kube.reach = leader.kube.reach if error else asyncio.Event().wait
    leader.elector.renewed.clear()
    await asyncio.sleep(until - leader.clock() - 0.1)
    assert leader.is_leading
    reason = await leader.wait_for_loss(term)
    assert reason.startswith("the Lease is lost: not renewed in time (")
    assert leader.clock() == pytest.approx(until, abs=0.01)
    assert leader.gauge == [1, 0, 0]
    assert not leader.elector.renewed.is_set()
    leader.kube.recover()
    await asyncio.sleep(10.0)
    assert leases.get("lease").holder == "a", "a lost Lease is not released: the server may not answer"


@virtually
async def test_a_leader_that_was_frozen_beyond_the_renew_deadline_leads_no_more():
    leader = Replica(InMemoryLeases())
    term = await leader.begin_term()
    leader.clock.freeze(11.0)
    assert not leader.is_leading
    assert await leader.wait_for_loss(term) == "the Lease is lost: not renewed in time"


@virtually
async def test_a_renewal_whose_answer_is_lost_is_repeated_at_once():
    leader = Replica(InMemoryLeases(), times=Times(retry_period_seconds=4.0))
    async with leader.run_leading():
        sent = len(leader.kube.verbs)
        leader.kube.answer_seconds = 60.0
        await wait_until(lambda: len(leader.kube.verbs) > sent)
        leader.kube.recover()
        await asyncio.sleep(60.0)
        assert (leader.is_leading, leader.terms) == (True, [0])


@pytest.mark.parametrize("others", [1, 2])
@virtually
async def test_a_lease_that_another_client_annotates_before_a_renewal_keeps_its_leader(others: int):
    leader = Replica(InMemoryLeases())
    async with leader.run_leading():
        leader.kube.overtaken = others
        await asyncio.sleep(60.0)
        assert leader.kube.overtaken == 0
        assert (leader.is_leading, leader.terms) == (True, [0])


def give_to_another(leases: InMemoryLeases) -> None:
    change_lease(leases, holderIdentity="b")


def release(leases: InMemoryLeases) -> None:
    leases.write(released_document(leases.get("lease"), NOW))


def delete(leases: InMemoryLeases) -> None:
    del leases.leases["lease"]


@pytest.mark.parametrize(
    ("change", "holder"),
    [(give_to_another, "b"), (release, "no replica"), (delete, "no replica")],
    ids=["given to another", "released", "deleted"],
)
@virtually
async def test_a_term_ends_once_its_lease_is_no_longer_its_own_and_the_lease_stays_as_it_is(
    change: Callable[[InMemoryLeases], None], holder: str
):
    leader = Replica(leases := InMemoryLeases())
    term = await leader.begin_term()
    change(leases)
    changed, at = dict(leases.leases), leader.clock()
    assert await leader.wait_for_loss(term) == f"the Lease is lost: {holder} holds it now"
    assert leader.clock() - at <= LATEST_RETRY + 0.01
    assert leases.leases == changed


@virtually
async def test_a_leader_that_is_doubted_asks():
    leader = Replica(leases := InMemoryLeases())
    async with leader.run_leading():
        await leader.elector.confirm_leadership()
        leader.kube.error = Unreachable("connection refused")
        with pytest.raises(TemporaryError, match="connection refused"):
            await leader.elector.confirm_leadership()
        leader.kube.recover()
        change_lease(leases, holderIdentity="b")
        with pytest.raises(LeadershipLost, match="b holds it"):
            await leader.elector.confirm_leadership()
        assert leader.elector.leading_until < leader.clock()


# ---- terms


@virtually
async def test_the_next_term_begins_after_a_loss():
    replica = Replica(leases := InMemoryLeases())
    async with replica.run():
        await wait_until(lambda: replica.is_leading)
        delete(leases)
        await wait_until(lambda: len(replica.terms) == 2)
        assert replica.gauge == [1, 0, 0, 1]


@virtually
async def test_a_replica_that_is_cancelled_as_it_loses_the_leadership_does_not_lead_again():
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            leading.cancel()

    replica = Replica(leases := InMemoryLeases(), work=work)
    leading = asyncio.create_task(replica.elector.run(replica.lead))
    await wait_until(lambda: replica.is_leading)
    delete(leases)
    await asyncio.wait([leading], timeout=60.0)
    assert leading.cancelled()
    assert replica.terms == [0]


# ---- release


@virtually
async def test_a_leader_that_ends_releases_the_lease_to_a_standby():
    leases = InMemoryLeases()
    leader, standby = Replica(leases, "a"), Replica(leases, "b")
    async with leader.run_leading(), standby.run():
        await asyncio.sleep(5.0)
        assert (standby.terms, standby.elector.problems()) == ([], ())
        ended = asyncio.get_running_loop().time()
    async with standby.run():
        await wait_until(lambda: standby.is_leading)
        assert asyncio.get_running_loop().time() - ended <= LATEST_RETRY + 0.1
        assert standby.terms == [1]
    assert leader.gauge == [1, 0]
    assert (leases.get("lease").holder, leases.get("lease").transitions) == ("", 1)


@virtually
async def test_a_standby_that_ends_writes_nothing():
    leases = InMemoryLeases()
    leases.leases["lease"] = held = make_lease("b")
    standby = Replica(leases)
    async with standby.run():
        await asyncio.sleep(5.0)
    assert leases.get("lease") == held


@virtually
async def test_a_release_after_a_renewal_that_was_not_awaited_still_releases():
    leader = Replica(leases := InMemoryLeases())
    async with leader.run_leading():
        change_lease(leases, renewTime="2026-03-01T12:00:00.000000Z")
    assert leases.get("lease").holder == ""


@virtually
async def test_a_release_never_takes_the_lease_from_another():
    leader = Replica(leases := InMemoryLeases())
    async with leader.run_leading():
        change_lease(leases, holderIdentity="b")
    assert leases.get("lease").holder == "b"


@virtually
async def test_a_release_does_not_wait_for_a_server_that_hangs():
    leader = Replica(InMemoryLeases())
    async with leader.run_leading():
        leader.kube.reach = asyncio.Event().wait
        ended = leader.clock()
    assert leader.clock() - ended <= 4.01
    assert not leader.is_leading


# ---- the bus


@virtually
async def test_a_candidate_acquires_the_lease_as_soon_as_its_bus_answers():
    candidate = Replica(InMemoryLeases(), has_bus=True)
    candidate.bus.silent = float("inf")
    async with candidate.run():
        await asyncio.sleep(0.5)
        assert candidate.kube.verbs == []
        candidate.bus.silent = 0.0
        await asyncio.sleep(0.05)
        assert candidate.is_leading


@virtually
async def test_a_candidate_that_the_bus_does_not_answer_leaves_a_free_lease_to_others():
    leases = InMemoryLeases()
    leases.leases["lease"] = make_lease()
    candidate = Replica(leases, has_bus=True)
    candidate.bus.silent = 60.0
    async with candidate.run():
        await asyncio.sleep(60.0)
        assert leases.get("lease").holder == ""
        assert "does not acquire the Lease" in candidate.elector.problems()[0]
        assert len(candidate.kube.verbs) <= 30, "it waits for a retry period"
        candidate.bus.silent = 0.0
        await wait_until(lambda: candidate.is_leading)


@virtually
async def test_a_leader_that_alone_is_cut_off_from_the_bus_hands_over_to_a_standby_that_is_not():
    leases = InMemoryLeases()
    leader, standby = Replica(leases, "a", has_bus=True), Replica(leases, "b", has_bus=True)
    term = await leader.begin_term()
    async with standby.run():
        leader.bus.silent, standby.bus.silent = 60.0, 60.0
        await asyncio.sleep(60.0)
        assert leader.is_leading, "without a report the Lease does not rotate"
        assert "NATS does not answer this leader" in leader.elector.problems()[0]
        standby.bus.silent, standby.bus.leader_silent = 0.0, 60.0
        assert (await leader.wait_for_loss(term)).startswith("stepped down: the bus answers a standby")
        released = leader.clock()
        await wait_until(lambda: standby.is_leading)
        assert leader.clock() - released <= LATEST_RETRY + 0.1, "the standby need not wait until it expires"
        assert standby.elector.problems() == ()


@virtually
async def test_a_report_that_loses_to_a_renewal_is_written_again():
    leases = InMemoryLeases()
    leader, standby = Replica(leases, "a"), Replica(leases, "b", has_bus=True)
    standby.bus.leader_silent = 60.0
    standby.kube.overtaken = 99
    async with leader.run_leading(), standby.run():
        await asyncio.sleep(30.0)
        assert "has published nothing" in standby.elector.problems()[0]
        assert STANDBY_REPORT_ANNOTATION not in leases.get("lease").document["metadata"]["annotations"]
        standby.kube.recover()
        await asyncio.sleep(7.5)
        assert STANDBY_REPORT_ANNOTATION in leases.get("lease").document["metadata"]["annotations"]
