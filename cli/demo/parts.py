"""What a demo runs on: an API server, NATS, Talos machines and our services, all of it on this machine."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple, TypeVar

from cli.demo.wanted import Wanted
from cli.demo.watching import LOG_FLAGS
from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelets
from libs.testbed.machines import Machines
from libs.testbed.nats_server import NatsServer
from libs.testbed.running_services import RunningServices
from libs.testbed.sim_apiserver.server import SimApiServer
from libs.testbed.sim_machines import client as sim_machines

Told = Callable[[str, float], None]  # what has started, and how many seconds that took
Part = TypeVar("Part")
ApiServer = ControlPlane | SimApiServer


class Parts(NamedTuple):
    """Everything that runs."""

    api_server: ApiServer
    nats: NatsServer | None  # None on the memory bus
    machines: Machines
    kubelets: Kubelets
    services: RunningServices


class Starting:
    """Starts parts and tells each; what has started ends with the stack, also when another one fails."""

    def __init__(self, stack: contextlib.AsyncExitStack, told: Told) -> None:
        self._stack = stack
        self._told = told

    async def start(self, what: str, part: AbstractAsyncContextManager[Part]) -> Part:
        """Wait for one part."""
        begun = time.monotonic()
        started = await self._stack.enter_async_context(part)
        self._told(what, time.monotonic() - begun)
        return started


@contextlib.asynccontextmanager
async def running(run_dir: Path, wanted: Wanted, told: Told) -> AsyncIterator[Parts]:
    """Start first what does not need each other, at once, then the services; end in the opposite order.

    `real`: the control plane and Talos machines built from Kubernetes' and Talos's own source. Otherwise both
    are simulated, and pass the same contract suites.
    """
    async with contextlib.AsyncExitStack() as stack:
        starting = Starting(stack, told)
        api_server, machines, nats = await _start_surroundings(starting, run_dir, wanted)
        kubelets = await stack.enter_async_context(Kubelets.start(api_server))
        services = RunningServices.start(
            run_dir / "services",
            api_server,
            kubelets,
            nats_url=nats.url if nats else "",
            talosconfig=machines.talosconfig(),
            all_in_one=wanted.in_one_process,
            bus=wanted.bus,
            flags=(*LOG_FLAGS, *([f"--cloud-config={wanted.cloud_config}"] if wanted.cloud_config else [])),
        )
        names = "services: watcher, metadata, labeler, csr"
        names = "services in one process" if wanted.in_one_process else names
        yield Parts(api_server, nats, machines, kubelets, await starting.start(names, _ready(services)))


async def _start_surroundings(
    starting: Starting, run_dir: Path, wanted: Wanted
) -> tuple[ApiServer, Machines, NatsServer | None]:
    async with asyncio.TaskGroup() as group:
        api_server = group.create_task(_start_api_server(starting, run_dir / "kubernetes", real=wanted.real))
        machines = group.create_task(_start_machines(starting, run_dir / "talos", real=wanted.real))
        nats = group.create_task(_start_nats(starting, run_dir / "nats")) if wanted.bus == "nats" else None
    return api_server.result(), machines.result(), nats.result() if nats else None


async def _start_api_server(starting: Starting, run_dir: Path, *, real: bool) -> ApiServer:
    if real:
        return await starting.start(
            "kube-apiserver, etcd, kube-controller-manager", ControlPlane.start(run_dir)
        )
    return await starting.start("Kubernetes API, simulated", SimApiServer.start(run_dir))


async def _start_machines(starting: Starting, run_dir: Path, *, real: bool) -> Machines:
    if real:
        return await starting.start("Talos API on COSI's own server", Machines.start(run_dir))
    return await starting.start("Talos API, simulated", sim_machines.start(run_dir))


async def _start_nats(starting: Starting, run_dir: Path) -> NatsServer:
    try:
        return await starting.start("nats-server with JetStream", NatsServer.start(run_dir))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; or do without it: --bus memory") from error


@contextlib.asynccontextmanager
async def _ready(starting: AbstractAsyncContextManager[RunningServices]) -> AsyncIterator[RunningServices]:
    async with starting as services:
        await services.ready()
        yield services
