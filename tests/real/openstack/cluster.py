"""A cluster with Services and Nodes, whose account is a project of Octavia and Neutron themselves."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.testbed.clouds.api_server import SimApiServer
from libs.testbed.clouds.openstack_services.services import BalancerProject, RealOpenStack
from libs.testbed.sim_apiserver.server import SimApiServer as SimKubernetes
from services.cloud.service import CloudService
from tests.bus_actors import wait_until
from tests.clouds.balancer_actors import BalancerCluster
from tests.contract.clouds.accounts import SECRET, OpenStackAccount

# Seconds. On an idle machine, Octavia takes one for a load balancer, and two for its end.
PATIENCE = 240.0
SECTION = """
[LoadBalancer]
subnet-id = {subnet}
floating-network-id = {external}
"""


class OpenStackCluster:
    """The Services, Nodes and processes of `kube`, whose own cloud is not used."""

    def __init__(self, kube: BalancerCluster, server: SimApiServer[RealOpenStack], folder: Path) -> None:
        self.kube, self.server = kube, server
        account = OpenStackAccount(server, user="prod")  # type: ignore[arg-type]  # the same cloud, with more
        self.project = BalancerProject(server.cloud.services, account.project)
        self.file = account.write_credential(folder, SECRET)
        place = {"subnet": self.project.subnet, "external": self.project.external}
        self.file.write_text(self.file.read_text() + SECTION.format(**place))

    @classmethod
    @asynccontextmanager
    async def open(
        cls, server: SimApiServer[RealOpenStack], folder: Path
    ) -> AsyncIterator["OpenStackCluster"]:
        """With a watcher, and without the process of the account."""
        async with (
            SimKubernetes.start(folder / "kubernetes") as api_server,
            BalancerCluster.open(api_server, folder) as kube,
            kube.run_watcher(),
        ):
            yield cls(kube, server, folder)

    @asynccontextmanager
    async def run_account(self, **settings: Any) -> AsyncIterator[CloudService]:
        """The process of the account."""
        own: dict[str, Any] = {
            "accounts": ("openstack/prod",),
            "credential_file": self.file,
            "endpoint": "",
        }
        async with self.kube.run_account("prod", **(own | settings)) as service:
            yield service

    async def join(self, name: str) -> str:
        """Create a server and its Node; return its address."""
        server_id = self.project.sim.add_server(name)
        address = f"10.0.0.{10 + len(self.project.sim.region.servers)}"
        body = {"metadata": {"name": name}, "spec": {"providerID": f"openstack:///{server_id}"}}
        created = await self.kube.admin.request("POST", "/api/v1/nodes", body=body)
        assert created.status == 201, created
        addresses = [{"type": "InternalIP", "address": address}]
        await self.kube.api.patch_node_status(name, {"status": {"addresses": addresses}})
        return address

    async def patch_service(self, name: str, body: Mapping[str, Any]) -> None:
        """Change a Service by a merge patch."""
        path = f"/api/v1/namespaces/default/services/{name}"
        content_type = "application/merge-patch+json"
        patched = await self.kube.admin.request("PATCH", path, body=dict(body), content_type=content_type)
        assert patched.status == 200, patched

    def list_targets(self) -> set[str]:
        """The addresses behind all ports."""
        pools = self.project.list_parts("pools")
        return {each["address"] for pool in pools for each in self.project.list_members(pool["id"])}

    def list_ports(self) -> set[int]:
        """The ports of all load balancers."""
        return {each["protocol_port"] for each in self.project.list_parts("listeners")}

    async def wait_until_gone(self, name: str) -> None:
        """Wait until the Service is gone."""

        async def is_gone() -> bool:
            return await self.kube.find_service(name) is None

        await wait_until(is_gone, f"{name} is gone", PATIENCE)

    async def wait_for_end(self, name: str) -> None:
        """Wait until the Service is gone, and check that nothing paid is left."""
        await self.wait_until_gone(name)
        for kind in ("loadbalancers", "listeners", "pools", "healthmonitors", "floatingips"):
            assert self.project.list_parts(kind) == []
