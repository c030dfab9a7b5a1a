"""A small workload through two faults on real servers, and a defect that the observer finds."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.testbed.child_process import make_directory
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.signing_requests import CSRS
from tests.chaos.cluster import Servers, start_processes
from tests.chaos.expectation import Undisturbed
from tests.chaos.mutants import MUTANTS, run_mutated
from tests.chaos.nats_servers import NatsServers
from tests.chaos.observer import Observer
from tests.chaos.results import RunRecord
from tests.chaos.run import find_credentials, run_on_cluster
from tests.chaos.schedule import Occurrence, Schedule, plan_undisturbed
from tests.chaos.workload import CONTROL_PLANE, LAST_NODE, STEADY, Workload, plan_workload

TAINT_FIRST = next(mutant for mutant in MUTANTS if mutant.name == "labeler-removes-the-taint-first")


def a_small_workload() -> Workload:
    planned = plan_workload(1)
    stay = (CONTROL_PLANE, *STEADY)
    return msgspec.structs.replace(
        planned,
        machines={name: planned.machines[name] for name in (*stay, LAST_NODE)},
        steps={name: planned.steps[name] for name in stay},
        rule_changes=(0.3, 0.6),
        moving={},
        replaced=frozenset(),
    )


@pytest.fixture
async def servers(
    control_plane: ControlPlane, nats_server: NatsServer, tmp_path: Path
) -> AsyncIterator[Servers]:
    async with (
        MachineFleet.start(tmp_path) as machines,
        KubeletFleet.start(control_plane) as kubelets,
    ):
        yield Servers(control_plane, NatsServers([nats_server]), machines, kubelets)


async def run_once(
    servers: Servers, run_dir: Path, schedule: Schedule, undisturbed: Undisturbed | None
) -> RunRecord:
    """Run in a cluster that has no Node of the workload, and delete them afterwards."""
    workload = a_small_workload()
    make_directory(run_dir)
    try:
        async with (
            start_processes(run_dir, schedule.mode, servers) as cluster,
            Observer.start(servers.control_plane) as observer,
        ):
            return await run_on_cluster(cluster, observer, schedule, workload, undisturbed)
    finally:
        for name in workload.machines:
            await servers.kubelets.delete_node(name)
        await servers.kubelets.request("DELETE", CSRS)


async def test_a_token_in_a_log_is_found_after_it_was_replaced(servers: Servers, tmp_path: Path):
    run_dir = make_directory(tmp_path / "run")
    async with start_processes(run_dir, "all-in-one", servers) as cluster:
        file = cluster.tokens.files[0]
        former = file.read_bytes()
        await cluster.rotate_tokens()
        assert file.read_bytes() != former
        assert find_credentials(cluster) == []
        log = cluster.run_dir / "logs" / "more.log"
        log.write_bytes(b"Bearer " + former)
        assert find_credentials(cluster) == [(str(log), str(file))]


async def test_two_faults_change_nothing_in_the_end_and_a_defect_is_found(servers: Servers, tmp_path: Path):
    calm = plan_undisturbed(1, "all-in-one")
    first = await run_once(servers, tmp_path / "undisturbed", calm, None)
    assert not first.violations
    assert first.left is not None
    assert first.left.nodes.keys() == a_small_workload().machines.keys()

    faults = (Occurrence("nats-wiped", 0.2, 0.2), Occurrence("talos-link-black-holed", 0.0, 1.0))
    disturbed = msgspec.structs.replace(calm, occurrences=faults)
    second = await run_once(servers, tmp_path / "disturbed", disturbed, first.left)
    assert not second.violations
    assert second.recovery_seconds is not None

    with run_mutated(TAINT_FIRST.name):
        third = await run_once(servers, tmp_path / "mutated", calm, first.left)
    assert TAINT_FIRST.invariant in {violation.invariant for violation in third.violations}
