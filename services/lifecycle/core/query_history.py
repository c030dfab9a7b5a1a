"""A history of queries: consecutive ones with the same result, by metadata or by the service of a cloud."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import NodeUnreachable
from services.lifecycle.core.evidence import Assessment, MachineReport, shows_others

# A longer time between two queries ends the history; metadata polls once a minute.
MAX_GAP: Final = timedelta(minutes=10)


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """One complete query: all addresses of a Node, or one round of a cloud."""

    started_at: datetime  # its first request, by the clock of the service that queried
    ended_at: datetime  # its last request
    received_at: float  # by the local monotonic clock, because the other clock may be changed
    attempt: int | None = None  # the publisher's count of failures, which grows; None: it counts none


class QueryHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive queries about one Node with the same result."""

    identity: str  # what the queries are about, such as the Node's uid; another one starts a new history
    first: QueryResult
    last: QueryResult
    count: int = 1

    @property
    def span(self) -> timedelta:
        """The minimum time from the first query to the last, by the clock with the smaller result."""
        by_receipt = timedelta(seconds=self.last.received_at - self.first.received_at)
        return min(by_receipt, self.last.started_at - self.first.ended_at)

    def age(self, *, now: datetime, monotonic_now: float) -> timedelta:
        """The age of the last query, by the clock with the larger result: a message may arrive late."""
        return max(timedelta(seconds=monotonic_now - self.last.received_at), now - self.last.ended_at)


def extract_query(report: MachineReport, received_at: float) -> QueryResult | None:
    """Return the poll behind a report; None if it proves nothing."""
    if not isinstance(report, NodeUnreachable) or not shows_others(report):
        return None
    times = [machine.queried_at for machine in report.foreign_machines]
    return QueryResult(
        started_at=min(times), ended_at=max(times), received_at=received_at, attempt=report.attempt
    )


def append_query(history: QueryHistory | None, identity: str, query: QueryResult) -> QueryHistory:
    """Return the history with this query, unchanged if it has the query already, or a new history.

    The history starts again if the attempt count did not grow, because a success was missed. It also starts
    again if the query did not begin after the last one: a clock was changed, or two replicas query.
    """
    restarted = QueryHistory(identity=identity, first=query, last=query)
    if history is None or history.identity != identity:
        return restarted
    last = history.last
    apart = max(timedelta(seconds=query.received_at - last.received_at), query.started_at - last.ended_at)
    if apart > MAX_GAP:
        return restarted
    if (query.started_at, query.ended_at, query.attempt) == (last.started_at, last.ended_at, last.attempt):
        return history
    if query.started_at <= last.ended_at or _has_missed_success(last, query):
        return restarted
    return QueryHistory(identity=identity, first=history.first, last=query, count=history.count + 1)


def _has_missed_success(last: QueryResult, query: QueryResult) -> bool:
    if last.attempt is None or query.attempt is None:
        return last.attempt is not query.attempt
    return query.attempt <= last.attempt


def assess_history(history: QueryHistory | None, *, min_polls: int, min_span: timedelta) -> Assessment:
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
