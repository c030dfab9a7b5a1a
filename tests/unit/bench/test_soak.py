"""A soak: periods that shrink with the hour, growth over the hours, and the verdict."""

import math
from collections.abc import Callable

import msgspec
import pytest

from tests.bench.metrics import Histogram
from tests.bench.soak_figures import (
    WARM_UP_HOURS,
    HourSample,
    ProcessSample,
    compute_soak_figures,
    find_soak_problems,
)

HOURS = 24


def sample(
    *,
    rss: float = 100e6,
    files: int = 40,
    tasks: int = 200,
    threads: int = 3,
    consumers: int = 7,
) -> HourSample:
    process = ProcessSample(rss_bytes=int(rss), files=files, tasks=tasks, threads=threads)
    return HourSample(processes={"all-in-one": process}, kept={"NATS consumers": consumers})


def day(of_hour: Callable[[int], HourSample]) -> list[HourSample]:
    return [of_hour(hour) for hour in range(HOURS)]


def test_a_process_that_only_varies_passes():
    assert find_soak_problems(day(lambda hour: sample(rss=100e6 + hour % 3 * 1e6, files=40 + hour % 2))) == []


def test_growth_in_the_first_hours_is_no_leak():
    assert find_soak_problems(day(lambda hour: sample(rss=1e6 * (100 + 10 * min(hour, WARM_UP_HOURS))))) == []


@pytest.mark.parametrize(
    ("of_hour", "problem"),
    [
        (
            lambda hour: sample(rss=100e6 + hour * 0.5e6),
            "the memory of all-in-one grows by 12.0 MB per simulated day",
        ),
        (lambda hour: sample(files=40 + hour), "files of all-in-one grow by 24 per simulated day, to 63"),
        (lambda hour: sample(tasks=200 + hour), "tasks of all-in-one grow by 24 per simulated day, to 223"),
        (lambda hour: sample(threads=3 + hour), "threads of all-in-one grow by 24 per simulated day, to 26"),
        (lambda hour: sample(consumers=7 + hour), "NATS consumers grow by 24 per simulated day, to 30"),
    ],
    ids=["memory", "files", "tasks", "threads", "consumers"],
)
def test_what_grows_is_reported(of_hour: Callable[[int], HourSample], problem: str):
    assert find_soak_problems(day(of_hour)) == [problem]


def test_a_soak_that_is_too_short_proves_nothing():
    assert find_soak_problems([sample()] * (WARM_UP_HOURS + 1)) == [
        "a soak needs more than 5 hours to show growth"
    ]


def lagging(late: Callable[[int], float]) -> list[HourSample]:
    """Samples of a process with 100 measurements an hour; `late` of all so far took 0.1 to 0.25 s."""

    def histogram(hour: int) -> Histogram:
        count = 100.0 * (hour + 1)
        return {0.1: count - late(hour), 0.25: count, math.inf: count}

    return day(lambda hour: msgspec.structs.replace(sample(), loop_lag={"all-in-one": histogram(hour)}))


def test_the_lag_of_the_event_loop_counts_after_the_first_hours():
    only_at_first = lagging(lambda hour: 50)
    assert compute_soak_figures(only_at_first)["loop lag: all-in-one p99 at most ms"] == 100
    assert find_soak_problems(only_at_first) == []
    in_each_hour = lagging(lambda hour: 2 * hour)
    assert compute_soak_figures(in_each_hour)["loop lag: all-in-one p99 at most ms"] == 250
    assert find_soak_problems(in_each_hour) == ["the event loop of all-in-one lags by up to 250 ms (p99)"]
