"""A cloud's own cloud controller manager, built with k8s.io/cloud-provider; the cloud is a file."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from libs.common.contract.kube_service import LoadBalancerIngress
from libs.testbed.child_process import ChildExited, ChildProcess, make_directory
from libs.testbed.control_plane.build import NATIVE, build_program
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.pki import write_private

CLOUD_NODE: Final = "cloud-node-controller"
NODE_LIFECYCLE: Final = "cloud-node-lifecycle-controller"
SERVICE_LB: Final = "service-lb-controller"
NODE_ROUTE: Final = "node-route-controller"


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
    outside_network: bool = False  # no route can lead to it


class BalancerTreatment(msgspec.Struct, frozen=True, kw_only=True):
    """How the cloud treats the load balancer of one Service."""

    ingress: tuple[LoadBalancerIngress, ...] = ()
    error: str = ""  # of every write; "" = success
    # After a failed creation; 0 = by the service controller's own back-off, which begins with 5 s
    retry_seconds: float = 0.0


class _Balancer(msgspec.Struct, frozen=True):
    service: str
    nodes: tuple[str, ...]


class NativeRoute(msgspec.Struct, frozen=True):
    """A route of the cloud; `node` is "" if it leads to no instance of the cluster."""

    destination: str
    node: str


class _Cloud(msgspec.Struct, frozen=True, kw_only=True):
    scheme: str
    instances: list[CloudInstance]
    treatments: dict[str, BalancerTreatment]
    refused_destinations: list[str]


class NativeCcm:
    """The program and its cloud; it ignores Nodes whose providerID has another scheme."""

    USER: Final = "native-ccm"

    def __init__(self, run_dir: Path, scheme: str) -> None:
        self.child: ChildProcess
        self._file = run_dir / "cloud.json"
        self._scheme = scheme
        self._instances: dict[str, CloudInstance] = {}
        self._treatments: dict[str, BalancerTreatment] = {}
        self._refused_destinations: list[str] = []
        self._balancers = make_directory(run_dir / "balancers")
        self._routes = make_directory(run_dir / "routes")

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
        cluster_cidrs: Sequence[str] = (),
    ) -> AsyncIterator[NativeCcm]:
        """Run these controllers as a user with all permissions, until the context ends.

        `monitor_seconds` is the interval between checks of Nodes that are not ready (default elsewhere: 5).
        The route controller runs only with `cluster_cidrs`: it deletes routes inside them.
        Raises ChildExited at the end if the program has exited.
        """
        native = cls(run_dir, scheme)
        native.put_instances(*instances)
        kubeconfig = api.kubeconfig(cls.USER, ["system:masters"])
        flags = _build_flags(native._file, kubeconfig, controllers, monitor_seconds)
        flags += (
            [f"--cluster-cidr={','.join(cluster_cidrs)}", "--route-reconciliation-period=1s"]
            if cluster_cidrs
            else ["--configure-cloud-routes=false"]
        )
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

    def treat_balancer(self, service: str, treatment: BalancerTreatment) -> None:
        """Treat the load balancer of this Service (`<namespace>/<name>`) so from now on."""
        self._treatments[service] = treatment
        self._write_cloud_file()

    def list_balancers(self) -> dict[str, tuple[str, ...]]:
        """List the names of the Nodes that are targets, by Service."""
        files = self._balancers.glob("*.json")
        balancers = [msgspec.json.decode(file.read_bytes(), type=_Balancer) for file in files]
        return {balancer.service: balancer.nodes for balancer in balancers}

    def refuse_routes(self, *destinations: str) -> None:
        """Create no route to these destinations, and to all others, from now on."""
        self._refused_destinations = list(destinations)
        self._write_cloud_file()

    def put_route(self, route: NativeRoute) -> None:
        """Create a route as another client does."""
        file = self._routes / f"{route.destination.replace('/', '_')}.json"
        file.write_bytes(msgspec.json.encode(route))

    def list_routes(self) -> list[NativeRoute]:
        """List all routes."""
        files = self._routes.glob("*.json")
        return [msgspec.json.decode(file.read_bytes(), type=NativeRoute) for file in files]

    def _write_cloud_file(self) -> None:
        cloud = _Cloud(
            scheme=self._scheme,
            instances=list(self._instances.values()),
            treatments=self._treatments,
            refused_destinations=self._refused_destinations,
        )
        write_private(self._file, msgspec.json.encode(cloud))


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
        f"--node-monitor-period={monitor_seconds:g}s",
        "--concurrent-service-syncs=32",
        "--kube-api-qps=500",
        "--kube-api-burst=500",
        "--v=2",
    ]
