"""What time the API server has: a laptop's clock makes nobody late."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from libs.common.kube.api import KubeApi

_TOLERATED: Final = timedelta(seconds=5)  # HTTP tells whole seconds, and an answer takes its time


def measure_clock_offset(kube: KubeApi) -> timedelta:
    """How far its clock is ahead of ours, by its last answer, which has just come."""
    return compute_clock_offset(kube.transport.server_date, datetime.now(UTC))


def compute_clock_offset(date_header: str, local_time: datetime) -> timedelta:
    """By what an answer's header says; nothing where they agree, or it says nothing."""
    try:
        theirs = parsedate_to_datetime(date_header)
    except ValueError:
        return timedelta()
    apart = (theirs if theirs.tzinfo else theirs.replace(tzinfo=UTC)) - local_time
    return apart if abs(apart) > _TOLERATED else timedelta()
