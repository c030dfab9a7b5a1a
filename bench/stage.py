"""A real control plane, Talos machines and kubelets in Go; and our services on top of them."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.wanted import Mode
from libs.common.service_spec import DEFAULT_SERVICES, ServiceSpec
from libs.testbed.children import Child
from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelets
from libs.testbed.kubelets_in_go import KubeletsInGo
from libs.testbed.machines import Machines
from libs.testbed.nats_server import NatsServer
from libs.testbed.running_services import ROOT, RunningServices

PROFILE_DIRECTORY = "TALOS_CCM_BENCH_PROFILES"
_PROFILED = Path(__file__).parent / "profiled"  # its sitecustomize profiles the process that finds it

_QUIET_SECONDS = 1.0

Told = Callable[[str], None]


class Stage(NamedTuple):
    """The parts that are there with and without a controller."""

    run_dir: Path
    control_plane: ControlPlane
    machines: Machines
    kubelets: KubeletsInGo
    admin: Kubelets  # grants rights, measures nothing

    def servers(self) -> dict[str, Child]:
        """The processes beside ours, whose cost is told for context."""
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


class Controlled(NamedTuple):
    """The same with our services."""

    mode: Mode
    services: RunningServices
    nats: NatsServer | None
    start_seconds: float  # from starting the processes until all are ready

    def children(self) -> Mapping[str, Child]:
        """Our processes by name."""
        return self.services.children


@contextlib.asynccontextmanager
async def staged(run_dir: Path, told: Told) -> AsyncIterator[Stage]:
    """Everything but our services, for the whole of the bench."""
    async with contextlib.AsyncExitStack() as stack:
        told("starting kube-apiserver, etcd, kube-controller-manager (built first where the cache has none)")
        control_plane = await stack.enter_async_context(ControlPlane.start(run_dir / "kubernetes"))
        told("starting Talos machines and kubelets")
        machines = await stack.enter_async_context(Machines.start(made(run_dir / "talos")))
        kubelets = await stack.enter_async_context(KubeletsInGo.start(run_dir / "kubelets", control_plane))
        admin = await stack.enter_async_context(Kubelets.start(control_plane))
        yield Stage(run_dir, control_plane, machines, kubelets, admin)


@contextlib.asynccontextmanager
async def controlled(
    stage: Stage,
    mode: Mode,
    name: str,
    *,
    flags: Sequence[str] = (),
    wirings: Sequence[ServiceSpec] = DEFAULT_SERVICES,
    replicas: Mapping[str, int] | None = None,
    own_flags: Mapping[str, Sequence[str]] | None = None,
    profiles: Path | None = None,
) -> AsyncIterator[Controlled]:
    """Our services, started anew, on a NATS server of their own where the mode has one; ready.

    When one of them ends that was not killed by `services.kill`, so does the body, with an exception group
    of ChildDied.
    """
    run_dir = stage.run_dir / name
    async with contextlib.AsyncExitStack() as stack:
        nats = None
        if mode != "all-in-one-memory":
            nats = await stack.enter_async_context(NatsServer.start(run_dir / "nats"))
        begun = time.monotonic()
        starting = RunningServices.start(
            run_dir,
            stage.control_plane,
            stage.admin,
            nats_url=nats.url if nats else "",
            talosconfig=stage.machines.talosconfig(),
            all_in_one=mode != "separate",
            bus="nats" if nats else "memory",
            flags=flags,
            own_flags=own_flags,
            wirings=wirings,
            replicas=replicas,
            env=_environment(profiles),
        )
        services = await stack.enter_async_context(starting)
        await services.ready()
        start_seconds = time.monotonic() - begun
        if profiles is not None:  # from here on: what imports cost is another question
            for child in services.children.values():
                child.process.send_signal(signal.SIGUSR2)
        async with asyncio.TaskGroup() as group:  # a service that ends, ends the measurement at once
            watching = group.create_task(services.first_death())
            yield Controlled(mode, services, nats, start_seconds)
            watching.cancel()


def _environment(profiles: Path | None) -> dict[str, str]:
    compiled = {"PYTHONDONTWRITEBYTECODE": ""}  # as installed code is: else the start is mostly compiling
    if profiles is None:
        return compiled
    path = os.pathsep.join((str(_PROFILED), str(ROOT)))
    return compiled | {"PYTHONPATH": path, PROFILE_DIRECTORY: str(profiles)}


def made(directory: Path) -> Path:
    """The directory, which exists from now on."""
    directory.mkdir(parents=True, exist_ok=True)
    return directory


async def quiet(stage: Stage, *, seconds: float = 20) -> bool:
    """Wait until our services have asked Kubernetes for nothing but their Lease for a second.

    False if they never stop within the time. The labeler's Events wait for a moment without writes of Nodes.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        mark = stage.control_plane.audit_mark()
        await asyncio.sleep(_QUIET_SECONDS)
        counts = stage.control_plane.audit_counts(mark)
        if not any(is_ours(r.user) and r.resource != "leases" for r in counts):
            return True
    return False


def is_ours(user: str) -> bool:
    """Whether that is the user of a service of ours."""
    return user.startswith("talos-ccm")
