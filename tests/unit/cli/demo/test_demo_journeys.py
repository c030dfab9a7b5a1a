"""The demo's arithmetic: what log lines say, states, hops and percentiles."""

import io
import json
import math
from datetime import timedelta
from typing import Any

import pytest

from cli.demo.log_line import parse_log_line
from cli.demo.node_progress import DemoProgress, compute_percentile
from cli.demo.progress_sources import LogFollower
from cli.demo.rule_values import format_rule_values
from cli.demo.simulated_machines import diff_node_lines, make_kubelet, make_machines
from tests.builders import NOW, make_node

OBSERVED = {"message": "node observed", "service": "watcher", "event": "NodeObserved", "outcome": "published"}
ANSWERED = {"message": "machine verified", "service": "metadata"}
NO_FACTS = {
    "message": "poll failed",
    "service": "metadata",
    "step": "connect",
    "reason": "no route",
}
BLOCKED = {"message": "handled", "service": "labeler", "outcome": "blocked", "reason": "another's providerID"}
AGAIN = {"message": "handling failed, will retry", "service": "labeler", "error": "the API is down"}


def after(seconds: float):
    return NOW + timedelta(seconds=seconds)


def a_line(fields: dict[str, str], seconds: float, node: str = "one") -> bytes:
    return json.dumps({"time": after(seconds).isoformat(), "level": "info", "node": node, **fields}).encode()


def a_run() -> DemoProgress:
    journeys = DemoProgress()
    for name in ("one", "two", "three"):
        journeys.add_node(name, "metal", NOW)
    return journeys


def told(journeys: DemoProgress, fields: dict[str, str], seconds: float, node: str = "one") -> None:
    line = parse_log_line(a_line(fields, seconds, node))
    assert line
    journeys.apply_log_line(line)


def first(journeys: DemoProgress):
    return next(iter(journeys))


def test_a_node_passes_its_hops_once_and_the_first_time_counts():
    journeys = a_run()
    told(journeys, OBSERVED, 0.01)
    told(journeys, ANSWERED, 0.02)
    journeys.apply_node(make_node("one", taints=()), after(0.05))
    told(journeys, OBSERVED, 9.0)
    told(journeys, ANSWERED, 9.0)
    journeys.apply_node(make_node("one", taints=()), after(9.0))
    assert [first(journeys).seconds_until(hop) for hop in ("observed", "answered", "ready")] == [
        0.01,
        0.02,
        0.05,
    ]
    assert journeys.count_states() == {"ready": 1, "joining": 2}
    assert not journeys.are_all_ready


@pytest.mark.parametrize(
    "dropped", [{"outcome": "superseded"}, {"event": "NodeGone"}], ids=["superseded", "gone"]
)
def test_what_the_watcher_did_not_publish_of_a_node_is_no_hop(dropped: dict[str, str]):
    journeys = a_run()
    told(journeys, OBSERVED | dropped, 0.01)
    assert first(journeys).state == "joining"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (NO_FACTS, "connect: no route"),
        (BLOCKED, "another's providerID"),
        (AGAIN, "labeler: the API is down"),
    ],
    ids=["no-facts", "blocked", "again"],
)
def test_a_blocked_node_says_why_and_moves_on_when_its_machine_answers(fields: dict[str, str], why: str):
    journeys = a_run()
    told(journeys, fields, 0.1)
    assert (first(journeys).state, first(journeys).why_not_ready) == ("blocked", why)
    told(journeys, ANSWERED, 0.2)
    assert first(journeys).state == "answered"


def test_a_node_that_ownership_excludes_is_settled_and_one_that_returns_is_not():
    journeys = a_run()
    excluded = {"message": "handled", "service": "labeler", "outcome": "not-ours"}
    for name in ("one", "two"):
        told(journeys, excluded, 0.1, node=name)
    journeys.apply_node(make_node("three", taints=()), after(0.2))
    assert journeys.count_states() == {"excluded": 2, "ready": 1}
    before = journeys.are_all_ready
    told(journeys, excluded | {"outcome": "blocked", "reason": "no providerID"}, 0.3)
    assert (before, journeys.are_all_ready) == (True, False)
    assert first(journeys).state == "blocked"


def test_a_reload_of_the_rules_is_told_once_by_the_labeler():
    rejected = {"message": "--cloud-config rejected, the previous one stays in use", "mistakes": "line 3: no"}
    accepted = {"message": "cloud-config reloaded", "rules": 2}
    only_ownership = accepted | {"rules": 0}

    def line(service: str, fields: dict[str, Any]) -> bytes:
        return json.dumps({"time": NOW.isoformat(), "service": service, **fields}).encode() + b"\n"

    lines = [
        line(service, fields)
        for fields in (rejected, accepted, only_ownership)
        for service in ("csr", "labeler")
    ]
    logs = LogFollower([io.BytesIO(b"".join(lines))], a_run())
    assert [each.reload for each in logs.read_new_lines()] == [
        "rejected, the previous one stays in use: line 3: no",
        "applied: 2 rules",
        "applied: no rules",
    ]


@pytest.mark.parametrize(("nodes", "expected"), [(1, 1), (2, 1), (20, 3), (50, 3)])
def test_a_fleet_has_one_control_plane_or_three(nodes: int, expected: int):
    machines = make_machines(nodes)
    assert sum(machine.control_plane for machine in machines) == expected
    kubelets = [make_kubelet(machine) for machine in machines]
    assert sum(bool(kubelet.taints) for kubelet in kubelets) == expected


def test_a_node_that_ran_out_of_patience_says_whether_it_had_joined():
    journeys = a_run()
    assert first(journeys).why_not_ready == "timeout before it joined"
    journeys.apply_node(make_node("one"), after(0.1))
    assert first(journeys).why_not_ready == "timeout before it was ready"


def test_a_node_that_is_not_of_this_run_is_nobodys_journey():
    journeys = a_run()
    told(journeys, OBSERVED, 0.1, node="stranger")
    journeys.apply_node(make_node("stranger"), after(0.1))
    assert len(journeys) == 3


@pytest.mark.parametrize(
    "line", [b"Traceback (most recent call last):", b'{"time":', b'{"message": "ready"}', b""]
)
def test_a_line_about_no_node_tells_nothing(line: bytes):
    assert parse_log_line(line) is None


def test_a_log_is_read_line_by_line_however_it_grows():
    file, journeys = io.BytesIO(), a_run()
    logs = LogFollower([file], journeys)
    whole = a_line(OBSERVED, 0.25) + b"\n"
    for part in (whole[:10], whole[10:]):
        assert first(journeys).state == "joining"
        at = file.tell()
        file.write(part)
        file.seek(at)
        logs.read_new_lines()
    assert first(journeys).seconds_until("observed") == 0.25


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (90, 4.0), (99, 4.0), (100, 4.0), (1, 1.0)])
def test_percentiles_are_values_that_were_measured(percent, expected):
    assert compute_percentile([4.0, 1.0, 3.0, 2.0], percent) == expected


def test_percentiles_of_nothing_are_not_a_number():
    assert math.isnan(compute_percentile([], 50))


def test_what_became_of_a_node_is_what_was_added_and_removed_around_its_addresses():
    taint = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}
    of_others = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    address = {"type": "InternalIP", "address": "10.0.0.5"}
    before = {
        "metadata": {"labels": {"kept": "1"}}, "spec": {"taints": [taint]}, "status": {"addresses": [address]}
    }  # fmt: skip
    now = {
        "metadata": {"labels": {"kept": "1", "zone": "a"}},
        "spec": {"providerID": "metal://1", "taints": [of_others]},
        "status": {"addresses": [address]},
    }
    assert diff_node_lines(before, now) == [
        ("+", "providerID metal://1"),
        (" ", "address    InternalIP 10.0.0.5"),
        ("+", "label      zone=a"),
        ("-", "taint      node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"),
    ]


def test_what_rules_gave_is_counted_by_value_and_other_keys_are_left_out():
    def node(team: str, *taints: dict[str, str]) -> dict[str, Any]:
        return {"metadata": {"labels": {"team": team, "os": "linux"}}, "spec": {"taints": list(taints)}}

    keys = frozenset({("labels", "team"), ("taints", "web"), ("annotations", "os")})
    busy = {"key": "web", "effect": "NoSchedule"}
    assert format_rule_values(
        keys, [node("red"), node("red", busy), node("blue", {**busy, "value": "x"})]
    ) == [
        "    1 node   label team=blue",
        "    2 nodes  label team=red",
        "    1 node   taint web:NoSchedule",
        "    1 node   taint web=x:NoSchedule",
    ]
    assert format_rule_values(frozenset(), [node("red")]) == []
