"""When a run without faults may end: the others are compared with its end."""

import pytest

from tests.chaos.expectation import Expectation
from tests.chaos.history import NodeState, read_node
from tests.chaos.run import find_unfinished
from tests.chaos.workload import LAST_REVISION, RULE_LABEL


def a_node(taint: str = "") -> NodeState:
    return read_node(
        {
            "metadata": {
                "name": "web-1",
                "uid": "u",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "resourceVersion": "1",
                "labels": {RULE_LABEL: f"r{LAST_REVISION}-of-aws"},
            },
            "spec": {
                "podCIDRs": ["10.128.0.0/24"],
                "taints": [{"key": taint, "effect": "NoExecute"}] if taint else [],
            },
            "status": {},
        }
    )


def test_an_initialized_node_with_its_label_and_pod_cidrs_is_finished():
    assert find_unfinished([a_node()], Expectation()) == []
    assert find_unfinished([a_node("operator.example.com/dedicated")], Expectation()) == []


@pytest.mark.parametrize(
    "taint", ["node.kubernetes.io/unreachable", "node.cloudprovider.kubernetes.io/uninitialized"]
)
def test_a_node_with_a_taint_that_will_go_is_not_finished(taint: str):
    assert find_unfinished([a_node(taint)], Expectation()) == ["Node web-1 is not finished"]
    assert find_unfinished([a_node(taint)], Expectation(deletable=frozenset({"web-1"}))) == []
