from datetime import UTC, datetime, timedelta

from libs.common.bus.stream_limits import (
    MAX_MESSAGE_AGE,
    MAX_MESSAGE_AGE_TEXT,
    MAX_REPUBLISH_INTERVAL,
    MAX_REPUBLISH_INTERVAL_TEXT,
    has_expired,
)

NOW = datetime(2026, 7, 31, tzinfo=UTC)


def test_the_texts_name_the_times():
    texts = {MAX_MESSAGE_AGE_TEXT: MAX_MESSAGE_AGE, MAX_REPUBLISH_INTERVAL_TEXT: MAX_REPUBLISH_INTERVAL}
    assert texts == {"an hour": timedelta(hours=1), "30 minutes": timedelta(minutes=30)}


def test_a_message_survives_one_failed_publish():
    assert not has_expired(NOW - 2 * MAX_REPUBLISH_INTERVAL, NOW)
    assert has_expired(NOW - MAX_MESSAGE_AGE - timedelta(seconds=1), NOW)
