"""A cluster whose Nodes are servers behind a router of Neutron itself, for tests of routes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.testbed.clouds.api_server import SimApiServer
from libs.testbed.clouds.openstack_services.services import RealOpenStack, RouterProject
from libs.testbed.sim_apiserver.server import SimApiServer as SimKubernetes
from tests.clouds.balancer_actors import BalancerCluster
from tests.clouds.route_actors import CONTROLLERS, RouteCluster
from tests.contract.clouds.accounts import SECRET, OpenStackAccount


def get_address(port: dict[str, Any]) -> str:
    address: str = port["fixed_ips"][0]["ip_address"]
    return address


def open_router(server: SimApiServer[RealOpenStack], account: OpenStackAccount) -> RouterProject:
    """The router of earlier tests and its project, or a new one: Neutron needs a second to make both."""
    services, state = server.cloud.services, server.cloud.state
    kept = services.kept_router
    if kept is None:
        services.kept_router = RouterProject(services, account.project)
        return services.kept_router
    state.project_names[kept.id] = state.project_names.pop(account.project.id)
    kept.sim = account.project = state.enter_region(kept.id, "RegionOne")
    account.replace_secret(SECRET)
    kept.clear()
    return kept


class RouterCluster(RouteCluster):
    """The cluster of the tests of routes, with a router instead of a network."""

    def __init__(self, cluster: BalancerCluster, server: SimApiServer[RealOpenStack], folder: Path) -> None:
        self.cluster, self.server = cluster, server
        account = OpenStackAccount(server, user="prod")  # type: ignore[arg-type]  # the same cloud, with more
        self.behind = open_router(server, account)
        self.network = {"id": self.behind.router}
        self.file = account.write_credential(folder, SECRET)
        self.file.write_text(f"{self.file.read_text()}\n[Route]\nrouter-id = {self.behind.router}\n")

    @classmethod
    @asynccontextmanager
    async def open(cls, server: SimApiServer[RealOpenStack], folder: Path) -> AsyncIterator["RouterCluster"]:
        """With a watcher, and without the process of the account."""
        async with (
            SimKubernetes.start(folder / "kubernetes") as api_server,
            BalancerCluster.open(api_server, folder) as cluster,
            cluster.run_watcher(controllers=CONTROLLERS),
        ):
            yield cls(cluster, server, folder)

    def run_account(self, **settings: Any) -> Any:
        """The account's process, whose router its credential file names."""
        own: dict[str, Any] = {
            "accounts": ("openstack/prod",),
            "credential_file": self.file,
            "endpoint": "",
            "route_networks": ("prod",),
        }
        return super().run_account(**(own | settings))

    async def attach(self, name: str, *pod_cidrs: str) -> dict[str, Any]:
        """Create a server, its port and its Node; return the port."""
        server_id = self.behind.sim.add_server(name)
        port = self.behind.add_port(server_id)
        await self.register(name, f"openstack:///{server_id}", *pod_cidrs)
        return port

    def delete_server(self, port: dict[str, Any]) -> None:
        """Nova deletes the server, and keeps the port that a user has created."""
        self.behind.sim.delete_server(port["device_id"])
        self.behind.send("PUT", f"/ports/{port['id']}", port={"device_id": ""})

    @property
    def routes(self) -> set[tuple[str, str]]:
        return self.behind.list_routes()

    def list_writes(self) -> list[str]:
        return [each.path for each in self.server.requests if each.method == "PUT"]
