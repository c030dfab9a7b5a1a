"""A soak: periods that shrink with the hour, growth over the hours, and the verdict."""

import math
from collections.abc import Callable

import pytest

from bench.soak import build_period_flags
from bench.soak_figures import (
    WARM_UP_HOURS,
    HourSample,
    ProcessSample,
    compute_slope,
    compute_soak_figures,
    find_soak_problems,
)

HOURS = 24


def sample(
    *, rss: float = 100e6, files: int = 40, tasks: int = 200, threads: int = 3, consumers: int = 7
) -> HourSample:
    process = ProcessSample(rss_bytes=int(rss), files=files, tasks=tasks, threads=threads)
    return HourSample(processes={"all-in-one": process}, kept={"NATS consumers": consumers})


def day(of_hour: Callable[[int], HourSample]) -> list[HourSample]:
    return [of_hour(hour) for hour in range(HOURS)]


def test_the_slope_of_a_line_is_its_slope():
    assert compute_slope([3.0, 5.0, 7.0, 9.0]) == 2.0


def test_one_hour_that_differs_does_not_move_the_slope():
    assert compute_slope([1.0, 1.0, 50.0, 1.0, 1.0, 1.0]) == 0.0


def test_a_single_hour_has_no_slope():
    assert math.isnan(compute_slope([1.0]))


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


def test_subjects_may_grow_because_deletions_stay_in_the_stream_for_an_hour():
    processes = sample().processes
    growing = day(lambda hour: HourSample(processes=processes, kept={"NATS subjects": 100 + hour}))
    assert find_soak_problems(growing) == []
    assert compute_soak_figures(growing)["context: NATS subjects, growth per day"] == 24.0


def test_a_soak_that_is_too_short_proves_nothing():
    assert find_soak_problems([sample()] * (WARM_UP_HOURS + 1)) == [
        "a soak needs more than 5 hours to show growth"
    ]


def test_the_table_shows_the_last_value_and_the_growth_per_day():
    figures = compute_soak_figures(day(lambda hour: sample(rss=100e6 + hour * 1e6)))
    assert figures["simulated hours"] == HOURS
    assert figures["ours: all-in-one RSS MB"] == 123.0
    assert figures["ours: all-in-one RSS MB, growth per day"] == pytest.approx(24.0)
    assert figures["context: NATS consumers, growth per day"] == 0.0


def test_periods_shrink_as_much_as_the_hour_but_not_below_a_second():
    assert build_period_flags(3600)["metadata"] == (
        "--talos-resync-period=1800s",
        "--metadata-republish-interval=300s",
        "--node-status-update-frequency=300s",
    )
    assert build_period_flags(36)["ipam"] == ("--node-status-update-frequency=3s",)
    assert build_period_flags(1)["csr"] == ("--metadata-republish-interval=1s",)
