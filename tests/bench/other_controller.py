"""Another controller, a program that takes the reference's flags, on the same cluster as our services."""

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from libs.testbed.child_process import (
    ChildExited,
    ChildProcess,
    is_serving,
    make_directory,
    wait_until,
    watch_exit,
)
from libs.testbed.ports import allocate_port
from libs.testbed.service_processes import SERVICE_NETWORKS
from tests.bench.bench_cluster import OTHER_CONTROLLER, POD_NETWORKS, BenchCluster
from tests.bench.options import Mode

# Empty values: the controller has no rule and reads the cluster's name from Talos, as our services do.
_CLOUD_CONFIG: Final = "global: {}\n"
_FLAGS_BY_MODE: Final[Mapping[Mode, tuple[str, ...]]] = {
    "against-default": (),
    "against-tuned": ("--concurrent-node-syncs=64", "--kube-api-qps=2000", "--kube-api-burst=4000"),
}
_CONTROLLERS: Final = ("cloud-node", "node-csr-approval")
_POD_CIDR_FLAGS: Final = (
    "--allocate-node-cidrs",
    f"--cluster-cidr={','.join(POD_NETWORKS)}",
    f"--service-cluster-ip-range={SERVICE_NETWORKS}",
)
_REQUIRED: Final = "docs/performance.md lists what such a program must accept"
_START_SECONDS: Final = 60
_STOP_SECONDS: Final = 10


class OtherControllerFailed(RuntimeError):
    """The program cannot be measured; the message names it, the reason and the fix."""


class OtherController(NamedTuple):
    """The running program."""

    child: ChildProcess
    start_seconds: float  # from starting the process until it is healthy

    def list_processes(self) -> dict[str, ChildProcess]:
        """The program by its name."""
        return {OTHER_CONTROLLER: self.child}


@contextlib.asynccontextmanager
async def start_other_controller(
    stage: BenchCluster, mode: Mode, name: str, program: Path, *, pod_cidrs: bool = False
) -> AsyncIterator[OtherController]:
    """Start the program and wait until it is healthy; end it with the context.

    Raises OtherControllerFailed if it does not start. If it exits later, the body ends with an exception
    group of ChildExited.
    """
    run_dir = make_directory(stage.run_dir / name)
    cloud_config = run_dir / "cloud-config.yaml"
    cloud_config.write_text(_CLOUD_CONFIG)
    port = allocate_port()
    flags = build_flags(
        mode,
        kubeconfig=stage.control_plane.kubeconfig(OTHER_CONTROLLER, ["system:masters"]),
        cloud_config=cloud_config,
        port=port,
        pod_cidrs=pod_cidrs,
    )
    environment = {"TALOSCONFIG": str(stage.machines.write_talosconfig()), "TALOS_ENDPOINTS": ""}
    begun = time.monotonic()
    try:
        child = ChildProcess.start(OTHER_CONTROLLER, [program, *flags], run_dir, env=environment)
    except OSError as error:
        raise OtherControllerFailed(f"--against {program}: cannot start: {error.strerror}") from error
    try:
        await _wait_until_healthy(program, child, port)
        async with watch_exit(child):
            yield OtherController(child, time.monotonic() - begun)
    finally:
        await child.stop(_STOP_SECONDS)


def build_flags(
    mode: Mode, *, kubeconfig: Path, cloud_config: Path, port: int, pod_cidrs: bool = False
) -> list[str]:
    """Return the flags of the reference's chart for one replica outside a cluster, and those of the mode."""
    controllers = (*_CONTROLLERS, "node-ipam-controller") if pod_cidrs else _CONTROLLERS
    return [
        "--v=2",
        "--cloud-provider=talos",
        f"--cloud-config={cloud_config}",
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics",
        *_FLAGS_BY_MODE[mode],
        *(_POD_CIDR_FLAGS if pod_cidrs else ()),
    ]


async def _wait_until_healthy(program: Path, child: ChildProcess, port: int) -> None:
    is_healthy = partial(is_serving, f"https://127.0.0.1:{port}/healthz", tls=False)  # its own certificate
    try:
        await wait_until(is_healthy, child, what="healthy (/healthz over TLS)", seconds=_START_SECONDS)
    except (ChildExited, TimeoutError) as error:
        raise OtherControllerFailed(f"--against {program}: {error}\n{_REQUIRED}") from error
