"""Acquires, renews and releases a Lease; it never counts as leading longer than other candidates assume."""

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final

import msgspec

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from libs.common.kube.lease import (
    Lease,
    acquired_document,
    get_annotation,
    micro_time,
    new_lease_document,
    released_document,
    set_annotation,
)

# A standby reports here that it could lead. The time in the text makes each report different.
STANDBY_REPORT_ANNOTATION: Final = "leader-election.talos-ccm/standby-reaches-nats"
# Identity of the last holder that reads reports. Earlier versions and the reference controller do not write
# it, so no standby reports to them.
HOLDER_READS_REPORTS_ANNOTATION: Final = "leader-election.talos-ccm/holder-reads-reports"
_NEVER: Final = float("inf")
_WRITES: Final = 3  # per attempt to renew: a standby may write its report in between
_RELEASE_SECONDS: Final = 2.0  # for each of at most three requests: a shutdown does not wait longer


class LeaseGrant(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate holds the Lease; `transitions` counts the changes of its holder."""

    transitions: int


class LeaseDenial(msgspec.Struct, frozen=True, kw_only=True):
    """Another candidate holds the Lease; unless renewed, it expires in at most `seconds`."""

    holder: str
    seconds: float


@dataclass(eq=False)
class LeaseLock:
    """One candidate for one Lease.

    The leader checks `is_leading` before each write. It is true while the last confirmed renewal was *sent*
    less than the renew deadline ago. The deadline is shorter than the duration after which others acquire
    the Lease. So a candidate whose connection hangs stops leading before another one starts.
    """

    api: KubeApi
    _: KW_ONLY
    namespace: str
    name: str
    identity: str  # unique to this process
    now: Callable[[], datetime]  # UTC
    clock: Callable[[], float] = time.monotonic  # monotonic
    duration_seconds: int = 15
    renew_deadline_seconds: float = 10.0

    def __post_init__(self) -> None:
        if self.renew_deadline_seconds >= self.duration_seconds:
            raise ValueError(
                f"the renew deadline ({self.renew_deadline_seconds:g} s) must be shorter than the lease "
                f"duration ({self.duration_seconds} s): two could lead at once"
            )
        self._lease: Lease | None = None  # as last read or written
        self._unchanged_since = float("-inf")  # when it first had its present spec
        self._leading_until = float("-inf")
        self._reported_at = float("-inf")

    @property
    def is_leading(self) -> bool:
        """Whether no other candidate can have acquired the Lease yet."""
        return self.clock() < self._leading_until

    @property
    def leading_until(self) -> float:
        """The monotonic local time until which it leads without a renewal; -inf if it does not lead."""
        return self._leading_until

    @property
    def reported_at(self) -> float:
        """The monotonic local time at which another standby's new report was read; -inf without one.

        Only reports to the current holder count.
        """
        return self._reported_at

    @property
    def holder_reads_reports(self) -> bool:
        """Whether another watcher holds the Lease and reads reports of standbys."""
        lease = self._lease
        if lease is None or lease.holder in ("", self.identity):
            return False
        return get_annotation(lease, HOLDER_READS_REPORTS_ANNOTATION) == lease.holder

    async def report_standby(self) -> None:
        """Report on the Lease that this standby could lead. Raises KubeError; retry after a Conflict."""
        if self._lease is None or not self.holder_reads_reports:
            return
        text = f"{self.identity} {micro_time(self.now())}"
        document = set_annotation(self._lease.document, STANDBY_REPORT_ANNOTATION, text)
        await self.api.update_lease(
            self.namespace, self.name, document, deadline_seconds=self._call_seconds()
        )

    async def try_acquire_or_renew(self, *, may_acquire: bool = True) -> LeaseGrant | LeaseDenial:
        """Acquire or renew the Lease, once; without `may_acquire` only renew it.

        Raises KubeError if the API server does not answer in time. Call it every retry period.
        If another candidate is faster, the result is LeaseDenial, not an error.
        """
        if self._lease is not None and self._lease.holder == self.identity and self.is_leading:
            try:
                return await self._write(self._lease)
            except (Conflict, NotFound):
                pass  # another client wrote it, or the last response was lost: read it
        for writes_left in reversed(range(_WRITES)):
            try:
                lease = await self.api.get_lease(
                    self.namespace, self.name, deadline_seconds=self._call_seconds()
                )
            except NotFound:
                return await self._create() if may_acquire else self._deny("", _NEVER)
            self._observe(lease, self.clock())
            is_own = lease.holder == self.identity
            seconds_left = self._seconds_left(lease)
            if not is_own and seconds_left > 0:
                return self._deny(lease.holder, seconds_left)
            if not is_own and not may_acquire:
                return self._deny("", _NEVER)
            try:
                return await self._write(lease)
            except (Conflict, NotFound):
                if not is_own:
                    return self._deny("a faster candidate", 0.0)
                if not writes_left:
                    raise  # according to the last read this candidate still holds it
        raise AssertionError("the last attempt returns or raises")

    def _observe(self, lease: Lease, at: float) -> None:
        before, self._lease = self._lease, lease
        if before is None or before.spec != lease.spec:
            self._unchanged_since = at
        report = get_annotation(lease, STANDBY_REPORT_ANNOTATION)
        if before is None or before.holder != lease.holder:
            self._reported_at = float("-inf")  # earlier reports concern another holder
        elif report != get_annotation(before, STANDBY_REPORT_ANNOTATION) and not report.startswith(
            f"{self.identity} "
        ):
            self._reported_at = self.clock()

    def _seconds_left(self, lease: Lease) -> float:
        """Return for how long its holder has the Lease unless it renews; 0 or less: another may acquire it.

        It expires when its spec has not changed for its duration on the local clock, as in client-go. So
        clocks of different machines are never compared. A Lease without a duration has that of this lock.
        """
        if not lease.holder:
            return 0.0
        duration = lease.spec.lease_duration_seconds or self.duration_seconds
        return self._unchanged_since + duration - self.clock()

    async def release(self) -> bool:
        """Release the Lease within a few seconds; return whether the release was written."""
        lease, self._lease, self._leading_until = self._lease, None, float("-inf")
        if lease is None:
            return False
        try:
            return await self._release(lease)
        except Conflict:
            pass  # most likely this candidate's own renewal, whose response the shutdown did not await
        except KubeError:
            return False  # unreachable: it expires by itself
        try:
            lease = await self.api.get_lease(self.namespace, self.name, deadline_seconds=_RELEASE_SECONDS)
            return await self._release(lease)
        except KubeError:
            return False

    async def _release(self, lease: Lease) -> bool:
        if lease.holder != self.identity:
            return False
        await self.api.update_lease(
            self.namespace,
            self.name,
            released_document(lease, self.now()),
            deadline_seconds=_RELEASE_SECONDS,
        )
        return True

    async def _create(self) -> LeaseGrant | LeaseDenial:
        made = new_lease_document(self.namespace, self.name, self.identity, self.duration_seconds, self.now())
        document = set_annotation(made, HOLDER_READS_REPORTS_ANNOTATION, self.identity)
        sent = self.clock()
        try:
            lease = await self.api.create_lease(
                self.namespace, document, deadline_seconds=self._call_seconds()
            )
        except AlreadyExists:
            return self._deny("a faster candidate", 0.0)
        return self._grant(lease, sent)

    async def _write(self, lease: Lease) -> LeaseGrant:
        sent = self.clock()
        renewed = acquired_document(lease, self.identity, self.duration_seconds, self.now())
        document = set_annotation(renewed, HOLDER_READS_REPORTS_ANNOTATION, self.identity)
        written = await self.api.update_lease(
            self.namespace, self.name, document, deadline_seconds=self._call_seconds()
        )
        return self._grant(written, sent)

    def _grant(self, lease: Lease, sent: float) -> LeaseGrant:
        self._observe(lease, sent)
        self._leading_until = sent + self.renew_deadline_seconds
        return LeaseGrant(transitions=lease.transitions)

    def _deny(self, holder: str, seconds: float) -> LeaseDenial:
        self._leading_until = float("-inf")
        return LeaseDenial(holder=holder, seconds=max(0.0, seconds))

    def _call_seconds(self) -> float:
        """Return the deadline of one request, as in client-go: half of the renew deadline.

        A renewal that an overloaded server answers within that time counts. After a request that hangs
        there is still time for another one, on a new connection.
        """
        return self.renew_deadline_seconds / 2
