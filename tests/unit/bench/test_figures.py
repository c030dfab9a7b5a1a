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
from tests.bench.certificates import find_certificate_problems
from tests.bench.changes import (
    compute_rule_figures,
    find_rule_problems,
)
from tests.bench.figures import (
    BenchRun,
    Figures,
    FigureSummary,
    compute_percentile,
    compute_ratios,
    list_values,
    summarize,
)
from tests.bench.joins import (
    CLAIMS,
    compute_carried_figures,
    compute_pod_cidr_figures,
    find_first_join_problem,
    find_pod_cidr_problems,
)
from tests.bench.options import Mode
from tests.bench.soak_figures import (
    WARM_UP_HOURS,
    HourSample,
    ProcessSample,
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


KEPT_RULE, LATE_RULE = compute_rule_figures([1.0, 14.0]), compute_rule_figures([15.1])


@pytest.mark.parametrize(
    ("figures", "writes", "settled", "problem"),
    [
        (KEPT_RULE, 4, True, ""),
        (KEPT_RULE, 5, True, "5 writes for 2 changes of nodes"),
        (KEPT_RULE, 2, False, "not idle"),
        (LATE_RULE, 1, True, "after more than 15 s"),
        (compute_rule_figures([None, 1.0]), 1, True, "1 nodes did not have"),
    ],
)
def test_promises_about_a_changed_rule_that_do_not_hold_are_problems(
    figures: Figures, writes: int, settled: bool, problem: str
):
    found = find_rule_problems(figures, writes=writes, changed=2, settled=settled)
    assert problem in found[0] if problem else not found


ISSUED: Figures = {"never issued": 0.0, "issued / approve everything": 1.9}
SLOW = ISSUED | {"issued / approve everything": 2.1}
PATCHES = Counter({"patch certificatesigningrequests/approval": 2000, "update leases": 9})
READS = Counter({"get nodes": 1, "watch nodes": 5})


@pytest.mark.parametrize(
    ("figures", "requests", "count", "settled", "problems"),
    [
        (ISSUED, PATCHES, 2000, True, []),
        (SLOW, PATCHES, 2000, True, ["2 times as long"]),
        (SLOW, PATCHES, 1999, True, ["2 times as long", "2000 API requests for 1999 certificates"]),
        (ISSUED, PATCHES + READS, 2000, True, ["2001 API requests for 2000 certificates"]),
        (ISSUED | {"never issued": 3.0}, PATCHES, 2000, True, ["3 certificates"]),
        (ISSUED, PATCHES, 2000, False, ["not idle"]),
    ],
)
def test_promises_about_certificates_that_do_not_hold_are_problems(
    figures: Figures, requests: Counter[str], count: int, settled: bool, problems: list[str]
):
    found = find_certificate_problems(figures, requests, count=count, settled=settled)
    assert len(found) == len(problems)
    assert all(problem in each for problem, each in zip(problems, found, strict=True))


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


def test_promises_about_pod_cidrs_that_do_not_hold_are_problems():
    served = [joined("a", 10.0, 10.1, 11.0, 13.0), joined("b", 10.5, 10.6, 12.5, 11.0)]
    carried = [("10.0.0.0/24", "fd00::/80"), ("10.0.1.0/24", "fd00:1::/80")]
    asked = {"Kubernetes: create configmaps per node": 0.02, "Kubernetes: update configmaps per node": 0.05}
    kept = compute_pod_cidr_figures(served, carried, asked)
    assert kept[CLAIMS] == pytest.approx(0.07)
    assert find_pod_cidr_problems(kept, nodes=1000) == []
    broken = kept | {
        CLAIMS: 0.12,
        "never with pod CIDRs": 3.0,
        "pod CIDRs: given twice": 2.0,
        "pod CIDRs: nodes without both families": 4.0,
    }
    always = [
        "3 nodes did not get pod CIDRs in time",
        "2 pod CIDRs overlap another one",
        "4 nodes do not have one pod CIDR of each family",
    ]
    assert find_pod_cidr_problems(broken, nodes=999) == always, "few nodes: no check of shared writes"
    assert find_pod_cidr_problems(broken, nodes=1000) == [*always, "more than 0.1 writes of claims per node"]


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


@pytest.mark.parametrize(
    ("of_hour", "problem"),
    [
        (lambda hour: sample(rss=100e6 + hour % 3 * 1e6, files=40 + hour % 2), ""),
        (lambda hour: sample(rss=1e6 * (100 + 10 * min(hour, WARM_UP_HOURS))), ""),
        (
            lambda hour: sample(rss=100e6 + hour * 0.5e6),
            "the memory of all-in-one grows by 12.0 MB per simulated day",
        ),
        (lambda hour: sample(files=40 + hour), "files of all-in-one grow by 24 per simulated day, to 63"),
        (lambda hour: sample(tasks=200 + hour), "tasks of all-in-one grow by 24 per simulated day, to 223"),
        (lambda hour: sample(threads=3 + hour), "threads of all-in-one grow by 24 per simulated day, to 26"),
        (lambda hour: sample(consumers=7 + hour), "NATS consumers grow by 24 per simulated day, to 30"),
    ],
    ids=["only varies", "only grows in the first hours", "memory", "files", "tasks", "threads", "consumers"],
)
def test_what_grows_is_reported(of_hour: Callable[[int], HourSample], problem: str):
    assert find_soak_problems(day(of_hour)) == ([problem] if problem else [])


def test_a_soak_that_is_too_short_proves_nothing():
    assert find_soak_problems([sample()] * (WARM_UP_HOURS + 1)) == [
        "a soak needs more than 5 hours to show growth"
    ]


def lagging(late: Callable[[int], float]) -> list[HourSample]:
    """Samples of a process with 100 measurements an hour; `late` of all so far took 0.1 to 0.25 s."""

    def histogram(hour: int) -> metrics.Histogram:
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


# ---- runs


@pytest.mark.parametrize(
    ("untainted", "steps", "problem"),
    [
        (2.0, {"approved": 2.0, "issued": 3.0}, ""),
        (0.0, {"approved": 2.0, "issued": 3.0}, r"left the taint on .*controller cloud-node"),
        (2.0, {"denied": 2.0}, r"not issued .*controller node-csr-approval"),
    ],
)
def test_a_program_that_does_not_serve_the_first_node_is_told_which_controller_it_lacks(
    untainted: float, steps: dict[str, float], problem: str
):
    node = msgspec.structs.replace(joined("a", 0.0, 1.0, untainted), request=asked("a", 1.0, **steps))
    found = find_first_join_problem(node)
    assert re.search(problem, found) if problem else not found
