"""Figures of the requests around the kill of a leader, and what breaks a promise."""

import math

import pytest

from libs.testbed.kubelets_in_go import GoCertificateRequest
from tests.bench.figures import Figures
from tests.bench.leader_killed import (
    MISSING,
    NEXT_LEADER,
    READY_AGAIN,
    TAINTED,
    compute_request_figures,
    find_leader_problems,
    find_ready_again,
)

KILLED_AT = 100.0


def request(name: str, node: str, issued: float = 0, denied: float = 0) -> GoCertificateRequest:
    return GoCertificateRequest(name=name, node=node, begun=90, filed=91, issued=issued, denied=denied)


def figures(*requests: GoCertificateRequest, **others: float) -> Figures:
    good = {READY_AGAIN: 20.0, NEXT_LEADER: 16.0, TAINTED: 0.0, MISSING: 0.0, "never untainted": 0.0}
    return compute_request_figures(requests, KILLED_AT) | good | others


def test_an_older_request_without_an_answer_is_superseded_and_not_lost():
    found = figures(request("a-1", "a"), request("a-2", "a", issued=130))
    assert found["requests issued"] == found["older requests superseded"] == 1
    assert found["killed to last issued s"] == 30
    assert find_leader_problems(found, nodes=1, settled=True) == []


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ((request("a-1", "a", issued=99), request("a-2", "a")), "certificate of their newest request"),
        ((request("a-1", "a", denied=99), request("a-2", "a", issued=120)), "1 requests were denied"),
        ((request("a-1", "a", issued=99), request("b-1", "b", issued=99)), "killed the leader too late"),
    ],
)
def test_a_lost_denied_or_early_request_breaks_a_promise(
    requests: tuple[GoCertificateRequest, ...], words: str
):
    (problem,) = find_leader_problems(figures(*requests), nodes=2, settled=True)
    assert words in problem


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({READY_AGAIN: 61.0}, "not all processes were ready again within 60 s"),
        ({READY_AGAIN: math.nan}, "not all processes were ready again within 60 s"),
        ({NEXT_LEADER: math.nan}, "no other one followed"),
        ({TAINTED: 3.0}, "3 nodes have the taint at the end"),
        ({MISSING: 2.0}, "2 nodes are missing at the end"),
        ({"never untainted": 1.0}, "1 nodes did not lose their taint in time"),
    ],
)
def test_what_is_not_as_promised_is_named(others: Figures, words: str):
    (problem,) = find_leader_problems(figures(request("a", "a", issued=110), **others), nodes=1, settled=True)
    assert words in problem


def test_processes_are_ready_again_when_they_stay_so_for_ten_seconds():
    samples = [(at, at < 100 or 104 <= at < 110 or at >= 113) for at in map(float, range(90, 130))]
    assert find_ready_again(samples, KILLED_AT) == 13
    assert math.isnan(find_ready_again(samples[:30], KILLED_AT))
