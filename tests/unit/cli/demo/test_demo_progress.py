"""The progress of the demo: what log lines say, states, milestones, certificates and percentiles."""

import io
import ipaddress
import json
import math
from datetime import timedelta
from typing import Any

import pytest

from cli.demo.demo_cluster import make_kubelet, make_machines
from cli.demo.node_progress import DemoProgress, LogFollower, compute_percentile, parse_log_line
from cli.demo.rule_values import format_rule_values
from cli.demo.view import format_certificates
from libs.common.contract.signing_request import SigningRequestCondition
from tests.builders import NOW, make_node, make_request

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
    progress = DemoProgress()
    for name in ("one", "two", "three"):
        progress.add_node(name, "metal", NOW)
    return progress


def told(progress: DemoProgress, fields: dict[str, str], seconds: float, node: str = "one") -> None:
    line = parse_log_line(a_line(fields, seconds, node))
    assert line
    progress.apply_log_line(line)


def first(progress: DemoProgress):
    return next(iter(progress))


def test_a_node_passes_its_hops_once_and_the_first_time_counts():
    progress = a_run()
    told(progress, OBSERVED, 0.01)
    told(progress, ANSWERED, 0.02)
    progress.apply_node(make_node("one", taints=()), after(0.05))
    told(progress, OBSERVED, 9.0)
    told(progress, ANSWERED, 9.0)
    progress.apply_node(make_node("one", taints=()), after(9.0))
    assert [first(progress).seconds_until(hop) for hop in ("observed", "answered", "ready")] == [
        0.01,
        0.02,
        0.05,
    ]
    assert progress.count_states() == {"ready": 1, "joining": 2}
    assert not progress.are_all_ready


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
    progress = a_run()
    told(progress, fields, 0.1)
    assert (first(progress).state, first(progress).why_not_ready) == ("blocked", why)
    told(progress, ANSWERED, 0.2)
    assert first(progress).state == "answered"


def test_a_node_that_ownership_excludes_is_settled_and_one_that_returns_is_not():
    progress = a_run()
    excluded = {"message": "handled", "service": "labeler", "outcome": "not-ours"}
    for name in ("one", "two"):
        told(progress, excluded, 0.1, node=name)
    progress.apply_node(make_node("three", taints=()), after(0.2))
    assert progress.count_states() == {"excluded": 2, "ready": 1}
    before = progress.are_all_ready
    told(progress, excluded | {"outcome": "blocked", "reason": "no providerID"}, 0.3)
    assert (before, progress.are_all_ready) == (True, False)
    assert first(progress).state == "blocked"


def test_a_reload_is_announced_once_by_the_labeler_and_a_deleted_node_with_the_reason():
    rejected = {"message": "--cloud-config rejected, the previous one stays in use", "mistakes": "line 3: no"}
    accepted = {"message": "cloud-config reloaded", "rules": 2}
    gone = {"node": "web-1", "reason": "account prod has no instance hcloud://1 any more"}
    lines = [
        (service, fields)
        for fields in (rejected, accepted, accepted | {"rules": 0})
        for service in ("csr", "labeler")
    ]
    lines += [("lifecycle", gone | {"message": text}) for text in ("Node deleted", "handled")]
    logged = [{"time": NOW.isoformat(), "service": service, **fields} for service, fields in lines]
    logs = LogFollower([io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in logged))], a_run())
    assert [each.announcement for each in logs.read_new_lines()] == [
        "--cloud-config rejected, the previous one stays in use: line 3: no",
        "--cloud-config applied: 2 rules",
        "--cloud-config applied: no rules",
        "lifecycle deleted Node web-1: account prod has no instance hcloud://1 any more",
    ]


@pytest.mark.parametrize(("nodes", "expected"), [(1, 1), (2, 1), (20, 3), (50, 3)])
def test_a_fleet_has_one_control_plane_or_three(nodes: int, expected: int):
    machines = make_machines(nodes)
    assert sum(machine.control_plane for machine in machines) == expected
    kubelets = [make_kubelet(machine) for machine in machines]
    assert sum(bool(kubelet.taints) for kubelet in kubelets) == expected


@pytest.mark.parametrize("nodes", [20, 48, 500])
def test_the_servers_of_a_fleet_fit_one_load_balancer_and_its_blocks_one_network(nodes: int):
    machines = make_machines(nodes)
    servers = [each for each in machines if each.name.startswith("hcloud-")]
    assert 4 <= len(servers) <= 25
    networks = [ipaddress.ip_network(each) for each in machines[0].pod_cidrs]
    assert 2 ** (24 - networks[0].prefixlen) >= nodes
    addresses = [ipaddress.ip_address(each) for machine in machines for each in machine.reachable_at]
    assert len(set(addresses)) == 2 * nodes
    assert not any(address in network for address in addresses for network in networks)


def test_a_node_that_ran_out_of_patience_says_whether_it_had_joined():
    progress = a_run()
    assert first(progress).why_not_ready == "timeout before it joined"
    progress.apply_node(make_node("one"), after(0.1))
    assert first(progress).why_not_ready == "timeout before it was ready"


def test_a_node_that_is_not_of_this_run_is_nobodys_journey():
    progress = a_run()
    told(progress, OBSERVED, 0.1, node="stranger")
    progress.apply_node(make_node("stranger"), after(0.1))
    assert len(progress) == 3


@pytest.mark.parametrize(
    "line", [b"Traceback (most recent call last):", b'{"time":', b'{"message": "ready"}', b""]
)
def test_a_line_about_no_node_tells_nothing(line: bytes):
    assert parse_log_line(line) is None


def test_a_log_is_read_line_by_line_however_it_grows():
    file, progress = io.BytesIO(), a_run()
    logs = LogFollower([file], progress)
    whole = a_line(OBSERVED, 0.25) + b"\n"
    for part in (whole[:10], whole[10:]):
        assert first(progress).state == "joining"
        at = file.tell()
        file.write(part)
        file.seek(at)
        logs.read_new_lines()
    assert first(progress).seconds_until("observed") == 0.25


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (90, 4.0), (99, 4.0), (100, 4.0), (1, 1.0)])
def test_percentiles_are_values_that_were_measured(percent: float, expected: float):
    assert compute_percentile([4.0, 1.0, 3.0, 2.0], percent) == expected
    assert math.isnan(compute_percentile([], percent))


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


def requested(count: int) -> DemoProgress:
    progress = DemoProgress()
    for number in range(1, count + 1):
        progress.add_node(f"web-{number}", "metal", after(-9))
        progress.add_certificate_request(f"web-{number}", NOW)
    return progress


def test_each_node_that_asked_is_counted_once_with_the_time_until_its_certificate():
    progress = requested(3)
    progress.add_node("without-request", "metal", NOW)
    assert format_certificates(progress) == "0 of 3 certificates issued"
    for number in (1, 2, 3):
        assert not progress.are_certificates_settled
        issued = make_request(node=f"web-{number}", certificate="pem")
        progress.apply_certificate_request(issued, after(0.01 * number))
    progress.apply_certificate_request(make_request(node="web-1", certificate="pem"), after(9))
    progress.apply_certificate_request(make_request(node="another-node", certificate="pem"), after(0.001))
    assert progress.are_certificates_settled
    assert progress.without_certificate == []
    assert format_certificates(progress) == "3 of 3 certificates issued (p50 20 ms, max 30 ms)"


def test_a_denied_request_is_settled_and_one_that_is_only_approved_is_not():
    progress = requested(2)
    for kind, node in (("Denied", "web-1"), ("Approved", "web-2")):
        condition = SigningRequestCondition(type=kind, message="the address is another's")
        progress.apply_certificate_request(make_request(node=node, conditions=(condition,)), after(0.005))
    assert not progress.are_certificates_settled
    reasons = [(node.name, node.certificate_trouble) for node in progress.without_certificate]
    assert reasons == [("web-1", "the address is another's"), ("web-2", "")]
