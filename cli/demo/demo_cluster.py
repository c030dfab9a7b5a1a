"""The cluster of a demo: API server, NATS, Talos machines and services, all on this machine."""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from cli.demo import demo_cloud
from cli.demo.demo_cloud import DemoCloud
from cli.demo.demo_options import DemoOptions
from cli.demo.node_progress import LOG_FLAGS
from libs.common.contract.node import CONTROL_PLANE_LABEL
from libs.common.contract.services import CLOUD, CONSOLE, CONSOLE_PORT, DEFAULT_SERVICES, IPAM, LIFECYCLE
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_facts import make_numbered_machine
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from libs.testbed.service_pods import ServicePods
from libs.testbed.service_processes import (
    PATIENT_LEASE,
    PATIENT_LEASE_FLAGS,
    SERVICE_NETWORKS,
    ServiceProcesses,
)
from libs.testbed.service_start import fork_services
from libs.testbed.sim_apiserver.server import SimApiServer

ProgressCallback = Callable[[str, float], None]  # a started component, and the seconds that this took
ComponentT = TypeVar("ComponentT")
ApiServer = ControlPlane | SimApiServer
_SPECS: Final = (*DEFAULT_SERVICES, *demo_cloud.SPECS, CONSOLE)
# The first machines have enough servers for the cloud account: a load balancer has 25 targets at most.
_PLATFORMS: Final = ("aws", "metal", "hcloud", "gcp", "hcloud", "azure", "hcloud", "openstack")
_MORE_PLATFORMS: Final = ("aws", "metal", "nocloud", "gcp", "azure", "openstack", "vultr")
_FIRST_MACHINES: Final = 6 * len(_PLATFORMS)
_MANY_MACHINES: Final = 200  # more need larger pod networks than the usual ones
_POD_CIDRS: Final = ("10.244.0.0/16", "fd00:10:244::/56")
_LARGE_POD_CIDRS: Final = ("10.192.0.0/11", "fd00:10:244::/48")


class DemoCluster(NamedTuple):
    """The running components."""

    api_server: ApiServer
    nats: NatsServer | None  # None on the memory bus
    machines: MachineFleet
    kubelets: KubeletFleet
    cloud: DemoCloud
    services: ServiceProcesses
    pods: ServicePods | None  # None on the real API server: its controllers would create other Pods


@contextlib.asynccontextmanager
async def start_cluster(
    run_dir: Path, options: DemoOptions, on_started: ProgressCallback, console_port: int = 0
) -> AsyncIterator[DemoCluster]:
    """Start the independent components concurrently, then the services; stop in reverse order.

    With `real`, control plane and Talos machines are built from the sources of Kubernetes and Talos, with
    `real_talos` Talos's API server. Otherwise both are simulated, and pass the same contract suites.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def start(what: str, component: AbstractAsyncContextManager[ComponentT]) -> ComponentT:
            begun = time.monotonic()
            started = await stack.enter_async_context(component)  # it also ends if another one fails
            on_started(what, time.monotonic() - begun)
            return started

        if not options.is_single_process and sys.platform == "linux":
            stack.enter_context(fork_services(run_dir))  # eight processes start in a third of the time
        cloud = await start("Hetzner Cloud API, simulated", DemoCloud.start(run_dir))
        async with asyncio.TaskGroup() as group:
            server_task = group.create_task(start(*_choose_api_server(run_dir / "kubernetes", options)))
            machines_task = group.create_task(start(*_choose_machines(run_dir / "talos", options)))
            nats = None
            if options.bus == "nats":
                try:
                    nats = await start("nats-server with JetStream", NatsServer.start(run_dir / "nats"))
                except FileNotFoundError as error:
                    raise FileNotFoundError(f"{error}; to run without it: --bus memory") from error
        api_server, machines = server_task.result(), machines_task.result()
        # At its start, metadata reads the networks of the cluster from a control plane machine.
        await machines.put_machines(*make_machines(options.nodes))
        nats_url, talosconfig = nats.url if nats else "", machines.write_talosconfig()
        kubelets = await stack.enter_async_context(KubeletFleet.start(api_server))
        begun = time.monotonic()
        own_flags = _build_own_flags(options, console_port, cloud)
        services = await stack.enter_async_context(
            ServiceProcesses.start(
                run_dir / "services",
                api_server,
                kubelets,
                nats_url=nats_url,
                talosconfig=talosconfig,
                all_in_one=options.is_single_process,
                bus=options.bus,
                flags=(
                    *LOG_FLAGS,
                    *demo_cloud.COMMON_FLAGS,
                    *([f"--cloud-config={options.cloud_config}"] if options.cloud_config else []),
                ),
                own_flags=own_flags,
                wirings=_SPECS,
            )
        )
        pods: ServicePods | None = None
        if isinstance(api_server, SimApiServer):
            pods = ServicePods(
                api_server,
                kubelets,
                services,
                nats_url=nats_url,
                talosconfig=talosconfig,
                flags=demo_cloud.COMMON_FLAGS,
                own_flags=own_flags,
                cloud_config=options.cloud_config,
            )
            await pods.install()
        await services.wait_until_ready()
        if pods is not None:
            await pods.report()
        await demo_cloud.create_services(kubelets)
        processes = "in one process" if options.is_single_process else "each in its own process"
        on_started(f"{len(_SPECS)} services, {processes}", time.monotonic() - begun)
        yield DemoCluster(api_server, nats, machines, kubelets, cloud, services, pods)


def choose_console_port() -> int:
    """Return the usual port of the console, or another one if it is in use."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", CONSOLE_PORT))
        except OSError:
            return allocate_port()
    return CONSOLE_PORT


def _build_own_flags(options: DemoOptions, console_port: int, cloud: DemoCloud) -> dict[str, Sequence[str]]:
    pod_cidrs = ",".join(_choose_pod_cidrs(options.nodes))
    own: dict[str, Sequence[str]] = {
        CONSOLE.service: (f"--console-port={console_port}",),
        LIFECYCLE.service: (*PATIENT_LEASE, *demo_cloud.LIFECYCLE_FLAGS),
        IPAM.service: (f"--cluster-cidr={pod_cidrs}", f"--service-cluster-ip-range={SERVICE_NETWORKS}"),
        f"{CLOUD.service}-{demo_cloud.ACCOUNT}": cloud.flags,
    }
    of_all = [flag for flags in own.values() for flag in flags]
    return {**PATIENT_LEASE_FLAGS, **own, "all-in-one": ("--console", *of_all)}


def _choose_api_server(
    run_dir: Path, options: DemoOptions
) -> tuple[str, AbstractAsyncContextManager[ApiServer]]:
    if options.real:
        return "kube-apiserver, etcd, kube-controller-manager", ControlPlane.start(run_dir)
    return "Kubernetes API, simulated", SimApiServer.start(run_dir, has_node_lifecycle=True)


def _choose_machines(
    run_dir: Path, options: DemoOptions
) -> tuple[str, AbstractAsyncContextManager[MachineFleet]]:
    if options.real_talos:
        return "Talos's own API server (apid)", MachineFleet.start_behind_apid(run_dir)
    if options.real:
        return "Talos API on COSI's own server", MachineFleet.start(run_dir)
    return "Talos API, simulated", MachineFleet.start_simulated(run_dir)


def make_machines(count: int) -> list[SimMachineFacts]:
    """Return `count` dual-stack machines; platforms take turns.

    One or three of them are control planes: the first of bare metal, or the only one.
    """
    first = [_PLATFORMS[number % len(_PLATFORMS)] for number in range(min(count, _FIRST_MACHINES))]
    more = [_MORE_PLATFORMS[number % len(_MORE_PLATFORMS)] for number in range(count - len(first))]
    machines = [
        make_numbered_machine(f"{platform}-{number:03}", number, platform, "demo")
        for number, platform in enumerate([*first, *more], 1)
    ]
    machines = [msgspec.structs.replace(each, pod_cidrs=_choose_pod_cidrs(count)) for each in machines]
    metal = [each.name for each in machines if each.name.startswith("metal-")] or [machines[0].name]
    control_planes = metal[: 3 if len(metal) >= 3 else 1]
    return [
        msgspec.structs.replace(each, control_plane=True) if each.name in control_planes else each
        for each in machines
    ]


def _choose_pod_cidrs(count: int) -> tuple[str, ...]:
    return _LARGE_POD_CIDRS if count > _MANY_MACHINES else _POD_CIDRS


def make_kubelet(machine: SimMachineFacts) -> SimKubelet:
    """Return the kubelet of a machine; on a control plane it registers with the taint, as on Talos."""
    taints = ({"key": CONTROL_PLANE_LABEL, "effect": "NoSchedule"},) if machine.control_plane else ()
    return SimKubelet.of_machine(machine, taints=taints)
