"""The pace of requests: some per minute, none from the last quarter of the rate limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.clouds.instances import RateLimit, Unanswered
from libs.clouds.request_budget import RequestBudget

NOW = 1000.0


@given(st.integers(1, 40), st.lists(st.floats(0, 30), max_size=100))
def test_no_minute_has_more_requests_than_allowed(most: int, pauses: list[float]):
    budget, now, sent = RequestBudget(requests_per_minute=most), NOW, list[float]()
    for pause in pauses:
        now += pause
        now += budget.seconds_until_allowed(now)
        assert budget.seconds_until_allowed(now) < 1e-6
        budget.count_request(now)
        sent.append(now)
    for start in sent:
        assert sum(start <= each < start + 59.999 for each in sent) <= most


def test_a_request_within_the_number_per_minute_does_not_wait():
    budget = RequestBudget(requests_per_minute=2)
    budget.count_request(NOW)
    assert budget.seconds_until_allowed(NOW) == 0
    budget.count_request(NOW + 10)
    assert budget.seconds_until_allowed(NOW + 20) == 40
    assert budget.seconds_until_allowed(NOW + 60) == 0


@pytest.mark.parametrize(
    ("remaining", "full_in_seconds", "pause"),
    [
        (3600, 0, 0),
        (900, 2700, 0),  # exactly a quarter
        (899, 2701, 60),  # at least a minute
        (600, 3000, 300),  # 300 of the missing 3000 return in 300 s
        (0, 3600, 900),
        (0, 36_000, 3600),  # at most an hour, whatever the header says
        (0, -5, 60),  # our clock is fast
    ],
)
def test_below_a_quarter_of_the_limit_requests_pause_until_it_has_returned(
    remaining: int, full_in_seconds: float, pause: float
):
    budget = RequestBudget()
    budget.record_rate_limit(RateLimit(3600, remaining), full_in_seconds=full_in_seconds, now=NOW)
    held = budget.why_paused(NOW)
    assert (0 if held is None else held.retry_after_seconds) == pause
    assert budget.why_paused(NOW + pause) is None


def test_another_credential_starts_without_a_pause_but_within_the_minute():
    budget = RequestBudget(requests_per_minute=1)
    budget.count_request(NOW)
    budget.record_rate_limit(RateLimit(3600, 0), full_in_seconds=3600, now=NOW)
    budget.forget_rate_limit()
    assert budget.why_paused(NOW) is None
    assert budget.rate_limit is None
    assert budget.seconds_until_allowed(NOW) == 60


def test_a_shorter_pause_does_not_end_a_longer_one():
    budget = RequestBudget()
    budget.pause(300, "long", now=NOW)
    budget.pause(60, "short", now=NOW)
    held = budget.why_paused(NOW + 299)
    assert held is not None
    assert held.reason == "long"


def test_budgets_of_one_credential_share_its_rate_limit_and_pauses_but_not_their_requests():
    instances = RequestBudget(requests_per_minute=1)
    balancers = instances.share(requests_per_minute=2)
    instances.count_request(NOW)
    assert balancers.seconds_until_allowed(NOW) == 0
    balancers.pause(90, "the cloud requests it", now=NOW)
    assert instances.why_paused(NOW) == Unanswered("held_back", "the cloud requests it", 90)
    instances.record_rate_limit(RateLimit(3600, 7), full_in_seconds=3600, now=NOW)
    assert balancers.rate_limit == RateLimit(3600, 7)
    balancers.forget_rate_limit()
    assert instances.why_paused(NOW) is None


def test_only_the_reads_of_a_task_with_writes_leave_requests_to_deletions():
    instances = RequestBudget(requests_per_minute=10)
    balancers = instances.share(requests_per_minute=10)
    for budget, wait in ((instances, 0.0), (balancers, 60.0)):
        for _ in range(9):
            budget.count_request(NOW)
        assert budget.seconds_until_allowed(NOW, share=budget.read_share) == wait
        assert budget.seconds_until_allowed(NOW) == 0


def test_a_share_leaves_the_other_requests_of_a_minute_to_requests_with_a_larger_one():
    budget = RequestBudget(requests_per_minute=4)
    budget.count_request(NOW)
    assert budget.seconds_until_allowed(NOW + 1, share=0.5) == 0
    budget.count_request(NOW + 10)
    assert budget.seconds_until_allowed(NOW + 20, share=0.5) == 40
    assert budget.seconds_until_allowed(NOW + 20) == 0
    budget.count_request(NOW + 20)
    assert budget.seconds_until_allowed(NOW + 60, share=0.5) == 10
