"""The cluster of a demo: API server, NATS, Talos machines and services, all on this machine."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar

from cli.demo.demo_options import DemoOptions
from cli.demo.progress_sources import LOG_FLAGS
from libs.testbed import talos_front
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_pods import ServicePods
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, ServiceProcesses
from libs.testbed.sim_apiserver.server import SimApiServer

ProgressCallback = Callable[[str, float], None]  # a started component, and the seconds that this took
ComponentT = TypeVar("ComponentT")
ApiServer = ControlPlane | SimApiServer


class DemoCluster(NamedTuple):
    """The running components."""

    api_server: ApiServer
    nats: NatsServer | None  # None on the memory bus
    machines: MachineFleet
    kubelets: KubeletFleet
    services: ServiceProcesses
    pods: ServicePods | None  # None on the real API server: its controllers would create other Pods


class ClusterStarter:
    """Starts components and reports each; they end with the stack, also if another one fails."""

    def __init__(self, stack: contextlib.AsyncExitStack, told: ProgressCallback) -> None:
        self._stack = stack
        self._told = told

    async def start(self, what: str, component: AbstractAsyncContextManager[ComponentT]) -> ComponentT:
        """Start one component and wait until it is ready."""
        begun = time.monotonic()
        started = await self._stack.enter_async_context(component)
        self._told(what, time.monotonic() - begun)
        return started


@contextlib.asynccontextmanager
async def start_cluster(
    run_dir: Path, wanted: DemoOptions, told: ProgressCallback
) -> AsyncIterator[DemoCluster]:
    """Start the independent components concurrently, then the services; stop in reverse order.

    With `real`, control plane and Talos machines are built from the sources of Kubernetes and Talos, with
    `real_talos` Talos's API server. Otherwise both are simulated, and pass the same contract suites.
    """
    async with contextlib.AsyncExitStack() as stack:
        starting = ClusterStarter(stack, told)
        api_server, machines, nats = await _start_backends(starting, run_dir, wanted)
        kubelets = await stack.enter_async_context(KubeletFleet.start(api_server))
        talosconfig = machines.write_talosconfig()
        starting_services = ServiceProcesses.start(
            run_dir / "services",
            api_server,
            kubelets,
            nats_url=nats.url if nats else "",
            talosconfig=talosconfig,
            all_in_one=wanted.is_single_process,
            bus=wanted.bus,
            flags=(*LOG_FLAGS, *([f"--cloud-config={wanted.cloud_config}"] if wanted.cloud_config else [])),
            own_flags=PATIENT_LEASE_FLAGS,
        )
        names = "services: watcher, metadata, labeler, csr"
        names = "services in one process" if wanted.is_single_process else names

        def make_pods(services: ServiceProcesses) -> ServicePods | None:
            if not isinstance(api_server, SimApiServer):
                return None
            return ServicePods(
                api_server,
                kubelets,
                services,
                nats_url=nats.url if nats else "",
                talosconfig=talosconfig,
                cloud_config=wanted.cloud_config,
            )

        services, pods = await starting.start(names, _wait_until_ready(starting_services, make_pods))
        yield DemoCluster(api_server, nats, machines, kubelets, services, pods)


async def _start_backends(
    starting: ClusterStarter, run_dir: Path, wanted: DemoOptions
) -> tuple[ApiServer, MachineFleet, NatsServer | None]:
    async with asyncio.TaskGroup() as group:
        api_server = group.create_task(_start_api_server(starting, run_dir / "kubernetes", real=wanted.real))
        machines = group.create_task(_start_machines(starting, run_dir / "talos", wanted))
        nats = group.create_task(_start_nats(starting, run_dir / "nats")) if wanted.bus == "nats" else None
    return api_server.result(), machines.result(), nats.result() if nats else None


async def _start_api_server(starting: ClusterStarter, run_dir: Path, *, real: bool) -> ApiServer:
    if real:
        return await starting.start(
            "kube-apiserver, etcd, kube-controller-manager", ControlPlane.start(run_dir)
        )
    simulated = SimApiServer.start(run_dir, has_node_lifecycle=True)
    return await starting.start("Kubernetes API, simulated", simulated)


async def _start_machines(starting: ClusterStarter, run_dir: Path, wanted: DemoOptions) -> MachineFleet:
    if wanted.real_talos:
        return await starting.start("Talos's own API server (apid)", talos_front.start_machines(run_dir))
    if wanted.real:
        return await starting.start("Talos API on COSI's own server", MachineFleet.start(run_dir))
    return await starting.start("Talos API, simulated", MachineFleet.start_simulated(run_dir))


async def _start_nats(starting: ClusterStarter, run_dir: Path) -> NatsServer:
    try:
        return await starting.start("nats-server with JetStream", NatsServer.start(run_dir))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; to run without it: --bus memory") from error


@contextlib.asynccontextmanager
async def _wait_until_ready(
    starting: AbstractAsyncContextManager[ServiceProcesses],
    make_pods: Callable[[ServiceProcesses], ServicePods | None],
) -> AsyncIterator[tuple[ServiceProcesses, ServicePods | None]]:
    async with starting as services:
        pods = make_pods(services)
        if pods is not None:
            await pods.install()
        await services.wait_until_ready()
        if pods is not None:
            await pods.report()
        yield services, pods
