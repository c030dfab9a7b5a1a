"""The consecutive polls in which other machines answered at a Node's addresses."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import NodeUnreachable
from services.lifecycle.core.evidence import PROOF_FAULT, Assessment, MachineReport

# A longer time between two polls ends the history; metadata polls once a minute.
MAX_GAP: Final = timedelta(minutes=10)


class PollResult(msgspec.Struct, frozen=True, kw_only=True):
    """One poll of all addresses of a Node, each answered by another machine."""

    started_at: datetime  # the query of the first address, by metadata's clock
    ended_at: datetime  # the query of the last address
    received_at: float  # by the local monotonic clock, because metadata's clock may be changed
    attempt: int


class PollHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive polls of one Node with the same result."""

    uid: str
    first: PollResult
    last: PollResult
    count: int = 1

    @property
    def span(self) -> timedelta:
        """The minimum time from the first poll to the last, by the clock with the smaller result."""
        by_receipt = timedelta(seconds=self.last.received_at - self.first.received_at)
        return min(by_receipt, self.last.started_at - self.first.ended_at)


def extract_poll(report: MachineReport, received_at: float) -> PollResult | None:
    """Return the poll behind a report; None if it proves nothing."""
    if (
        not isinstance(report, NodeUnreachable)
        or not report.foreign_machines
        or report.fault.kind != PROOF_FAULT
    ):
        return None
    times = [machine.queried_at for machine in report.foreign_machines]
    return PollResult(
        started_at=min(times), ended_at=max(times), received_at=received_at, attempt=report.attempt
    )


def append_poll(history: PollHistory | None, uid: str, poll: PollResult) -> PollHistory:
    """Return the history with this poll, unchanged if it has the poll already, or a new history.

    The history starts again if the attempt count did not grow, because a success was missed. It also starts
    again if the poll did not begin after the last one: a clock was changed, or two replicas poll.
    """
    restarted = PollHistory(uid=uid, first=poll, last=poll)
    if history is None or history.uid != uid:
        return restarted
    last = history.last
    apart = max(timedelta(seconds=poll.received_at - last.received_at), poll.started_at - last.ended_at)
    if apart > MAX_GAP:
        return restarted
    if (poll.started_at, poll.ended_at, poll.attempt) == (last.started_at, last.ended_at, last.attempt):
        return history
    if poll.started_at <= last.ended_at or poll.attempt <= last.attempt:
        return restarted
    return PollHistory(uid=uid, first=history.first, last=poll, count=history.count + 1)


def assess_history(history: PollHistory | None, *, min_polls: int, min_span: timedelta) -> Assessment:
    """Assess whether there are enough polls over enough time."""
    if history is None:
        return Assessment(missing=(f"{min_polls} polls that show it",))
    since = f"since {history.first.started_at:%Y-%m-%dT%H:%M:%SZ}"
    minutes = f"{min_span.total_seconds() / 60:g} min"
    if history.count < min_polls:
        return Assessment(missing=(f"{history.count} of {min_polls} polls show it {since}",))
    if history.span < min_span:
        return Assessment(missing=(f"it has been so {since}, for less than {minutes}",))
    return Assessment(proven=(f"it has been so in {min_polls} polls over {minutes} and more, {since}",))
