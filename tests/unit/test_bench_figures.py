"""The arithmetic of the bench: percentiles, medians over runs, lateness from histograms, per node."""

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import lag
from bench.costs import per_node
from bench.figures import Run, joins_figures, percentile, ratio, summaries, untainted_figures
from bench.fleet import fleet
from bench.rule_change import rule_figures, rule_problems, wanted_labels, write_rule
from libs.common.cloud_config.document import parse_cloud_config
from libs.testbed.kubelets_in_go import Joined
from services.labeler.rules import apply_rules, compile_rules
from tests.builders import some_facts

PAGE = """\
# TYPE talosccm_event_loop_lag_seconds histogram
talosccm_event_loop_lag_seconds_bucket{le="0.001"} 90.0
talosccm_event_loop_lag_seconds_bucket{le="0.25"} 99.0
talosccm_event_loop_lag_seconds_bucket{le="+Inf"} 100.0
talosccm_event_loop_lag_seconds_count 100.0
"""


def joined(name: str, begun: float, at: float, untainted: float) -> Joined:
    return Joined(name=name, begun=begun, joined=at, untainted=untainted)


def a_run(number: int, **figures: float) -> Run:
    return Run(scenario="burst", mode="separate", number=number, figures=figures)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 100))
def test_a_percentile_is_one_of_the_values_and_enough_of_them_do_not_exceed_it(values, percent):
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6


def test_a_percentile_of_nothing_is_no_number():
    assert math.isnan(percentile([], 50))


def test_joining_lasts_from_the_first_ones_begin_to_the_last_ones_end():
    nodes = [joined("a", 10.0, 11.0, 0), joined("b", 10.5, 10.9, 0)]
    figures = joins_figures(nodes, "joins only: ")
    assert figures["joins only: all joined s"] == pytest.approx(1.0)
    assert figures["joins only: joined p50 ms"] == pytest.approx(400)
    assert figures["joins only: joined p99 ms"] == pytest.approx(1000)


def test_a_node_that_never_lost_its_taint_is_counted_and_spoils_no_other_figure():
    nodes = [joined("a", 10.0, 10.1, 12.0), joined("b", 10.0, 10.1, 0.0)]
    figures = untainted_figures(nodes)
    assert figures["never untainted"] == 1
    assert figures["all untainted s"] == pytest.approx(2.0)
    assert figures["untainted p99 ms"] == pytest.approx(2000)


def test_nobody_untainted_gives_no_time_at_all():
    figures = untainted_figures([joined("a", 10.0, 10.1, 0.0)])
    assert math.isnan(figures["all untainted s"])
    assert figures["never untainted"] == 1


def test_runs_become_a_median_with_the_least_and_the_most():
    runs = [a_run(1, seconds=3.0), a_run(2, seconds=1.0), a_run(3, seconds=2.5)]
    summary = summaries(runs)["burst", "separate"]["seconds"]
    assert (summary.median, summary.least, summary.most) == (2.5, 1.0, 3.0)


def test_a_figure_that_a_run_does_not_have_is_left_out_of_its_median():
    runs = [a_run(1, seconds=math.nan), a_run(2, seconds=4.0), a_run(3)]
    assert summaries(runs)["burst", "separate"]["seconds"].median == 4.0


def test_nothing_is_no_unit():
    assert math.isnan(ratio(1.0, 0.0))
    assert ratio(6.0, 4.0) == 1.5


def test_lateness_is_told_as_the_bound_of_its_bucket():
    page = lag.histogram(PAGE)
    assert lag.at_most(page, 50) == 0.001
    assert lag.at_most(page, 99) == 0.25
    assert lag.at_most(page, 100) == math.inf


def test_only_the_lateness_of_the_measured_time_counts():
    before = lag.histogram(PAGE)
    after = {**before, 0.25: 104.0, math.inf: 105.0}
    assert lag.at_most(lag.between(before, after), 100) == 0.25
    assert math.isnan(lag.at_most(lag.between(before, before), 99))


def test_a_page_without_the_histogram_has_no_lateness():
    assert math.isnan(lag.at_most(lag.histogram(""), 99))


def test_requests_are_told_per_node_and_the_lease_is_not_the_nodes_doing():
    counts = Counter({"patch nodes": 20, "create events": 10, "update leases": 7, "Version": 5})
    figures = per_node("Kubernetes", counts, 10)
    assert figures == {
        "Kubernetes: all per node": 3.5,
        "Kubernetes: Version per node": 0.5,
        "Kubernetes: create events per node": 1.0,
        "Kubernetes: patch nodes per node": 2.0,
    }


def test_a_changed_rule_is_told_by_the_last_node_and_those_that_never_follow():
    figures = rule_figures([1.0, 2.0, None, 4.0])
    assert figures["all applied s"] == 4.0
    assert figures["first applied s"] == 1.0
    assert figures["applied p50 s"] == 2.0
    assert figures["never applied"] == 1


def test_promises_about_a_changed_rule_that_do_not_hold_are_problems():
    kept = rule_figures([1.0, 14.0])
    assert rule_problems(kept, writes=4, changed=2, settled=True) == []
    assert rule_problems(kept, writes=5, changed=2, settled=True) == ["5 writes for 2 changes of nodes"]
    assert "quiet" in rule_problems(kept, writes=2, changed=2, settled=False)[0]
    late, missing = rule_figures([15.1]), rule_figures([None, 1.0])
    assert "after more than 15 s" in rule_problems(late, writes=1, changed=1, settled=True)[0]
    assert "1 nodes did not bear" in rule_problems(missing, writes=1, changed=2, settled=True)[0]


def test_the_rule_of_the_bench_gives_what_is_waited_for_and_spares_one_platform(tmp_path: Path):
    file = tmp_path / "rules.yaml"
    write_rule(file, revision=7)
    rules = compile_rules(parse_cloud_config(file.read_bytes(), "rules.yaml"))
    machines = fleet("n", 8)
    wanted = wanted_labels(machines, 7)
    assert len(wanted) == 7
    for machine in machines:
        assert machine.platform is not None
        given = apply_rules(rules, some_facts(platform=machine.platform.platform)).labels
        assert list(given.values()) == [wanted[name] for name in wanted if name == machine.name]
