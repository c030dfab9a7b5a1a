"""Who may hold a Lease: decided from what it said and for how long by our own clock, never from its times."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.kube.errors import NotFound
from libs.common.kube.lease import (
    Lease,
    LeaseObservation,
    LeaseSpec,
    acquired_document,
    expires_at,
    new_lease_document,
    observe_lease,
    read_lease,
    released_document,
)
from libs.common.kube.lease_lock import LeaseGrant, LeaseLock
from tests.builders import NOW
from tests.manual_clock import ManualClock

ME, OTHER = "pod-a_1", "pod-b_2"


def a_lease(
    holder: str | None = OTHER, *, renewed: str = "r1", duration: int | None = 15, transitions: int = 3
) -> Lease:
    spec = LeaseSpec(
        holder_identity=holder,
        lease_duration_seconds=duration,
        acquire_time="a1",
        renew_time=renewed,
        lease_transitions=transitions,
    )
    document = {"metadata": {"name": "l", "labels": {"kept": "yes"}}, "spec": msgspec.to_builtins(spec)}
    return Lease(spec=spec, document=document)


@pytest.mark.parametrize(
    ("lease", "expiry"),
    [
        (a_lease(), 115.0),
        (a_lease(duration=60), 160.0),
        (a_lease(duration=None), 110.0),
        (a_lease(""), -math.inf),
        (a_lease(None), -math.inf),
    ],
)
def test_a_lease_expires_after_the_duration_that_its_holder_wrote_and_ours_only_where_it_wrote_none(
    lease: Lease, expiry: float
):
    assert expires_at(LeaseObservation(lease, since=100.0), 10) == expiry


def test_a_renewal_starts_the_wait_anew_and_repetition_does_not():
    first = observe_lease(None, a_lease(renewed="r1"), 10.0)
    same = observe_lease(first, a_lease(renewed="r1"), 20.0)
    renewed = observe_lease(same, a_lease(renewed="r2"), 24.0)
    assert (first.since, same.since, renewed.since) == (10.0, 10.0, 24.0)


readings = st.lists(st.tuples(st.floats(0.1, 5.0), st.booleans()), min_size=1, max_size=40)


@given(readings)
def test_a_holder_who_renews_within_the_duration_is_never_robbed(steps: list[tuple[float, bool]]):
    now, renewals, unchanged_for = 0.0, 0, 0.0
    seen = observe_lease(None, a_lease(renewed="r0"), now)
    for pause, renews in steps:
        now += pause
        unchanged_for += pause
        if renews or unchanged_for >= 15.0:
            renewals, unchanged_for = renewals + 1, 0.0
        seen = observe_lease(seen, a_lease(renewed=f"r{renewals}"), now)
        assert now < expires_at(seen, 15)


@given(readings)
def test_a_dead_holder_is_replaced_as_soon_as_the_duration_is_over_and_not_before(
    steps: list[tuple[float, bool]],
):
    now = 0.0
    seen = observe_lease(None, a_lease(), now)
    for pause, _ in steps:
        now += pause
        seen = observe_lease(seen, a_lease(), now)
        assert expires_at(seen, 15) == 15.0


@given(st.lists(st.sampled_from([ME, OTHER, "pod-c_3", ""]), max_size=20))
def test_the_count_of_transitions_grows_with_each_new_holder_and_never_falls(holders: list[str]):
    lease = a_lease("", transitions=0)
    last = 0
    for step, holder in enumerate(holders):
        now = NOW + timedelta(seconds=step)
        document = acquired_document(lease, holder, 15, now) if holder else released_document(lease, now)
        after = read_lease(msgspec.json.encode(document))
        assert after.transitions == last + (1 if holder and holder != lease.holder else 0)
        lease, last = after, after.transitions


def test_a_renewal_changes_the_renew_time_and_nothing_else():
    before = a_lease(ME)
    after = acquired_document(before, ME, 15, NOW)
    assert after["spec"] == before.document["spec"] | {"renewTime": "2026-03-01T12:00:00.000000Z"}
    assert after["metadata"] == before.document["metadata"]


def test_an_update_keeps_what_we_do_not_read():
    document = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"strategy": "OldestEmulationVersion"},
        "extra": 1,
    }
    lease = read_lease(msgspec.json.encode(document))
    for written in (acquired_document(lease, ME, 15, NOW), released_document(lease, NOW)):
        assert written["spec"]["strategy"] == "OldestEmulationVersion"
        assert (written["extra"], written["metadata"]) == (1, {"labels": {"a": "b"}})


def test_a_new_lease_has_us_as_its_first_holder_and_no_transition():
    spec = new_lease_document("kube-system", "ccm", ME, 15, NOW)["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"], spec["leaseDurationSeconds"]) == (ME, 0, 15)


def test_a_released_lease_names_nobody_and_runs_out_in_a_second():
    spec = released_document(a_lease(ME, transitions=7), NOW)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 7)


class SlowLeases:
    """The Leases of an API server that answers each request after `seconds`, if the deadline allows it."""

    def __init__(self, clock: ManualClock, *, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    async def get_lease(self, namespace: str, name: str, *, deadline_seconds: float) -> Lease:
        self._wait(deadline_seconds)
        raise NotFound(f"leases {name!r} not found", status=404)

    async def create_lease(
        self, namespace: str, document: dict[str, Any], *, deadline_seconds: float
    ) -> Lease:
        self._wait(deadline_seconds)
        return Lease(spec=LeaseSpec(holder_identity="one"), document=document)

    async def update_lease(
        self, namespace: str, name: str, document: dict[str, Any], *, deadline_seconds: float
    ) -> Lease:
        self._wait(deadline_seconds)
        return Lease(spec=LeaseSpec(holder_identity="one"), document=document)

    def _wait(self, deadline_seconds: float) -> None:
        assert self._seconds < deadline_seconds, "no answer in time"
        self._clock.advance(self._seconds)


async def test_a_server_that_needs_nearly_half_of_the_renew_deadline_keeps_its_leader():
    clock = ManualClock()
    leases: Any = SlowLeases(clock, seconds=4.5)
    lock = LeaseLock(
        leases,
        namespace="kube-system",
        name="lease",
        identity="one",
        now=lambda: datetime.now(UTC),
        clock=clock,
    )
    assert isinstance(await lock.try_acquire_or_renew(), LeaseGrant)
    for _ in range(5):
        clock.advance(2.4)  # the retry period with its jitter
        assert isinstance(await lock.try_acquire_or_renew(), LeaseGrant)
        assert lock.is_leading
