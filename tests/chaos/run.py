"""One run: a fresh cluster, the workload, the faults of a schedule, and the verdict of the observer."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from libs.testbed.error_messages import list_messages
from libs.testbed.ports import release_ports
from libs.testbed.process_keeper import keep_running
from libs.testbed.service_start import fork_services
from tests.chaos.cluster import ChaosCluster, start_cluster
from tests.chaos.credential_record import read_files
from tests.chaos.credential_search import find_leaks
from tests.chaos.expectation import Undisturbed, make_undisturbed
from tests.chaos.fault import FaultSite, hold_fault
from tests.chaos.faults import get_fault
from tests.chaos.history import History
from tests.chaos.invariants import END_STATE, NO_CREDENTIAL, Evidence, Violation, find_violations
from tests.chaos.observer import Observer
from tests.chaos.results import RunRecord, UndisturbedRecord
from tests.chaos.schedule import Occurrence, Schedule
from tests.chaos.settling import wait_until_settled
from tests.chaos.workload import Workload
from tests.chaos.workload_runner import WorkloadRunner

_INITIALLY_EMPTY: Final = Undisturbed(nodes={}, first_addresses={}, requests_per_node=float("inf"))


class ClusterNotStarted(Exception):
    """A part of the cluster did not start, so there was no run."""


async def run_schedule(
    run_dir: Path, schedule: Schedule, workload: Workload, undisturbed: Undisturbed | None
) -> RunRecord | UndisturbedRecord:
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
) -> RunRecord | UndisturbedRecord:
    """Run on a cluster without Nodes. Without `undisturbed`, the record is that of a run without faults."""
    begun = time.monotonic()
    runner = WorkloadRunner(cluster, workload)
    site = FaultSite(cluster, runner.fleet, workload, runner.write_again)
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
                observer, runner.expectation, undisturbed, schedule.bound_seconds
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
    seconds = time.monotonic() - begun
    if undisturbed is None:
        nodes = await observer.list_nodes() or []
        left = make_undisturbed(nodes, history, runner.expectation, joined=workload.joins)
        return UndisturbedRecord(
            seed=schedule.seed, mode=schedule.mode, seconds=seconds, violations=tuple(violations), left=left
        )
    return RunRecord(
        schedule=schedule,
        seconds=seconds,
        recovery_seconds=recovery,
        requests_per_node=sum(history.request_counts.values()) / workload.joins,
        violations=tuple(violations),
        restarts=tuple(restarts),
        logs=str(cluster.run_dir),
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
