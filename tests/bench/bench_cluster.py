"""A real control plane with Talos machines and kubelets in Go, and our services on it."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.contract.services import DEFAULT_SERVICES, IPAM
from libs.testbed.child_process import ChildProcess, make_directory
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.kubelets_in_go import KubeletsInGo
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.patched_process import PATCHES
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, SERVICE_NETWORKS, ServiceProcesses
from tests.bench.instrumentation import COUNT_DIRECTORY
from tests.bench.metrics import count_messages
from tests.bench.options import Mode

OTHER_CONTROLLER: Final = "other-controller"  # process and Kubernetes user of the program of --against
_QUIET_SECONDS = 1.0
READ_VERBS: Final = frozenset({"get", "list", "watch"})  # of requests to Kubernetes

# Networks that no machine of the fleet uses; the reference needs an IPv6 network of a /64 or smaller.
POD_NETWORKS: Final = ("10.128.0.0/9", "fd00:10:128::/64")
# Ranges that no machine of the fleet uses.
POD_CIDR_FLAGS: Final = (
    "--allocate-node-cidrs",
    "--cluster-cidr=10.128.0.0/9,fd00:10:128::/48",
    f"--service-cluster-ip-range={SERVICE_NETWORKS}",
)

StepCallback = Callable[[str], None]


class BenchCluster(NamedTuple):
    """The servers, machines and kubelets that every measurement uses, with or without our services."""

    run_dir: Path
    control_plane: ControlPlane
    machines: MachineFleet
    kubelets: KubeletsInGo
    admin: KubeletFleet  # grants rights, measures nothing

    def list_servers(self) -> dict[str, ChildProcess]:
        """The other processes, whose cost the results show for context."""
        control_plane = self.control_plane
        manager = control_plane.controller_manager
        assert manager is not None
        return {
            "kube-apiserver": control_plane.apiserver,
            "etcd": control_plane.etcd,
            "controller-manager": manager,
            "machines": self.machines.child,
            "kubelets": self.kubelets.child,
        }


class BenchServices(NamedTuple):
    """Our running services."""

    services: ServiceProcesses
    nats: NatsServer | None
    start_seconds: float  # from starting the processes until all are ready
    counts: Path  # the directory in which a process writes the number of its tasks

    def list_processes(self) -> dict[str, ChildProcess]:
        """Its processes by name, with its NATS server."""
        nats = {} if self.nats is None else {"nats-server": self.nats.child}
        return {**self.services.children, **nats}

    async def fetch_metrics(self) -> dict[str, str]:
        """The metrics pages of our processes, by name; "" of one that does not answer."""
        names = list(self.services.children)
        pages = await asyncio.gather(*(self.services.fetch_page(name, "/metrics") for name in names))
        return dict(zip(names, pages, strict=True))

    def count_messages(self, pages: Mapping[str, str]) -> Counter[str]:
        """What our processes have done so far; `pages` are their metrics."""
        return count_messages(pages.values(), (child.log for child in self.services.children.values()))


@contextlib.asynccontextmanager
async def start_cluster(run_dir: Path, report: StepCallback) -> AsyncIterator[BenchCluster]:
    """Start everything except our services, for the whole bench."""
    async with contextlib.AsyncExitStack() as stack:
        report("starting kube-apiserver, etcd, kube-controller-manager (builds them if the cache has none)")
        control_plane = await stack.enter_async_context(ControlPlane.start(run_dir / "kubernetes"))
        report("starting Talos machines and kubelets")
        machines = await stack.enter_async_context(MachineFleet.start(make_directory(run_dir / "talos")))
        kubelets = await stack.enter_async_context(KubeletsInGo.start(run_dir / "kubelets", control_plane))
        admin = await stack.enter_async_context(KubeletFleet.start(control_plane))
        yield BenchCluster(run_dir, control_plane, machines, kubelets, admin)


@contextlib.asynccontextmanager
async def start_services(
    stage: BenchCluster,
    mode: Mode,
    name: str,
    *,
    flags: Sequence[str] = (),
    pod_cidrs: bool = False,
    own_flags: Mapping[str, Sequence[str]] = PATIENT_LEASE_FLAGS,
    patches: Sequence[str] = (),
) -> AsyncIterator[BenchServices]:
    """Start our services, with their own NATS server if the mode has one; yields when all are ready.

    With `pod_cidrs`, ipam is one of them. If one exits without `services.kill`, the body ends with an
    exception group of ChildExited. On this busy machine the watcher must not lose its Lease.
    """
    run_dir = stage.run_dir / name
    counts = make_directory(run_dir / "counts")
    async with contextlib.AsyncExitStack() as stack:
        nats = None
        if mode != "all-in-one-memory":
            nats = await stack.enter_async_context(NatsServer.start(run_dir / "nats"))
        begun = time.monotonic()
        starting = ServiceProcesses.start(
            run_dir,
            stage.control_plane,
            stage.admin,
            nats_url=nats.url if nats else "",
            talosconfig=stage.machines.write_talosconfig(),
            all_in_one=mode != "separate",
            bus="nats" if nats else "memory",
            flags=(*POD_CIDR_FLAGS, *flags) if pod_cidrs else flags,
            own_flags=own_flags,
            wirings=(*DEFAULT_SERVICES, IPAM) if pod_cidrs else DEFAULT_SERVICES,
            env=build_environment(counts, patches),
        )
        services = await stack.enter_async_context(starting)
        await services.wait_until_ready()
        start_seconds = time.monotonic() - begun
        async with asyncio.TaskGroup() as group:  # a service that exits cancels the measurement
            watching = group.create_task(services.wait_for_exit())
            yield BenchServices(services, nats, start_seconds, counts)
            watching.cancel()


def build_environment(counts: Path, patches: Sequence[str]) -> dict[str, str]:
    """The environment of our processes, which measures them by `tests/bench/instrumentation.py`."""
    return {
        "PYTHONDONTWRITEBYTECODE": "",  # compile modules, as in an image; else compiling dominates the start
        PATCHES: ",".join(("tests.bench.instrumentation:install", *patches)),
        COUNT_DIRECTORY: str(counts),
    }


async def wait_until_quiet(stage: BenchCluster, *, seconds: float = 20, writes_only: bool = False) -> bool:
    """Wait until the controller has sent Kubernetes only Lease requests for a second.

    False if that takes too long. The labeler delays its Events while Nodes are written. With `writes_only`,
    reads do not count: services with short periods repeat them.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        mark = stage.control_plane.audit_mark()
        await asyncio.sleep(_QUIET_SECONDS)
        counts = stage.control_plane.audit_counts(mark)
        requests = [r for r in counts if is_controller_user(r.user) and r.resource != "leases"]
        if not any(r.verb not in READ_VERBS or not writes_only for r in requests):
            return True
    return False


def is_controller_user(user: str) -> bool:
    """Whether one of our services or the other controller has this user name; only one of them runs."""
    return user.startswith("talos-ccm") or user == OTHER_CONTROLLER
