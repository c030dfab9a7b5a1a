"""The clock of one term."""

from datetime import datetime, timedelta

from services.cloud.balancer_reader import TermClock
from tests.builders import NOW


def test_a_time_of_day_that_is_set_back_counts_only_from_the_next_term():
    time_of_day: list[datetime] = [NOW]
    seconds = [1000.0]
    clock = TermClock(lambda: time_of_day[0], lambda: seconds[0])
    time_of_day[0], seconds[0] = NOW - timedelta(hours=1), 1002.5
    assert clock() == NOW + timedelta(seconds=2.5)
    clock.restart()
    seconds[0] += 1
    assert clock() == NOW - timedelta(hours=1) + timedelta(seconds=1)
