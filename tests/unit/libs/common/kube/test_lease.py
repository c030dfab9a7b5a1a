"""Leases, pauses of the reflector, and names of Events, as pure values."""

import re
import socket
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.kube.errors import NotFound
from libs.common.kube.events import (
    ObjectEvent,
    ObjectReference,
    event_body,
    event_name,
    event_namespace,
    node_reference,
)
from libs.common.kube.keepalive_socket import keepalive_socket
from libs.common.kube.lease import (
    Lease,
    LeaseSpec,
    acquired_document,
    read_lease,
    released_document,
)
from libs.common.kube.lease_lock import LeaseDenial, LeaseGrant, LeaseLock
from libs.common.kube.reflector import pause_seconds
from tests.builders import NOW
from tests.clocks import ManualClock

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


def test_a_released_lease_names_nobody_and_runs_out_in_a_second():
    spec = released_document(a_lease(ME, transitions=7), NOW)["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("", 1, 7)


class Leases:
    """The Lease of an API server that answers each request after `seconds`, if the deadline allows it."""

    def __init__(self, clock: ManualClock, *, lease: Lease | None = None, seconds: float = 0.0) -> None:
        self.lease = lease
        self._clock = clock
        self._seconds = seconds

    async def get_lease(self, namespace: str, name: str, *, deadline_seconds: float) -> Lease:
        self._wait(deadline_seconds)
        if self.lease is None:
            raise NotFound(f"leases {name!r} not found", status=404)
        return self.lease

    async def create_lease(
        self, namespace: str, document: dict[str, Any], *, deadline_seconds: float
    ) -> Lease:
        return await self.update_lease(namespace, "", document, deadline_seconds=deadline_seconds)

    async def update_lease(
        self, namespace: str, name: str, document: dict[str, Any], *, deadline_seconds: float
    ) -> Lease:
        self._wait(deadline_seconds)
        self.lease = read_lease(msgspec.json.encode(document))
        return self.lease

    def _wait(self, deadline_seconds: float) -> None:
        assert self._seconds < deadline_seconds, "no answer in time"
        self._clock.advance(self._seconds)


def make_lock(leases: Any, clock: ManualClock) -> LeaseLock:
    return LeaseLock(
        leases, namespace="kube-system", name="lease", identity=ME, now=lambda: datetime.now(UTC), clock=clock
    )


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        (a_lease(), LeaseDenial(holder=OTHER, seconds=15.0)),
        (a_lease(duration=60), LeaseDenial(holder=OTHER, seconds=60.0)),
        (a_lease(duration=None), LeaseDenial(holder=OTHER, seconds=15.0)),
        (a_lease(""), LeaseGrant(transitions=4)),
        (a_lease(None), LeaseGrant(transitions=4)),
    ],
)
async def test_a_lease_expires_after_the_duration_that_its_holder_wrote_and_ours_only_where_it_wrote_none(
    lease: Lease, expected: LeaseGrant | LeaseDenial
):
    clock = ManualClock()
    assert await make_lock(Leases(clock, lease=lease), clock).try_acquire_or_renew() == expected


async def test_a_renewal_starts_the_wait_anew_and_repetition_does_not():
    clock = ManualClock()
    leases = Leases(clock, lease=a_lease(renewed="r1"))
    lock = make_lock(leases, clock)
    await lock.try_acquire_or_renew()
    clock.advance(10.0)
    assert await lock.try_acquire_or_renew() == LeaseDenial(holder=OTHER, seconds=5.0)
    leases.lease = a_lease(renewed="r2")
    assert await lock.try_acquire_or_renew() == LeaseDenial(holder=OTHER, seconds=15.0)


async def test_a_server_that_needs_nearly_half_of_the_renew_deadline_keeps_its_leader():
    clock = ManualClock()
    lock = make_lock(Leases(clock, seconds=4.5), clock)
    assert isinstance(await lock.try_acquire_or_renew(), LeaseGrant)
    for _ in range(5):
        clock.advance(2.4)  # the retry period with its jitter
        assert isinstance(await lock.try_acquire_or_renew(), LeaseGrant)
        assert lock.is_leading


# ---- the reflector


jitters = st.floats(0.0, 1.0, exclude_max=True)


def test_a_watch_that_ended_as_it_should_is_followed_by_the_next_one_at_once():
    assert pause_seconds(0, 0.99) == 0.0


@given(jitters)
def test_a_server_that_fails_every_list_and_watch_hears_less_than_one_request_a_second(jitter: float):
    now, requests = 0.0, 0
    for failures in count(1):
        requests += 2
        now += pause_seconds(failures, jitter)
        if now >= 60.0:
            break
    assert requests < 60
    assert pause_seconds(100, jitter) <= 15.0, "recovery is quick after a long outage, too"


def test_the_kernel_ends_a_connection_whose_peer_acknowledges_nothing_within_half_a_minute():
    made = keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1)))
    with made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        between = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        probes = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle + between * probes <= 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


# ---- Events


UID = "0b9c5d6e-0000-4000-8000-000000000001"
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def an_event(
    name: str = "web-1",
    uid: str = UID,
    reason: str = "Synced",
    message: str = "synced",
    particular: str = "",
) -> ObjectEvent:
    return ObjectEvent(
        regarding=node_reference(name, uid),
        reason=reason,
        message=message,
        component="talos-ccm",
        discriminator=particular,
    )


def test_another_minute_reason_or_node_makes_another_name():
    names = {
        event_name(an_event(), NOW),
        event_name(an_event(), NOW + timedelta(minutes=1)),
        event_name(an_event(reason="Blocked"), NOW),
        event_name(an_event(particular="label zone"), NOW),
        event_name(an_event(particular="label region"), NOW),
        event_name(an_event(uid=UID[:-1] + "2"), NOW),
    }
    assert len(names) == 6


labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.lists(labels, min_size=1, max_size=5).map(lambda parts: ".".join(parts)[:253].rstrip("-.")))
def test_every_node_name_makes_a_name_that_kubernetes_takes(name: str):
    made = event_name(an_event(name=name), NOW)
    assert len(made) <= 253
    assert SUBDOMAIN.fullmatch(made)


def test_an_event_about_a_namespaced_object_lives_beside_it():
    about = ObjectReference(kind="ConfigMap", name="claims", uid=UID, namespace="kube-system")
    event = ObjectEvent(regarding=about, reason="Full", message="x", component="talos-ccm")
    body = event_body(event, instance="i", now=NOW)
    assert event_namespace(about) == body["metadata"]["namespace"] == "kube-system"
    assert body["involvedObject"]["namespace"] == "kube-system"


def test_a_message_beyond_what_kubernetes_takes_is_cut():
    body = event_body(an_event(message="x" * 5000), instance="i", now=NOW)
    assert len(body["message"]) == 1024
