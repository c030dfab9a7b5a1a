"""The arithmetic of the bench: percentiles, pairs of runs, event loop lag, promises and growth."""

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.testbed.kubelets_in_go import GoCertificateRequest, GoNodeJoin
from tests.bench import metrics
from tests.bench.figures import (
    BenchRun,
    Figures,
    FigureSummary,
    compute_percentile,
    compute_ratios,
    list_broken,
    list_values,
    summarize,
)
from tests.bench.joins import compute_carried_figures, find_first_join_problem
from tests.bench.options import Mode
from tests.bench.soak import (
    WARM_UP_HOURS,
    HourSample,
    compute_soak_figures,
    find_soak_problems,
)


def joined(name: str, begun: float, at: float, untainted: float, served: float = 0) -> GoNodeJoin:
    return GoNodeJoin(name=name, begun=begun, joined=at, untainted=untainted, served=served)


def asked(node: str, begun: float, **steps: float) -> GoCertificateRequest:
    times = {"begun": begun, "filed": begun, **steps}
    return msgspec.convert({"name": f"csr-{node}-{begun}", "node": node, **times}, GoCertificateRequest)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 100))
def test_a_percentile_is_one_of_the_values_and_enough_values_do_not_exceed_it(values, percent):
    found = compute_percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6


@pytest.mark.parametrize(
    ("figures", "count", "problems"),
    [
        ({"all applied s": 15.0, "joins only: never untainted": 1.0}, 1000, []),
        ({"all applied s": 15.1}, 1, ["all applied s: 15.1, and at most 15 is promised"]),
        ({"never issued": 3.0}, 1, ["never issued: 3, and at most 0 is promised"]),
        ({"issued / approve everything": 2.1}, 999, []),
        (
            {"issued / approve everything": 2.1, "never issued": 1.0},
            1000,
            [
                "never issued: 1, and at most 0 is promised",
                "issued / approve everything: 2.1, and at most 2 is promised",
            ],
        ),
    ],
)
def test_promises_that_do_not_hold_are_problems(figures: Figures, count: int, problems: list[str]):
    assert list_broken(figures, count) == problems


@pytest.mark.parametrize(
    ("carried", "twice"),
    [
        ([("10.0.0.0/24", "fd00::/80"), ("10.0.1.0/24", "fd00:0:0:0:1::/80")], 0),
        ([("10.0.0.0/24", "fd00::/80"), ("10.0.0.0/24", "fd00:0:0:0:1::/80")], 1),
        ([("10.0.0.0/22", "fd00::/80"), ("10.0.1.0/24", "fd00::/96"), ("10.0.2.0/24", "fd00:1::/80")], 3),
        ([("0.0.0.0/24", "::/80")], 0),
    ],
    ids=["disjoint", "the-same", "one-in-another", "two-families-at-the-same-number"],
)
def test_overlapping_blocks_are_counted(carried: list[tuple[str, ...]], twice: int):
    assert compute_carried_figures(carried)["pod CIDRs: given twice"] == twice


def test_a_node_without_a_block_of_each_family_is_counted():
    carried = [("10.0.0.0/24", "fd00::/80"), ("10.0.1.0/24",), ("10.0.2.0/24", "10.0.3.0/24"), ()]
    assert compute_carried_figures(carried)["pod CIDRs: nodes without both families"] == 3


# ---- another controller


OURS: Final[Mode] = "all-in-one-memory"
TUNED: Final[Mode] = "against-tuned"


def a_run(mode: Mode, number: int, **figures: float) -> BenchRun:
    named = {name.replace("_", " "): value for name, value in figures.items()}
    return BenchRun(scenario="burst", mode=mode, number=number, figures=named)


def test_a_ratio_is_the_median_over_the_pairs_of_runs():
    runs = [
        *(a_run(OURS, number, all_untainted_s=s) for number, s in ((1, 6.0), (2, 20.0), (3, 8.0))),
        *(a_run(TUNED, number, all_untainted_s=s) for number, s in ((1, 4.0), (2, 10.0), (3, 8.0))),
    ]
    ours, tuned = (list_values(runs, "burst", mode, "all untainted s") for mode in (OURS, TUNED))
    assert summarize(compute_ratios(ours, tuned)) == FigureSummary(1.5, 1.0, 2.0)


# ---- a soak


HOURS = 24


MEMORY, TASKS, SUBJECTS = "ours: ipam RSS MB", "ours: ipam tasks", "context: NATS subjects"


def sample(**figures: float) -> HourSample:
    """A sample in which the figures that are not given are the same each time."""
    return HourSample(figures={MEMORY: 100.0, TASKS: 200.0, SUBJECTS: 9.0} | figures)


def day(of_hour: Callable[[int], HourSample]) -> list[HourSample]:
    return [of_hour(hour) for hour in range(HOURS)]


@pytest.mark.parametrize(
    ("of_hour", "problem"),
    [
        (lambda hour: sample(**{MEMORY: 100 + hour % 3, TASKS: 200 + hour % 2}), ""),
        (lambda hour: sample(**{MEMORY: 100 + 10 * min(hour, WARM_UP_HOURS)}), ""),
        (lambda hour: sample(**{SUBJECTS: 9 + hour}), ""),
        (lambda hour: sample(**{MEMORY: 100 + hour * 0.1}), ""),
        (
            lambda hour: sample(**{MEMORY: 100 + hour * 0.5}),
            "ours: ipam RSS MB grows by 12.0 per simulated day, to 112",
        ),
        (
            lambda hour: sample(**{TASKS: 200 + hour}),
            "ours: ipam tasks grows by 24.0 per simulated day, to 223",
        ),
    ],
    ids=["varies", "grows in the first hours", "subjects", "by less than 3 percent", "memory", "tasks"],
)
def test_what_grows_is_reported(of_hour: Callable[[int], HourSample], problem: str):
    assert find_soak_problems(day(of_hour)) == ([problem] if problem else [])


def test_a_soak_that_is_too_short_proves_nothing():
    assert find_soak_problems([sample()] * (WARM_UP_HOURS + 1)) == [
        "a soak needs more than 5 hours to show growth"
    ]


def lagging(late: Callable[[int], int]) -> list[HourSample]:
    """Samples of a process with 100 measurements an hour; `late` of all so far took 0.1 to 0.25 s."""

    def histogram(hour: int) -> metrics.Histogram:
        count = 100 * (hour + 1)
        return Counter({0.1: count - late(hour), 0.25: count, math.inf: count})

    return day(lambda hour: msgspec.structs.replace(sample(), loop_lag={"all-in-one": histogram(hour)}))


def test_the_lag_of_the_event_loop_counts_after_the_first_hours():
    only_at_first = lagging(lambda hour: 50)
    assert compute_soak_figures(only_at_first)["loop lag: all-in-one p99 at most ms"] == 100
    assert find_soak_problems(only_at_first) == []
    in_each_hour = lagging(lambda hour: 2 * hour)
    assert compute_soak_figures(in_each_hour)["loop lag: all-in-one p99 at most ms"] == 250
    assert find_soak_problems(in_each_hour) == ["the event loop of all-in-one lags by up to 250 ms (p99)"]


# ---- runs


@pytest.mark.parametrize(
    ("untainted", "steps", "problem"),
    [
        (2.0, {"approved": 2.0, "issued": 3.0}, ""),
        (0.0, {"approved": 2.0, "issued": 3.0}, r"left the taint on .*controller cloud-node"),
        (2.0, {}, r"not issued .*controller node-csr-approval"),
    ],
)
def test_a_program_that_does_not_serve_the_first_node_is_told_which_controller_it_lacks(
    untainted: float, steps: dict[str, float], problem: str
):
    node = msgspec.structs.replace(joined("a", 0.0, 1.0, untainted), request=asked("a", 1.0, **steps))
    found = find_first_join_problem(node)
    assert re.search(problem, found) if problem else not found
