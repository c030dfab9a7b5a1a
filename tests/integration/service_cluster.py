"""An API server, kubelets and machines on which a test starts our services as processes, or acts as one."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import ServiceSpec
from libs.common.kube.api import KubeApi
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, ServiceProcesses, grant_permissions
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bus_actors import wait_until
from tests.kube_loopback import open_api_by

ApiServer = SimApiServer | ControlPlane
MEMORY: dict[str, Any] = {"nats_url": "", "all_in_one": True, "bus": "memory"}


@asynccontextmanager
async def run_services(
    run_dir: Path, server: ApiServer, kubelets: KubeletFleet, machines: MachineFleet, **options: Any
) -> AsyncIterator[ServiceProcesses]:
    """Run our services during the block, ready at its beginning; keywords are those of ServiceProcesses.

    The watcher's Lease lasts a minute if the test sets no flags of its own for the process.
    """
    options.setdefault("own_flags", PATIENT_LEASE_FLAGS)
    options.setdefault("talosconfig", machines.write_talosconfig())
    async with ServiceProcesses.start(run_dir, server, kubelets, **options) as services:
        await services.wait_until_ready()
        yield services


@dataclass(kw_only=True)
class ServiceCluster:
    """The parts of one cluster; what a test adds is removed when `stack` closes."""

    stack: AsyncExitStack
    server: ApiServer
    kubelets: KubeletFleet
    machines: MachineFleet
    run_dir: Path

    async def serve(self, name: str = "services", **options: Any) -> ServiceProcesses:
        """Our services, ready, until the end; keywords are those of ServiceProcesses."""
        return await self.stack.enter_async_context(
            run_services(self.run_dir / name, self.server, self.kubelets, self.machines, **options)
        )

    async def put_machines(self, *machines: SimMachineFacts) -> None:
        """Start machines without a kubelet."""
        await self.machines.put_machines(*machines)
        self.stack.push_async_callback(self.machines.delete_machines, *(each.id for each in machines))

    async def join(self, *machines: SimMachineFacts) -> None:
        """Start machines and a kubelet on each."""
        await self.put_machines(*machines)
        await self.kubelets.join_all(map(SimKubelet.of_machine, machines))

    async def list_nodes(self) -> list[dict[str, Any]]:
        """Every Node as the API server returns it."""
        return list((await self.kubelets.request("GET", "/api/v1/nodes")).body["items"])

    async def wait_until_initialized(self, count: int) -> None:
        """Return once there are that many Nodes and none has the uninitialized taint."""

        async def are_initialized() -> bool:
            nodes = await self.list_nodes()
            taints = [taint["key"] for node in nodes for taint in node["spec"].get("taints", [])]
            return len(nodes) == count and UNINITIALIZED_TAINT not in taints

        await wait_until(are_initialized, f"{count} Nodes are initialized")


@asynccontextmanager
async def open_simulated(run_dir: Path, machines: MachineFleet) -> AsyncIterator[ServiceCluster]:
    """A cluster on a simulated API server of its own."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(SimApiServer.start(run_dir / "api"))
        kubelets = await stack.enter_async_context(KubeletFleet.start(server))
        yield ServiceCluster(
            stack=stack, server=server, kubelets=kubelets, machines=machines, run_dir=run_dir
        )


@asynccontextmanager
async def open_separate(run_dir: Path) -> AsyncIterator[ServiceCluster]:
    """A cluster on a simulated API server and machines of its own."""
    async with (
        MachineFleet.start(run_dir / "talos") as machines,
        open_simulated(run_dir, machines) as cluster,
    ):
        yield cluster


@asynccontextmanager
async def open_api_of(
    spec: ServiceSpec, control_plane: ControlPlane, kubelets: KubeletFleet
) -> AsyncIterator[KubeApi]:
    """Grant the permissions of every service; a client as the user of that service."""
    await grant_permissions(kubelets)
    async with open_api_by(control_plane.kubeconfig(get_user_name(spec)), instance="test") as api:
        yield api
