"""A simulated Hetzner Cloud project with the servers of the demo, and what happens to two of them."""

import contextlib
import ipaddress
from collections.abc import AsyncIterator, Iterable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from libs.common.contract.services import (
    CSR,
    IPAM,
    LABELER,
    LIFECYCLE,
    LOAD_BALANCERS,
    ROUTES,
    ServiceSpec,
    expand_cloud,
)
from libs.testbed.clouds.hcloud.objects import make_network, make_server
from libs.testbed.clouds.hcloud.project import SimProject
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.kubelets import KubeletFleet, RequestRejected
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts
from libs.testbed.pki import write_private

ACCOUNT: Final = "demo"
PLATFORM: Final = "hcloud"
SPECS: Final[tuple[ServiceSpec, ...]] = (IPAM, LIFECYCLE, expand_cloud(ACCOUNT, LOAD_BALANCERS, ROUTES))
# Those of ipam, lifecycle and clouds are off by default.
_CONTROLLERS: Final = (
    *(spec.controller for spec in (LABELER, CSR, IPAM, LIFECYCLE)), LOAD_BALANCERS, ROUTES
)  # fmt: skip
COMMON_FLAGS: Final = (f"--controllers={','.join(each.display_name for each in _CONTROLLERS)}",)
# A Node is deleted on weaker evidence than by default, which would take 20 minutes: lifecycle warns about it.
LIFECYCLE_FLAGS: Final = (
    "--delete-preempted-gcp-spot=false",
    "--lifecycle-start-grace=30s",
    "--lifecycle-not-ready-time=30s",
    "--lifecycle-evidence-time=1m",
)
INCIDENT_SECONDS: Final = 45.0  # after all Nodes are ready
_MIN_SERVERS: Final = 4  # with fewer, nothing happens to them
SERVICES: Final = ("shop", "api", "mail")
_TOKEN: Final = "demo" * 16
_IP_RANGE: Final = "10.0.0.0/8"  # with the addresses of machines and pods
_SUBNET: Final = "10.64.0.0/10"


class DemoCloud:
    """The project, and its network."""

    def __init__(self, server: SimHcloudServer, run_dir: Path) -> None:
        self._project: SimProject = server.cloud.add_project(_TOKEN)
        network = make_network(self._project.next_id(), "pods") | {"ip_range": _IP_RANGE}
        network["subnets"] = [subnet | {"ip_range": _SUBNET} for subnet in network["subnets"]]
        token_file = run_dir / "token"
        write_private(token_file, _TOKEN.encode())
        self.flags: Sequence[str] = (
            f"--cloud-account=hcloud/{ACCOUNT}",
            f"--cloud-credential-file={token_file}",
            f"--cloud-endpoint={server.endpoint}",
            f"--load-balancer-default-account={ACCOUNT}",
            f"--load-balancer-option={ACCOUNT}/HCLOUD_LOAD_BALANCERS_LOCATION=fsn1",
            f"--route-network={ACCOUNT}={self._project.add('networks', network)}",
        )

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path) -> AsyncIterator["DemoCloud"]:
        """Serve the API of the cloud until the context ends."""
        async with SimHcloudServer.start(SimHcloud()) as server:
            yield cls(server, run_dir)

    def add_servers(self, machines: Iterable[SimMachineFacts]) -> None:
        """Create the server of each machine that names one."""
        (network,) = self._project.tables["networks"]
        for machine in _select(machines):
            external = next(each.address for each in machine.addresses if each.link == "external")
            server = make_server(
                _get_id(machine),
                machine.name,
                ipv4=str(ipaddress.ip_interface(external).ip),
                private=[(network, machine.reachable_at[0])],
            )
            self._project.add("servers", server)

    def switch_off(self, machine: SimMachineFacts) -> None:
        """Switch its server off."""
        self._project.update_server(_get_id(machine), status="off")

    def delete(self, machine: SimMachineFacts) -> None:
        """Delete its server."""
        self._project.remove("servers", _get_id(machine))


def _get_id(machine: SimMachineFacts) -> int:
    assert machine.platform is not None
    return int(machine.platform.instance_id)


def _select(machines: Iterable[SimMachineFacts]) -> list[SimMachineFacts]:
    return [each for each in machines if each.platform is not None and each.platform.platform == PLATFORM]


async def create_services(admin: KubeletFleet) -> None:
    """Create Services that want a load balancer. Raises RequestRejected."""
    for number, name in enumerate(SERVICES):
        port = {"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080 + number}
        body = {"metadata": {"name": name}, "spec": {"type": "LoadBalancer", "ports": [port]}}
        await admin.send("POST", "/api/v1/namespaces/default/services", body=body)


async def lose_servers(
    cloud: DemoCloud,
    fleet: MachineFleet,
    kubelets: KubeletFleet,
    machines: Iterable[SimMachineFacts],
) -> list[str]:
    """Switch the second last server off and delete the last one; return a line about each.

    Their machines and kubelets are silent then. Nothing happens to fewer than four servers.
    """
    servers = _select(machines)
    if len(servers) < _MIN_SERVERS:
        return []
    *_, off, gone = servers
    await fleet.delete_machines(off.id, gone.id)
    cloud.switch_off(off)
    cloud.delete(gone)
    for machine in (off, gone):
        try:
            await kubelets.set_unreachable(machine.name)
        except RequestRejected as rejected:
            if rejected.response.status != HTTPStatus.NOT_FOUND:  # the user may have deleted the Node
                raise
    return [
        f"server {off.name} is off: its Node will get the shutdown taint",
        f"server {gone.name} is deleted: its Node and its route will be, too",
    ]
