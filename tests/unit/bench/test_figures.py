"""The arithmetic of the bench: percentiles, medians over runs, event loop lag, figures per node."""

import math
from collections import Counter

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
    compute_issued_figures,
    compute_join_figures,
    compute_percentile,
    compute_untainted_figures,
)
from tests.bench.joins import (
    CLAIMS,
    compute_carried_figures,
    compute_pod_cidr_figures,
    compute_served_figures,
    find_pod_cidr_problems,
)

PAGE = """\
# TYPE talosccm_event_loop_lag_seconds histogram
talosccm_event_loop_lag_seconds_bucket{le="0.001"} 90.0
talosccm_event_loop_lag_seconds_bucket{le="0.25"} 99.0
talosccm_event_loop_lag_seconds_bucket{le="+Inf"} 100.0
talosccm_event_loop_lag_seconds_count 100.0
"""


def joined(name: str, begun: float, at: float, untainted: float, served: float = 0) -> GoNodeJoin:
    return GoNodeJoin(name=name, begun=begun, joined=at, untainted=untainted, served=served)


def asked(node: str, begun: float, **steps: float) -> GoCertificateRequest:
    times = {"begun": begun, "filed": begun, **steps}
    return msgspec.convert({"name": f"csr-{node}-{begun}", "node": node, **times}, GoCertificateRequest)


def a_run(number: int, **figures: float) -> BenchRun:
    return BenchRun(scenario="burst", mode="separate", number=number, figures=figures)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 100))
def test_a_percentile_is_one_of_the_values_and_enough_values_do_not_exceed_it(values, percent):
    found = compute_percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6


def test_joining_lasts_from_the_first_start_to_the_last_end():
    nodes = [joined("a", 10.0, 11.0, 0), joined("b", 10.5, 10.9, 0)]
    figures = compute_join_figures(nodes, "joins only: ")
    assert figures["joins only: all joined s"] == pytest.approx(1.0)
    assert figures["joins only: joined p50 ms"] == pytest.approx(400)
    assert figures["joins only: joined p99 ms"] == pytest.approx(1000)


def test_a_node_that_kept_its_taint_is_counted_and_changes_no_other_figure():
    nodes = [joined("a", 10.0, 10.1, 12.0), joined("b", 10.0, 10.1, 0.0)]
    figures = compute_untainted_figures(nodes)
    assert figures["never untainted"] == 1
    assert figures["all untainted s"] == pytest.approx(2.0)
    assert figures["untainted p99 ms"] == pytest.approx(2000)


def test_only_the_lag_during_the_measurement_counts():
    before = metrics.parse_histogram(PAGE)
    after = {**before, 0.25: 104.0, math.inf: 105.0}
    assert metrics.compute_percentile_bound(metrics.subtract_histogram(before, after), 100) == 0.25
    assert math.isnan(metrics.compute_percentile_bound(metrics.subtract_histogram(before, before), 99))


def test_promises_about_a_changed_rule_that_do_not_hold_are_problems():
    kept = compute_rule_figures([1.0, 14.0])
    assert find_rule_problems(kept, writes=4, changed=2, settled=True) == []
    assert find_rule_problems(kept, writes=5, changed=2, settled=True) == ["5 writes for 2 changes of nodes"]
    assert "not idle" in find_rule_problems(kept, writes=2, changed=2, settled=False)[0]
    late, missing = compute_rule_figures([15.1]), compute_rule_figures([None, 1.0])
    assert "after more than 15 s" in find_rule_problems(late, writes=1, changed=1, settled=True)[0]
    assert "1 nodes did not have" in find_rule_problems(missing, writes=1, changed=2, settled=True)[0]


def test_a_certificate_is_timed_from_filing_and_all_certificates_from_the_begin():
    requests = [
        asked("a", 10.0, filed=10.1, approved=10.2, issued=10.5),
        asked("b", 10.0, filed=10.2, approved=10.6, issued=11.2),
    ]
    figures = compute_issued_figures(requests, 9.0)
    assert figures["all issued s"] == pytest.approx(2.2)
    assert figures["filed to issued p50 ms"] == pytest.approx(400)
    assert figures["filed to issued p99 ms"] == pytest.approx(1000)
    assert figures["filed to approved p50 ms"] == pytest.approx(100)
    assert figures["approved to issued p50 ms"] == pytest.approx(300)
    assert figures["never issued"] == 0


def test_promises_about_certificates_that_do_not_hold_are_problems():
    kept = {"never issued": 0.0, "issued / approve everything": 1.9}
    patches = Counter({"patch certificatesigningrequests/approval": 2000, "update leases": 9})
    assert find_certificate_problems(kept, patches, count=2000, settled=True) == []
    slow = kept | {"issued / approve everything": 2.1}
    assert "2 times as long" in find_certificate_problems(slow, patches, count=2000, settled=True)[0]
    assert find_certificate_problems(slow, patches, count=1999, settled=True)[1:] == [
        "2000 API requests for 1999 certificates"
    ]
    more = patches + Counter({"get nodes": 1, "watch nodes": 5})
    assert find_certificate_problems(kept, more, count=2000, settled=True) == [
        "2001 API requests for 2000 certificates"
    ]
    missing = kept | {"never issued": 3.0}
    assert "3 certificates" in find_certificate_problems(missing, patches, count=2000, settled=True)[0]
    assert "not idle" in find_certificate_problems(kept, patches, count=2000, settled=False)[0]


def test_a_node_is_usable_without_its_taint_and_with_pod_cidrs_in_any_order():
    nodes = [joined("a", 10.0, 10.1, 11.0, 13.0), joined("b", 10.5, 10.6, 12.5, 11.0)]
    figures = compute_served_figures(nodes)
    assert figures["all usable s"] == pytest.approx(3.0)
    assert figures["all with pod CIDRs s"] == pytest.approx(3.0)
    assert figures["usable p50 ms"] == pytest.approx(2000)
    assert figures["never with pod CIDRs"] == 0


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


def test_nodes_without_a_block_of_each_family_are_counted():
    carried = [("10.0.0.0/24",), (), ("10.0.1.0/24", "10.0.2.0/24"), ("fd00::/80", "10.0.3.0/24")]
    assert compute_carried_figures(carried)["pod CIDRs: nodes without both families"] == 3


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
