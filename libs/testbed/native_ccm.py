"""A cloud's own cloud controller manager, built with k8s.io/cloud-provider; the cloud is a file."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from libs.testbed.child_process import ChildExited, ChildProcess, make_directory
from libs.testbed.control_plane.build import NATIVE, build_program
from libs.testbed.control_plane.control_plane import ControlPlane

CLOUD_NODE: Final = "cloud-node-controller"
NODE_LIFECYCLE: Final = "cloud-node-lifecycle-controller"


class CloudInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A machine in its cloud."""

    name: str  # the Node name, which the cloud uses as the name of the machine
    provider_id: str
    instance_type: str = ""
    zone: str = ""
    region: str = ""
    internal_ips: tuple[str, ...] = ()
    external_ips: tuple[str, ...] = ()
    shutdown: bool = False


class _Cloud(msgspec.Struct, frozen=True, kw_only=True):
    scheme: str
    instances: list[CloudInstance]


class NativeCcm:
    """The program and its cloud; it ignores Nodes whose providerID has another scheme."""

    USER: Final = "native-ccm"

    def __init__(self, run_dir: Path, scheme: str) -> None:
        self.child: ChildProcess
        self._file = run_dir / "cloud.json"
        self._scheme = scheme
        self._instances: dict[str, CloudInstance] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        run_dir: Path,
        api: ControlPlane,
        *,
        scheme: str,
        instances: Sequence[CloudInstance] = (),
        controllers: Sequence[str] = (CLOUD_NODE, NODE_LIFECYCLE),
        monitor_seconds: float = 1.0,
    ) -> AsyncIterator[NativeCcm]:
        """Run these controllers as a user with all permissions, until the context ends.

        `monitor_seconds` is the interval between checks of Nodes that are not ready (default elsewhere: 5).
        Raises ChildExited at the end if the program has exited.
        """
        make_directory(run_dir)
        native = cls(run_dir, scheme)
        native.put_instances(*instances)
        kubeconfig = api.kubeconfig(cls.USER, ["system:masters"])
        flags = _build_flags(native._file, kubeconfig, controllers, monitor_seconds)
        native.child = ChildProcess.start("native-ccm", [await build_program(NATIVE), *flags], run_dir)
        try:
            yield native
            if not native.child.is_running:
                raise ChildExited(f"the native cloud controller manager ended:\n{native.child.tail()}")
        finally:
            await native.child.kill()

    def put_instances(self, *instances: CloudInstance) -> None:
        """Create or replace these machines."""
        self._instances |= {each.name: each for each in instances}
        self._write_cloud_file()

    def shut_down(self, name: str) -> None:
        """Switch the machine off; it still exists."""
        self.put_instances(msgspec.structs.replace(self._instances[name], shutdown=True))

    def terminate(self, name: str) -> None:
        """Remove the machine from the cloud."""
        del self._instances[name]
        self._write_cloud_file()

    def _write_cloud_file(self) -> None:
        cloud = _Cloud(scheme=self._scheme, instances=list(self._instances.values()))
        fresh = self._file.with_suffix(".fresh")
        fresh.write_bytes(msgspec.json.encode(cloud))
        fresh.replace(self._file)


def _build_flags(
    cloud: Path, kubeconfig: Path, controllers: Sequence[str], monitor_seconds: float
) -> list[str]:
    return [
        "--cloud-provider=native",
        f"--cloud-config={cloud}",
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        "--secure-port=0",
        "--webhook-secure-port=0",
        "--authentication-skip-lookup",
        "--configure-cloud-routes=false",
        f"--node-monitor-period={monitor_seconds:g}s",
        "--v=2",
    ]
