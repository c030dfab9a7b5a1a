"""What a demo runs on: an API server, NATS, Talos machines and our services, all of it on this machine."""

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
from libs.testbed.sim_apiserver.server import SimApiServer
from libs.testbed.sim_machines import client as sim_machines

Told = Callable[[str, float], None]  # what was done, and how many seconds it took


class Parts(NamedTuple):
    """Everything that runs."""

    api_server: ControlPlane | SimApiServer
    nats: NatsServer
    machines: Machines
    kubelets: Kubelets
    services: RunningServices


@contextlib.asynccontextmanager
async def running(run_dir: Path, *, real: bool, all_in_one: bool, told: Told) -> AsyncIterator[Parts]:
    """Start one after the other, telling each step; end in the opposite order.

    `real`: the control plane and Talos machines built from Kubernetes' and Talos's own source. Otherwise both
    are simulated, and pass the same contract suites.
    """
    async with contextlib.AsyncExitStack() as stack:
        begun = time.monotonic()

        def done(what: str) -> None:
            nonlocal begun
            now = time.monotonic()
            told(what, now - begun)
            begun = now

        api_server: ControlPlane | SimApiServer
        if real:
            api_server = await stack.enter_async_context(ControlPlane.start(run_dir / "kubernetes"))
            done("kube-apiserver, etcd and kube-controller-manager")
        else:
            api_server = await stack.enter_async_context(SimApiServer.start(made(run_dir / "kubernetes")))
            done("Kubernetes API in memory (--real: the real one)")
        nats = await stack.enter_async_context(NatsServer.start(run_dir / "nats"))
        done("nats-server with JetStream")
        start_machines = Machines.start if real else sim_machines.start
        machines = await stack.enter_async_context(start_machines(run_dir / "talos"))
        talosconfig = machines.talosconfig()
        done("Talos API (COSI) with mutual TLS")
        kubelets = await stack.enter_async_context(Kubelets.start(api_server))
        services = await stack.enter_async_context(
            RunningServices.start(
                run_dir / "services",
                api_server,
                kubelets,
                nats_url=nats.url,
                talosconfig=talosconfig,
                all_in_one=all_in_one,
            )
        )
        await services.ready()
        done("services ready: " + ", ".join(services.children))
        yield Parts(api_server, nats, machines, kubelets, services)


def made(directory: Path) -> Path:
    """The directory, which exists from now on."""
    directory.mkdir(parents=True)
    return directory
