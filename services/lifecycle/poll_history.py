"""The looks in which others answered in a Node's place: what held for how long, without a contrary word."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import NodeUnreachable
from services.lifecycle.evidence import PROOF_FAULT, Assessment, MachineReport

# Looks further apart say nothing about the time between them; metadata looks once a minute.
MAX_GAP: Final = timedelta(minutes=10)


class PollResult(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all addresses of a Node, each answered by another machine."""

    started_at: datetime  # by metadata's clock: the first address
    ended_at: datetime  # the last one
    received_at: float  # by our own monotonic clock: another's clock may be set
    attempt: int


class PollHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Looks at one Node that all said the same, one after the other."""

    uid: str
    first: PollResult
    last: PollResult
    count: int = 1

    @property
    def span(self) -> timedelta:
        """For how long it held at least, by whichever clock says less."""
        heard = timedelta(seconds=self.last.received_at - self.first.received_at)
        return min(heard, self.last.started_at - self.first.ended_at)


def extract_poll(report: MachineReport, received_at: float) -> PollResult | None:
    """The look of which that word tells, None if it proves nothing."""
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
    """The history with this look at its end; one that was told before is no news.

    A count of attempts that did not grow tells of a success in between that we did not hear, a look that did
    not begin after the last one of a clock that was set, or of two that look.
    """
    anew = PollHistory(uid=uid, first=poll, last=poll)
    if history is None or history.uid != uid:
        return anew
    last = history.last
    apart = max(timedelta(seconds=poll.received_at - last.received_at), poll.started_at - last.ended_at)
    if apart > MAX_GAP:
        return anew
    if (poll.started_at, poll.ended_at, poll.attempt) == (last.started_at, last.ended_at, last.attempt):
        return history
    if poll.started_at <= last.ended_at or poll.attempt <= last.attempt:
        return anew
    return PollHistory(uid=uid, first=history.first, last=poll, count=history.count + 1)


def assess_history(history: PollHistory | None, *, min_polls: int, min_span: timedelta) -> Assessment:
    """Whether it held for long enough."""
    if history is None:
        return Assessment(missing=(f"{min_polls} looks that show it",))
    since = f"since {history.first.started_at:%Y-%m-%dT%H:%M:%SZ}"
    minutes = f"{min_span.total_seconds() / 60:g} min"
    if history.count < min_polls:
        return Assessment(missing=(f"{history.count} of {min_polls} looks show it {since}",))
    if history.span < min_span:
        return Assessment(missing=(f"it has been so {since}, which is not for {minutes}",))
    return Assessment(proven=(f"it has been so in {min_polls} looks over {minutes} and more, {since}",))
