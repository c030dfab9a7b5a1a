"""Whether this watcher reaches the bus, and what follows for who should lead."""

from collections.abc import Callable

from libs.common.bus.protocol import ServerLiveness


class BusReachability:
    """Compares the contact of one watcher with what the others report on the Lease.

    A leader that alone is cut off from the bus steps down for a standby that is not. While the bus is down
    for everybody nobody reports, and the Lease stays with its holder.
    """

    def __init__(
        self,
        contact: Callable[[], ServerLiveness],
        leader_silence: Callable[[], float],
        *,
        candidate_seconds: float,
        leader_seconds: float,
    ) -> None:
        """`leader_silence`: seconds since a Leading was heard. A candidate must have had an answer within
        `candidate_seconds`; `leader_seconds` is how long a leader may be without one.
        """
        self._contact = contact
        self._leader_silence = leader_silence
        self._candidate_seconds = candidate_seconds
        self._leader_seconds = leader_seconds

    def may_lead(self) -> bool:
        """Whether the bus answers: else another watcher should take the Lease."""
        return self._contact().silent_seconds <= self._candidate_seconds

    @property
    def report_seconds(self) -> float:
        """How long to wait before a report is repeated: the leader gets several while one counts."""
        return self._leader_seconds / 3

    def is_leader_silent(self, *, holder_seconds: float) -> bool:
        """Whether the bus has answered for a while and the holder of the Lease was not heard on it.

        As long as the leader may be silent: after an outage for everybody it reconnects within that time.
        `holder_seconds`: how long it has held the Lease as far as is known; a new leader lists Nodes first.
        """
        steady = self.may_lead() and self._contact().responsive_seconds >= self._leader_seconds
        return steady and min(self._leader_silence(), holder_seconds) >= self._leader_seconds

    def must_step_down(self, *, reported_seconds_ago: float) -> bool:
        """Whether a leader must step down: the bus does not answer here, and does answer a standby."""
        mute = self._contact().silent_seconds >= self._leader_seconds
        return mute and reported_seconds_ago <= self._leader_seconds

    def describe_problem(self, *, is_leading: bool, silent_holder: str) -> str:
        """Why this watcher cannot do its part, in words for /readyz; "" if it can."""
        if silent_holder:
            return (
                f"{silent_holder} holds the Lease and has published nothing for "
                f"{self._leader_silence():.0f} s; NATS answers here, which is reported on the Lease"
            )
        if self.may_lead():
            return ""
        if is_leading:
            return "holds the Lease, and NATS does not answer: steps down once a standby reports that it does"
        return "NATS does not answer: does not take the Lease"
