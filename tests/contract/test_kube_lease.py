"""A Lease on a real and a simulated API server: one holder at a time, a count of holders, quick handover."""

import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import NotFound
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant, LeaseLock
from libs.testbed.kubelets import KubeletFleet
from tests.clocks import ManualClock
from tests.contract.conftest import ApiServer

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


@pytest.fixture
async def name(request: pytest.FixtureRequest, admin: KubeletFleet) -> AsyncIterator[str]:
    made = f"lease-{abs(hash(request.node.name)) % 10**12}"
    yield made
    await admin.request("DELETE", f"{LEASES}/{made}")


@pytest.fixture
def lock(api: KubeApi, name: str) -> Callable[..., LeaseLock]:
    def make(identity: str, clock: ManualClock, **options: Any) -> LeaseLock:
        return LeaseLock(
            api,
            namespace="kube-system",
            name=name,
            identity=identity,
            now=lambda: datetime.now(UTC),
            clock=clock,
            **options,
        )

    return make


MakeLock = Callable[..., LeaseLock]


async def test_the_first_creates_it_and_the_second_waits(lock: MakeLock):
    clock = ManualClock()
    first, second = lock("one", clock), lock("two", clock)
    assert await first.try_acquire_or_renew() == LeaseGrant(transitions=0)
    assert await second.try_acquire_or_renew() == LeaseDenial(holder="one", seconds=15.0)
    assert (first.is_leading, second.is_leading) == (True, False)


async def one_holder(lock: MakeLock) -> tuple[ManualClock, LeaseLock]:
    """A candidate that holds the Lease."""
    clock = ManualClock()
    first = lock("one", clock)
    await first.try_acquire_or_renew()
    return clock, first


async def two_candidates(lock: MakeLock) -> tuple[ManualClock, LeaseLock, LeaseLock]:
    """A candidate that holds the Lease, and one that has seen that."""
    clock, first = await one_holder(lock)
    second = lock("two", clock)
    await second.try_acquire_or_renew()
    return clock, first, second


async def test_a_renewal_is_one_request(lock: MakeLock, api_server: ApiServer, name: str):
    _, first = await one_holder(lock)
    mark = api_server.audit_mark()
    await first.try_acquire_or_renew()
    counted = api_server.audit_counts(mark)
    ours = {k.verb: n for k, n in counted.items() if k.resource == "leases" and k.user == "admin"}
    assert ours == {"update": 1}


async def test_a_dead_holders_lease_is_taken_after_its_duration_and_counts_one_more_holder(lock: MakeLock):
    clock, _, second = await two_candidates(lock)
    clock.advance(14.9)
    assert isinstance(await second.try_acquire_or_renew(), LeaseDenial)
    clock.advance(0.2)
    assert await second.try_acquire_or_renew() == LeaseGrant(transitions=1)


async def test_whoever_cannot_renew_stops_leading_before_anybody_may_take_over(lock: MakeLock):
    clock, first, second = await two_candidates(lock)
    until = first.leading_until
    assert until == clock() + 10.0
    clock.advance(until - clock())
    assert not first.is_leading
    assert isinstance(await second.try_acquire_or_renew(), LeaseDenial)


async def test_a_holder_that_comes_back_to_its_own_lease_leads_anew_and_says_so(lock: MakeLock):
    clock, first = await one_holder(lock)
    clock.advance(60.0)
    assert await first.try_acquire_or_renew() == LeaseGrant(transitions=0)
    assert first.is_leading


async def test_a_former_holder_that_was_replaced_learns_it_at_once(lock: MakeLock):
    clock, first, second = await two_candidates(lock)
    clock.advance(16.0)
    await second.try_acquire_or_renew()
    assert await first.try_acquire_or_renew() == LeaseDenial(holder="two", seconds=15.0)
    assert not first.is_leading


async def test_a_renewal_whose_answer_was_lost_does_not_cost_the_lead(
    lock: MakeLock, api: KubeApi, name: str
):
    clock, first = await one_holder(lock)
    written = await api.get_lease("kube-system", name)  # as if our own update had arrived after all
    spec = written.document["spec"] | {"renewTime": "2026-03-01T12:00:00.000000Z"}
    await api.update_lease("kube-system", name, written.document | {"spec": spec})
    clock.advance(2.0)
    assert await first.try_acquire_or_renew() == LeaseGrant(transitions=0)


async def test_a_released_lease_goes_to_the_next_one_at_once(lock: MakeLock):
    _, first, second = await two_candidates(lock)
    assert await first.release()
    assert not first.is_leading
    assert await second.try_acquire_or_renew() == LeaseGrant(transitions=1)


async def test_a_release_never_takes_the_lease_from_another(lock: MakeLock):
    clock, first, second = await two_candidates(lock)
    clock.advance(16.0)
    await second.try_acquire_or_renew()
    assert not await first.release()
    assert await second.try_acquire_or_renew() == LeaseGrant(transitions=1)
    assert not await lock("three", clock).release()


async def test_a_release_after_a_renewal_that_nobody_waited_for_still_releases(
    lock: MakeLock, api: KubeApi, name: str
):
    _, first = await one_holder(lock)
    written = await api.get_lease("kube-system", name)
    await api.update_lease(
        "kube-system",
        name,
        written.document | {"metadata": written.document["metadata"] | {"labels": {"x": "y"}}},
    )
    assert await first.release()
    assert (await api.get_lease("kube-system", name)).holder == ""


async def test_a_lease_that_somebody_deleted_is_made_again(
    lock: MakeLock, admin: KubeletFleet, name: str, api: KubeApi
):
    _, first = await one_holder(lock)
    await admin.request("DELETE", f"{LEASES}/{name}")
    with pytest.raises(NotFound):
        await api.get_lease("kube-system", name)
    assert await first.try_acquire_or_renew() == LeaseGrant(transitions=0)


@pytest.mark.parametrize("seed", range(3))
async def test_whoever_comes_and_goes_at_no_moment_do_two_lead(lock: MakeLock, seed: int):
    chance = random.Random(seed)
    clock = ManualClock()
    candidates = [lock(f"candidate-{i}", clock) for i in range(3)]
    awake = {0, 1, 2}
    leaders: list[int] = []
    for _ in range(120):
        clock.advance(chance.choice([0.5, 2.0, 3.0, 6.0]))
        if chance.random() < 0.15:  # one of them falls silent, or comes back
            awake ^= {chance.randrange(3)}
        for i in chance.sample(sorted(awake), len(awake)):
            if chance.random() < 0.05:
                await candidates[i].release()
            else:
                await candidates[i].try_acquire_or_renew()
            leading = [j for j, candidate in enumerate(candidates) if candidate.is_leading]
            assert len(leading) <= 1
            leaders += leading
    assert len(set(leaders)) > 1, "the leader never changed: this proves nothing"


def test_a_renew_deadline_that_would_let_two_lead_is_refused(lock: MakeLock):
    with pytest.raises(ValueError, match="must be shorter than the lease duration"):
        lock("one", ManualClock(), duration_seconds=10, renew_deadline_seconds=10.0)
