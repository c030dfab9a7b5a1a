"""Our services in relation to another controller: flags of the program, pairs of runs, ratios."""

from typing import Final

import pytest

from libs.testbed.kubelets_in_go import GoCertificateRequest, GoNodeJoin
from libs.testbed.service_processes import ProcessUsage
from tests.bench.costs import CostReading, compute_controller_figures
from tests.bench.figures import BenchRun, Pairing, compare_with_other
from tests.bench.options import Mode, Scenario
from tests.bench.run_bench import find_first_join_problem

OURS: Final[Mode] = "all-in-one-memory"
TUNED: Final[Mode] = "against-tuned"


def a_run(mode: Mode, number: int, scenario: Scenario = "burst", **figures: float) -> BenchRun:
    named = {name.replace("_", " "): value for name, value in figures.items()}
    return BenchRun(scenario=scenario, mode=mode, number=number, figures=named)


def a_request(*, approved: float = 0, denied: float = 0, issued: float = 0) -> GoCertificateRequest:
    return GoCertificateRequest(name="c", node="n", approved=approved, denied=denied, issued=issued)


def a_reading(*, controller: set[str], cpu: dict[str, float], rss: int = 0) -> CostReading:
    usage = {
        name: ProcessUsage(cpu_seconds=seconds, peak_rss_bytes=rss, threads=1)
        for name, seconds in cpu.items()
    }
    return CostReading(audit=0, usage=usage, loop_lag={}, controller=frozenset(controller), messages=None)


def test_a_ratio_is_the_median_over_the_pairs_of_runs():
    runs = [
        *(a_run(OURS, number, all_untainted_s=s) for number, s in ((1, 6.0), (2, 20.0), (3, 8.0))),
        *(a_run(TUNED, number, all_untainted_s=s) for number, s in ((1, 4.0), (2, 10.0), (3, 8.0))),
    ]
    (row,) = compare_with_other(runs)[Pairing(OURS, TUNED)]
    assert (row.title, row.ours, row.other) == ("all untainted, s", 8.0, 8.0)
    assert (row.ratio.median, row.ratio.least, row.ratio.most) == (1.5, 1.0, 2.0)


def test_the_cost_of_a_controller_includes_its_nats_server_and_excludes_the_parts_of_the_bench():
    controller = {"labeler", "nats-server"}
    names = ("labeler", "nats-server", "etcd", "kubelets", "machines", "bench")
    before = a_reading(controller=controller, cpu=dict.fromkeys(names, 1.0))
    after = a_reading(controller=controller, cpu=dict.fromkeys(names, 3.0), rss=2_000_000)
    assert compute_controller_figures(before, after) == {
        "controller: CPU s": 4.0,
        "controller: CPU of everything s": 6.0,
        "controller: peak RSS MB": 4.0,
    }


@pytest.mark.parametrize(
    ("untainted", "asked", "words"),
    [
        (2.0, a_request(issued=3.0), ""),
        (2.0, None, ""),
        (0.0, a_request(issued=3.0), "left the taint on the first node"),
        (2.0, a_request(), "certificate was not approved and not issued (controller node-csr-approval)"),
        (2.0, a_request(denied=2.0), "certificate was denied and not issued"),
        (2.0, a_request(approved=2.0), "certificate was approved and not issued"),
    ],
    ids=["all-done", "no-request", "taint-left", "not-approved", "denied", "not-issued"],
)
def test_a_program_that_does_nothing_for_the_first_node_is_rejected(
    untainted: float, asked: GoCertificateRequest | None, words: str
):
    node = GoNodeJoin(name="n", begun=1.0, joined=1.5, untainted=untainted, request=asked)
    assert words in find_first_join_problem(node)
    assert bool(find_first_join_problem(node)) == bool(words)
