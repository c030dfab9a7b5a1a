"""The clock of the API server, so that a wrong local clock does not distort ages."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from libs.common.kube.api import KubeApi

_TOLERATED: Final = timedelta(seconds=5)  # an HTTP date has whole seconds, and a response takes time


def measure_clock_offset(kube: KubeApi) -> timedelta:
    """Return how far the server's clock is ahead of the local one, by the response that has just arrived."""
    return compute_clock_offset(kube.transport.server_date, datetime.now(UTC))


def compute_clock_offset(date_header: str, local_time: datetime) -> timedelta:
    """Return the offset by the Date header; zero within the tolerance or without a valid header."""
    try:
        theirs = parsedate_to_datetime(date_header)
    except ValueError:
        return timedelta()
    apart = (theirs if theirs.tzinfo else theirs.replace(tzinfo=UTC)) - local_time
    return apart if abs(apart) > _TOLERATED else timedelta()
