"""What time the API server has: a laptop's clock makes nobody late."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from libs.common.kube_api.api import KubeApi

_TOLERATED: Final = timedelta(seconds=5)  # HTTP tells whole seconds, and an answer takes its time


def ahead(kube: KubeApi) -> timedelta:
    """How far its clock is ahead of ours, by its last answer, which has just come."""
    return ahead_by(kube.transport.server_date, datetime.now(UTC))


def ahead_by(said: str, ours: datetime) -> timedelta:
    """By what an answer's header says; nothing where they agree, or it says nothing."""
    try:
        theirs = parsedate_to_datetime(said)
    except ValueError:
        return timedelta()
    apart = (theirs if theirs.tzinfo else theirs.replace(tzinfo=UTC)) - ours
    return apart if abs(apart) > _TOLERATED else timedelta()
