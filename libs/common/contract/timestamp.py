"""Times in messages, with a UTC offset, so that they are comparable, and in Kubernetes objects."""

import re
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]

_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")  # meta/v1 Time


def parse_time(text: str | None) -> datetime | None:
    """Parse a meta/v1 Time; None for any other text, which a kubelet may write."""
    if text is None or not _TIME.fullmatch(text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
