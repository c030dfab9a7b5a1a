"""Whether a leader that alone is cut off from NATS makes room for a standby (decision 29). Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from libs.common.bus.protocol import ServerLiveness
from libs.common.kube.lease import Lease, get_annotation, micro_time, set_annotation

# A standby reports here that it could lead. The time in the text makes each report different.
STANDBY_REPORT_ANNOTATION: Final = "leader-election.talos-ccm/standby-reaches-nats"
# Identity of the last holder that reads reports. Earlier versions and the reference controller do not write
# it, so no standby reports to them.
HOLDER_READS_REPORTS_ANNOTATION: Final = "leader-election.talos-ccm/holder-reads-reports"
_LONG_AGO: Final = float("-inf")


@dataclass(eq=False, kw_only=True)
class BusReachability:
    """Compares this replica's contact with the bus with the reports of standbys on the Lease.

    A leader that alone is cut off from the bus steps down if a standby reaches the bus. If the bus is down
    for every replica, no standby reports, and the holder keeps the Lease. All times are monotonic.
    """

    identity: str
    contact: Callable[[], ServerLiveness]
    leader_silence: Callable[[], float]  # seconds since the leader last published
    candidate_seconds: float  # a candidate must have had an answer within this time
    leader_seconds: float  # a leader may be without an answer for this time

    def __post_init__(self) -> None:
        self._holder_since = _LONG_AGO  # when this replica first read the present holder
        self._reported_at = _LONG_AGO  # when it first read the last report to that holder
        self._next_report_at = _LONG_AGO
        self._silent_holder = ""

    def may_lead(self) -> bool:
        """Whether the bus answers; otherwise another replica should acquire the Lease."""
        return self.contact().silent_seconds <= self.candidate_seconds

    def observe(self, before: Lease, lease: Lease, at: float) -> None:
        """Read the holder and the last report; `before` is the Lease as last observed."""
        if before.holder != lease.holder:
            self._holder_since, self._silent_holder = at, ""
            self._reported_at = _LONG_AGO  # earlier reports concern another holder
        elif _get_report(before) != _get_report(lease):
            self._reported_at = at

    def must_step_down(self, at: float) -> bool:
        """Whether a leader must step down: the bus does not answer it, but answers a standby."""
        is_cut_off = self.contact().silent_seconds >= self.leader_seconds
        return is_cut_off and at - self._reported_at <= self.leader_seconds

    def plan_report(self, lease: Lease, at: float, now: datetime) -> dict[str, Any] | None:
        """Return the Lease with a report to a holder that publishes nothing; None if no report is due.

        The leader receives several reports while one is valid. `now`: UTC.
        """
        self._silent_holder = lease.holder if self._is_silent(lease, at) else ""
        if not self._silent_holder or at < self._next_report_at:
            return None
        self._next_report_at = at + self.leader_seconds / 3
        text = f"{self.identity} {micro_time(now)}"
        return set_annotation(lease.document, STANDBY_REPORT_ANNOTATION, text)

    def _is_silent(self, lease: Lease, at: float) -> bool:
        """Whether the bus has answered for a while without a message from the Lease holder.

        The period is `leader_seconds`: after an outage for all replicas the leader reconnects within that
        time, and a new holder lists Nodes first. The reference controller gets no report. It holds the
        watcher's Lease during a migration and publishes nothing.
        """
        if lease.holder in ("", self.identity):
            return False
        if get_annotation(lease, HOLDER_READS_REPORTS_ANNOTATION) != lease.holder:
            return False
        is_steady = self.may_lead() and self.contact().responsive_seconds >= self.leader_seconds
        return is_steady and min(self.leader_silence(), at - self._holder_since) >= self.leader_seconds

    def describe_problem(self, *, is_leading: bool) -> str:
        """Return why this replica cannot lead or stand by, in words for /readyz; "" if it can."""
        if self._silent_holder:
            return (
                f"{self._silent_holder} holds the Lease and has published nothing for "
                f"{self.leader_silence():.0f} s; NATS answers here, which is reported on the Lease"
            )
        if self.may_lead():
            return ""
        if is_leading:
            return "NATS does not answer this leader: it releases the Lease when a standby reaches NATS"
        return "NATS does not answer: this replica does not acquire the Lease"


def _get_report(lease: Lease) -> str:
    return get_annotation(lease, STANDBY_REPORT_ANNOTATION)
