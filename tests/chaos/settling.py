"""Waits until a cluster has reached its end state after the last fault."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from libs.common.contract.node import BLOCKED_CONDITION
from tests.chaos.expectation import Expectation, Undisturbed, find_differences
from tests.chaos.history import NodeState, SigningRequest
from tests.chaos.observer import Observer
from tests.chaos.workload import LAST_REVISION, RULE_LABEL

_POLL_SECONDS: Final = 0.25
_QUIET_SECONDS: Final = 2.0  # an end state that does not last is none
# The limits of runs without faults: an undisturbed run on a busy machine, and a mutant.
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"  # stays for seconds after a machine has come back
_UNDISTURBED_SECONDS: Final = 60.0
_MUTANT_SECONDS: Final = 25.0

FindOpen = Callable[[list[NodeState], list[SigningRequest]], list[str]]


async def wait_until_settled(
    observer: Observer, expected: Expectation, undisturbed: Undisturbed | None, seconds: float
) -> tuple[float | None, list[str]]:
    """Return the seconds until the end state, None if it takes too long, and what is missing then.

    Without `undisturbed`, every Node must be initialized and have its label and pod CIDRs.
    """

    def find_open(nodes: list[NodeState], requests: list[SigningRequest]) -> list[str]:
        missing = find_unissued(requests, expected)
        if undisturbed is None:
            return [*missing, *find_unfinished(nodes, expected)]
        return [*missing, *find_differences(nodes, undisturbed, expected)]

    begun = time.monotonic()
    without_faults = _UNDISTURBED_SECONDS if undisturbed is None else _MUTANT_SECONDS
    deadline = begun + (seconds or without_faults)
    settled, problems = await _poll_until_empty(observer, find_open, deadline)
    if settled is None:
        return None, problems
    await asyncio.sleep(_QUIET_SECONDS)
    _, problems = await _poll_until_empty(observer, find_open, time.monotonic())
    return settled - begun, [f"after it had settled: {problem}" for problem in problems]


def find_unissued(requests: Iterable[SigningRequest], expected: Expectation) -> list[str]:
    """The required requests without a certificate."""
    requests = list(requests)
    issued = {request.digest for request in requests if request.is_issued}
    names = {request.digest: f"{request.name} of {request.user}" for request in requests}
    return [
        f"request {names.get(digest, digest)} is not issued" for digest in sorted(expected.required - issued)
    ]


def find_unfinished(nodes: Iterable[NodeState], expected: Expectation) -> list[str]:
    """The Nodes that are not in a state in which a run without faults may end."""
    return [
        f"Node {node.name} is not finished"
        for node in nodes
        if node.name not in expected.deletable
        if not node.is_initialized
        or BLOCKED_CONDITION in node.conditions
        or not node.pod_cidrs
        or any(taint["key"] == _UNREACHABLE for taint in node.taints)
        or not node.labels.get(RULE_LABEL, "").startswith(f"r{LAST_REVISION}-")
    ]


async def _poll_until_empty(
    observer: Observer, find_open: FindOpen, deadline: float
) -> tuple[float | None, list[str]]:
    problems = ["kube-apiserver does not answer"]
    while True:
        nodes, requests = await observer.list_nodes(), await observer.list_requests()
        if nodes is not None and requests is not None:
            problems = find_open(nodes, requests)
            if not problems:
                return time.monotonic(), []
        if time.monotonic() > deadline:
            return None, problems
        await asyncio.sleep(_POLL_SECONDS)
