"""The faults of a soak: four in turn, or random ones of `make chaos`."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

from libs.testbed.child_process import make_directory
from libs.testbed.process_keeper import keep_running
from tests.bench.bench_cluster import BenchCluster, BenchServices, build_environment
from tests.bench.measurement import Measurement
from tests.chaos.cluster import Mode, Servers, start_processes
from tests.chaos.fault import Fault, FaultSite, hold_fault
from tests.chaos.faults import list_faults
from tests.chaos.nats_servers import NatsServers
from tests.chaos.workload import plan_workload
from tests.chaos.workload_runner import Fleet

# Faults of one machine need the machines of a workload. A killed process has no growth to measure. The
# processes of a bench have the clock of the machine and export no traces. No soak with a webhook has
# been measured yet. A second installation adds processes that no sample contains.
_EXCLUDED: Final = ("machine-", "process-", "clock", "collector-", "webhook", "installation")
_RESTORED: Final = "etcd-restored"  # it loses Nodes, and this harness does not create them again
_APISERVER: Final = "apiserver"
_FAULTS_PER_HOUR: Final = 2

Live = Callable[
    [], Coroutine[Any, Any, list[str]]
]  # an hour of all nodes; returns what did not recover in time


class SoakedServices(NamedTuple):
    """Our running services, and what disturbs an hour: it returns the names of the faults, and problems."""

    services: BenchServices
    disturb: Callable[[int, Live], Awaitable[tuple[str, list[str]]]]


@contextlib.asynccontextmanager
async def start_with_faults_in_turn(
    starting: contextlib.AbstractAsyncContextManager[BenchServices], stage: BenchCluster
) -> AsyncIterator[SoakedServices]:
    """Each hour begins with one fault that breaks connections, and is over before the nodes live."""
    async with starting as controlled:
        faults = list_faults_in_turn(stage, controlled)

        async def disturb(hour: int, live: Live) -> tuple[str, list[str]]:
            what, fault = faults[hour % len(faults)]
            await fault()
            return what, await live()

        yield SoakedServices(controlled, disturb)


@contextlib.asynccontextmanager
async def start_with_random_faults(
    m: Measurement, seed: int, own_flags: Mapping[str, Sequence[str]]
) -> AsyncIterator[SoakedServices]:
    """Two random faults in each hour while the nodes live; those of kube-apiserver come before.

    A process that ends starts again, as in a cluster.
    """
    stage, run_dir = m.stage, m.stage.run_dir / m.name
    mode: Mode = "separate" if m.mode == "separate" else "all-in-one"
    counts = make_directory(run_dir / "counts")
    async with contextlib.AsyncExitStack() as stack:
        nats = await stack.enter_async_context(NatsServers.start(run_dir / "nats", is_cluster=False))
        begun = time.monotonic()
        cluster = await stack.enter_async_context(
            start_processes(
                run_dir,
                mode,
                Servers(stage.control_plane, nats, stage.machines, stage.admin),
                env=build_environment(counts, m.profiles),
                own_flags=own_flags,
            )
        )
        restarts = await stack.enter_async_context(keep_running(cluster.services))
        controlled = BenchServices(
            cluster.services, nats.servers[0], time.monotonic() - begun, counts, restarts
        )
        site = FaultSite(cluster, Fleet(stage.machines), plan_workload(seed), _write_again)

        async def disturb(hour: int, live: Live) -> tuple[str, list[str]]:
            choose = random.Random(f"soak {seed} {hour}")
            faults = choose_faults(mode, choose)
            holds = {fault.name: choose.uniform(*fault.hold_seconds) for fault in faults}
            before = [fault for fault in faults if fault.target == _APISERVER]
            await asyncio.gather(*(hold_fault(site, fault, holds[fault.name]) for fault in before))
            async with asyncio.TaskGroup() as group:
                living = group.create_task(live())
                for fault in faults:
                    if fault not in before:
                        group.create_task(hold_fault(site, fault, holds[fault.name]))
            return " and ".join(fault.name for fault in faults), living.result()

        yield SoakedServices(controlled, disturb)


async def _write_again() -> None:
    raise RuntimeError(f"{_RESTORED} is no fault of a soak")


def choose_faults(mode: Mode, choose: random.Random) -> list[Fault]:
    """The random faults of one hour, which have different targets."""
    faults = [
        fault
        for fault in list_faults(mode)
        if not fault.target.startswith(_EXCLUDED) and fault.name != _RESTORED
    ]
    chosen: list[Fault] = []
    while len(chosen) < _FAULTS_PER_HOUR:
        targets = {fault.target for fault in chosen}
        chosen.append(choose.choice([fault for fault in faults if fault.target not in targets]))
    return chosen


def list_faults_in_turn(
    stage: BenchCluster, controlled: BenchServices
) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
    """What happens at the start of an hour, in turn: each fault breaks connections that must come back."""

    async def restart_apiserver() -> None:
        await stage.control_plane.apiserver.kill()
        await stage.control_plane.restart_apiserver()

    async def cut_talos() -> None:
        await stage.machines.cut_endpoint(0)
        await stage.machines.restore_endpoint(0)

    async def renew_credentials() -> None:
        stage.machines.write_talosconfig()

    faults: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("kube-apiserver restarted", restart_apiserver),
        ("Talos connections cut", cut_talos),
        ("Talos credentials renewed", renew_credentials),
    ]
    if controlled.nats is not None:
        faults.append(("nats-server restarted", controlled.nats.restart))
    return faults
