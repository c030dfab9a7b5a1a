"""Decides whether this watcher reaches the bus, and whether it should lead or step down because of that."""

from collections.abc import Callable

from libs.common.bus.protocol import ServerLiveness


class BusReachability:
    """Compares this watcher's contact with the bus with the reports of standbys on the Lease.

    A leader that alone is cut off from the bus steps down if a standby reaches the bus. If the bus is down
    for every watcher, no standby reports, and the holder keeps the Lease.
    """

    def __init__(
        self,
        contact: Callable[[], ServerLiveness],
        leader_silence: Callable[[], float],
        *,
        candidate_seconds: float,
        leader_seconds: float,
    ) -> None:
        """`leader_silence` returns the seconds since the last Leading.

        A candidate must have had an answer within `candidate_seconds`. A leader may be without an answer for
        `leader_seconds`.
        """
        self._contact = contact
        self._leader_silence = leader_silence
        self._candidate_seconds = candidate_seconds
        self._leader_seconds = leader_seconds

    def may_lead(self) -> bool:
        """Whether the bus answers; otherwise another watcher should acquire the Lease."""
        return self._contact().silent_seconds <= self._candidate_seconds

    @property
    def report_seconds(self) -> float:
        """Seconds between two reports: the leader receives several while one is valid."""
        return self._leader_seconds / 3

    def is_leader_silent(self, *, holder_seconds: float) -> bool:
        """Whether the bus has answered for a while without a heartbeat from the Lease holder.

        The period is `leader_seconds`: after an outage for all watchers the leader reconnects within that
        time. `holder_seconds`: the known time since the holder acquired the Lease; a new leader lists Nodes
        first.
        """
        is_steady = self.may_lead() and self._contact().responsive_seconds >= self._leader_seconds
        return is_steady and min(self._leader_silence(), holder_seconds) >= self._leader_seconds

    def must_step_down(self, *, reported_seconds_ago: float) -> bool:
        """Whether a leader must step down: the bus does not answer it, but answers a standby."""
        is_cut_off = self._contact().silent_seconds >= self._leader_seconds
        return is_cut_off and reported_seconds_ago <= self._leader_seconds

    def describe_problem(self, *, is_leading: bool, silent_holder: str) -> str:
        """Return why this watcher cannot lead or stand by, in words for /readyz; "" if it can."""
        if silent_holder:
            return (
                f"{silent_holder} holds the Lease and has published nothing for "
                f"{self._leader_silence():.0f} s; NATS answers here, which is reported on the Lease"
            )
        if self.may_lead():
            return ""
        if is_leading:
            return "NATS does not answer this leader: it releases the Lease when a standby reaches NATS"
        return "NATS does not answer: this watcher does not acquire the Lease"
