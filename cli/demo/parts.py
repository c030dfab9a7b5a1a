"""What a demo runs on: a control plane, NATS, Talos machines and our services, all of it on this machine."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelets
from libs.testbed.machines import Machines
from libs.testbed.nats_server import NatsServer
from libs.testbed.running_services import RunningServices

Told = Callable[[str, float], None]  # what was done, and how many seconds it took


class Parts(NamedTuple):
    """Everything that runs."""

    control_plane: ControlPlane
    nats: NatsServer
    machines: Machines
    kubelets: Kubelets
    services: RunningServices


@contextlib.asynccontextmanager
async def running(run_dir: Path, *, all_in_one: bool, told: Told) -> AsyncIterator[Parts]:
    """Start one after the other, telling each step; end in the opposite order."""
    async with contextlib.AsyncExitStack() as stack:
        begun = time.monotonic()

        def done(what: str) -> None:
            nonlocal begun
            now = time.monotonic()
            told(what, now - begun)
            begun = now

        control_plane = await stack.enter_async_context(ControlPlane.start(run_dir / "kubernetes"))
        done("kube-apiserver, etcd and kube-controller-manager")
        nats = await stack.enter_async_context(NatsServer.start(run_dir / "nats"))
        done("nats-server with JetStream")
        machines = await stack.enter_async_context(Machines.start(run_dir / "talos"))
        talosconfig = machines.talosconfig()
        done("Talos API (COSI) with mutual TLS")
        kubelets = await stack.enter_async_context(Kubelets.start(control_plane))
        services = await stack.enter_async_context(
            RunningServices.start(
                run_dir / "services",
                control_plane,
                kubelets,
                nats_url=nats.url,
                talosconfig=talosconfig,
                all_in_one=all_in_one,
            )
        )
        await services.ready()
        done("services ready: " + ", ".join(services.children))
        yield Parts(control_plane, nats, machines, kubelets, services)
