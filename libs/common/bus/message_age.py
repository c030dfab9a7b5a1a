"""How long the stream keeps a message, and what derives from it."""

from datetime import datetime, timedelta
from typing import Final

MAX_MESSAGE_AGE: Final = timedelta(hours=1)  # the stream drops older messages
MAX_MESSAGE_AGE_TEXT: Final = "an hour"
# The longest wait until a message is published again: one failed publish does not let it expire.
MAX_REPUBLISH_INTERVAL: Final = MAX_MESSAGE_AGE / 2
MAX_REPUBLISH_INTERVAL_TEXT: Final = "30 minutes"


def has_expired(published_at: datetime, now: datetime) -> bool:
    """Return whether the stream has dropped a message. It does not report that to followers."""
    return now - published_at > MAX_MESSAGE_AGE
