"""The deadlines of the requests for a Lease."""

from datetime import UTC, datetime
from typing import Any

from libs.common.kube.errors import NotFound
from libs.common.kube.lease import Lease, LeaseSpec
from libs.common.kube.lease_lock import LeaseGrant, LeaseLock
from tests.manual_clock import ManualClock


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
