"""One run: a fresh cluster, the workload, the faults of a schedule, and the verdict of the observer."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from libs.common.contract.node import BLOCKED_CONDITION
from libs.testbed.ports import release_ports
from libs.testbed.service_processes import keep_running
from libs.testbed.service_start import fork_services
from tests.chaos.cluster import ChaosCluster, start_cluster
from tests.chaos.credentials import find_leaks, read_files
from tests.chaos.expectation import Expectation, Undisturbed, find_differences, make_undisturbed
from tests.chaos.fault import BOUND_SECONDS, FaultSite, hold_fault
from tests.chaos.faults import get_fault
from tests.chaos.history import History, NodeState, SigningRequest
from tests.chaos.invariants import END_STATE, NO_CREDENTIAL, Evidence, Violation, find_violations
from tests.chaos.observer import Observer
from tests.chaos.results import RunRecord
from tests.chaos.schedule import Occurrence, Schedule
from tests.chaos.workload import LAST_REVISION, RULE_LABEL, Workload
from tests.chaos.workload_runner import WorkloadRunner
from tests.interruptible_run import list_messages

_POLL_SECONDS: Final = 0.25
_QUIET_SECONDS: Final = 2.0  # an end state that does not last is none
_UNREACHABLE: Final = "node.kubernetes.io/unreachable"  # stays for seconds after a machine has come back
_MUTANT_SECONDS: Final = 25.0  # the limit of a mutant without a fault

FindOpen = Callable[[list[NodeState], list[SigningRequest]], list[str]]
_INITIALLY_EMPTY: Final = Undisturbed(nodes={}, first_addresses={}, requests_per_node=float("inf"))


async def wait_until_settled(
    observer: Observer, expected: Expectation, undisturbed: Undisturbed | None, seconds: float = BOUND_SECONDS
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
    settled, problems = await _poll_until_empty(observer, find_open, begun + seconds)
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


class ClusterNotStarted(Exception):
    """A part of the cluster did not start, so there was no run."""


async def run_schedule(
    run_dir: Path, schedule: Schedule, workload: Workload, undisturbed: Undisturbed | None
) -> RunRecord:
    """Run in `run_dir`. Without `undisturbed`, record a run without faults.

    Raises ClusterNotStarted.
    """
    with release_ports():
        async with contextlib.AsyncExitStack() as stack:
            try:
                stack.enter_context(fork_services(run_dir))
                cluster = await stack.enter_async_context(start_cluster(run_dir, schedule.mode))
                observer = await stack.enter_async_context(Observer.start(cluster.control_plane))
            except Exception as error:  # each part raises errors of its own
                why = "; ".join(list_messages(error))
                raise ClusterNotStarted(f"the cluster did not start: {why}") from error
            return await run_on_cluster(cluster, observer, schedule, workload, undisturbed)


async def run_on_cluster(
    cluster: ChaosCluster,
    observer: Observer,
    schedule: Schedule,
    workload: Workload,
    undisturbed: Undisturbed | None,
) -> RunRecord:
    """Run on a cluster without Nodes. Without `undisturbed`, the record is that of a run without faults."""
    begun = time.monotonic()
    runner = WorkloadRunner(cluster, workload)
    site = FaultSite(cluster, runner.fleet, workload, runner.write_again, healed=[])
    recovery: float | None = None
    problems: list[str] = []
    async with keep_running(cluster.services) as restarts:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(runner.run())
                last = group.create_task(_inject_all(site, schedule.occurrences, runner))
        except* TimeoutError as errors:  # a step was impossible for longer than any bound
            problems += list_messages(errors)
        else:
            settled, problems = await wait_until_settled(
                observer,
                runner.expectation,
                undisturbed,
                BOUND_SECONDS if schedule.occurrences or undisturbed is None else _MUTANT_SECONDS,
            )
            recovery = None if settled is None else max(settled, last.result())
    history = History()
    try:
        history = await observer.read_history()
    except TimeoutError as error:
        problems.append(str(error))
    evidence = Evidence(
        history=history,
        expected=runner.expectation,
        undisturbed=undisturbed or _INITIALLY_EMPTY,
        joined=workload.joins,
    )
    violations = [Violation(END_STATE, problem.split(" is ")[0], problem) for problem in problems]
    violations += find_violations(evidence)
    violations += [
        Violation(NO_CREDENTIAL, where, f"contains a secret of {name}")
        for where, name in find_credentials(cluster)
    ]
    left = None
    if undisturbed is None:
        nodes = await observer.list_nodes() or []
        left = make_undisturbed(nodes, history, runner.expectation, joined=workload.joins)
    return RunRecord(
        schedule=schedule,
        seconds=time.monotonic() - begun,
        recovery_seconds=recovery,
        requests_per_node=sum(history.request_counts.values()) / workload.joins,
        violations=tuple(violations),
        restarts=tuple(restarts),
        logs=str(cluster.run_dir),
        left=left,
    )


async def _inject_all(site: FaultSite, occurrences: Sequence[Occurrence], runner: WorkloadRunner) -> float:
    """Inject and heal the faults; return the seconds from the last heal until a new node is usable."""
    async with asyncio.TaskGroup() as group:
        for occurrence in occurrences:
            group.create_task(_inject(site, occurrence))
    healed = time.monotonic()
    await runner.join_last()
    return time.monotonic() - healed


async def _inject(site: FaultSite, occurrence: Occurrence) -> None:
    await asyncio.sleep(occurrence.at)
    await hold_fault(site, get_fault(occurrence.fault), occurrence.until - occurrence.at)


def find_credentials(cluster: ChaosCluster) -> list[tuple[str, str]]:
    """The logs and messages with a credential, present or replaced, each with the file of the credential."""
    cluster.record_credentials()
    return find_leaks(cluster.credentials, read_files(cluster.list_texts()))
