"""The delays until the next poll or publish."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from libs.common.contract.machine import MachineFault, PlatformMetadata, why_metadata_incomplete
from services.metadata.core import poll_schedule
from services.metadata.core.poll_schedule import PollIntervals, Timing

JITTER = st.floats(0.0, 1.0, exclude_max=True)
REFUSED = MachineFault(kind="refused", step="PlatformMetadata", message="connection refused")
TIMEOUT = MachineFault(kind="timeout", step="Nodename", message="no answer")


def timing(jitter: float, intervals: PollIntervals | None = None) -> Timing:
    return Timing(now=0.0, jitter=jitter, intervals=intervals or PollIntervals())


def test_failures_back_off_from_half_a_second_to_a_minute():
    failures: poll_schedule.Failures = {}
    waits = []
    for _ in range(10):
        failures = poll_schedule.count_failure(failures, REFUSED)
        waits.append(timing(0.999999).after_failure(failures, REFUSED))
    assert [round(wait, 3) for wait in waits] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_alternating_faults_do_not_reset_each_others_count():
    failures: poll_schedule.Failures = {}
    for fault in (REFUSED, TIMEOUT) * 5:
        failures = poll_schedule.count_failure(failures, fault)
    assert (
        poll_schedule.count_attempts(failures, REFUSED)
        == poll_schedule.count_attempts(failures, TIMEOUT)
        == 5
    )


@given(st.integers(1, 10_000), JITTER)
def test_no_failure_is_retried_at_once_or_later_than_a_minute(times, jitter):
    wait = timing(jitter).after_failure({("refused", "PlatformMetadata"): times}, REFUSED)
    assert 0.25 <= wait <= 60.0


@given(st.integers(1, 10_000), JITTER)
def test_incomplete_metadata_is_polled_again_within_half_a_minute(looks, jitter):
    assert 0.75 <= timing(jitter).after_incomplete(looks) <= 30.0
    assert timing(jitter).after_incomplete(1) <= 1.0


@given(JITTER, st.floats(1.0, 3600.0))
def test_successful_polls_repeat_within_the_interval_and_spread(jitter, period):
    pace = PollIntervals(poll=period, watched_poll=2 * period, republish=period)
    now = timing(jitter, pace)
    assert 0.8 * period <= now.after_success(is_watched=False, is_first=False) <= period
    assert 1.6 * period <= now.after_success(is_watched=True, is_first=False) <= 2 * period
    assert 0.4 * period <= now.after_success(is_watched=False, is_first=True) <= period
    assert timing(jitter, pace).until_republish() <= period


def test_five_thousand_machines_that_are_polled_within_seconds_are_polled_evenly_afterwards():
    """The most polls in ten seconds of the next hour are at most twice the mean."""
    chance, hour, window = random.Random(1), 3600.0, 10
    polls = Counter[int]()
    for number in range(5000):
        first = number * 25 / 5000  # seconds
        at = first + timing(chance.random()).after_success(is_watched=False, is_first=True)
        while at < hour:
            polls[int(at / window)] += 1
            at += timing(chance.random()).after_success(is_watched=False, is_first=False)
    mean = polls.total() / (hour / window)
    assert max(polls.values()) <= 2 * mean


def test_cloud_metadata_is_complete_or_not_by_platform():
    assert "hcloud" in why_metadata_incomplete(PlatformMetadata(platform="hcloud", region="fsn1"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="hcloud", provider_id="hcloud://1"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="metal"))
    assert why_metadata_incomplete(PlatformMetadata(platform="nocloud"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="nocloud", instance_id="100"))
    assert why_metadata_incomplete(PlatformMetadata(platform="a-new-cloud"))
    assert not why_metadata_incomplete(PlatformMetadata(platform="a-new-cloud", zone="1"))
    assert why_metadata_incomplete(PlatformMetadata())
