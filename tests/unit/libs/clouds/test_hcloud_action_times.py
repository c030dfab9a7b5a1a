"""The end of an action is noticed soon and by few requests, once actions of its kind were seen."""

from collections.abc import Sequence

import pytest

from libs.clouds.hcloud.balancers.action_times import FIRST_POLL_SECONDS, ActionTimes


def watch(times: ActionTimes, seconds: Sequence[float]) -> tuple[float, int]:
    """The time until the ends of these actions were noticed, one after the other, and the requests."""
    total, requests = 0.0, 0
    for duration in seconds:
        elapsed, own, last_running = times.seconds_until_first("add_target"), 1, 0.0
        while elapsed < duration:
            last_running = elapsed
            elapsed += times.seconds_until_next("add_target", elapsed)
            own += 1
        times.record("add_target", elapsed, last_running=last_running)
        total, requests = total + elapsed, requests + own
    return total, requests


@pytest.mark.parametrize("seconds", [0.3, 0.5, 1.0, 4.0])
def test_25_targets_need_a_tenth_more_than_their_actions_and_two_requests_each(seconds: float):
    times = ActionTimes(FIRST_POLL_SECONDS)
    watch(times, [seconds])
    total, requests = watch(times, [seconds] * 25)
    assert total <= 1.1 * 25 * seconds
    assert requests <= 2 * 25


def test_actions_of_varying_duration_need_a_fifth_more_and_three_requests_each():
    varying = [0.4, 0.6, 0.5, 0.45, 0.55] * 20
    total, requests = watch(ActionTimes(FIRST_POLL_SECONDS), varying)
    assert total <= 1.2 * sum(varying)
    assert requests <= 3 * len(varying)


def test_a_slow_first_action_needs_some_requests_and_the_next_few():
    times = ActionTimes(FIRST_POLL_SECONDS)
    assert watch(times, [20.0])[1] <= 20
    assert watch(times, [20.0])[1] == 1
