"""A cluster whose Nodes are servers in a network of a simulated Hetzner Cloud, for tests of routes."""

from typing import Any

from libs.common.bus.memory.bus import MemoryBus
from libs.common.contract.events import Leading
from libs.common.contract.node import NETWORK_UNAVAILABLE, NodeCondition
from libs.common.contract.services import RECORDS_NAMESPACE, get_route_record_name
from libs.common.contract.subjects import LEADING
from tests.builders import make_cluster_networks
from tests.bus_actors import wait_for_value
from tests.clouds.balancer_actors import BalancerCluster

CONTROLLERS = ("cloud-node", "node-route-controller")


class RouteCluster:
    """The cluster of the tests of load balancers, with servers in a network."""

    def __init__(self, cluster: BalancerCluster) -> None:
        self.cluster = cluster
        self.project = cluster.project
        (self.network,) = self.project.tables["networks"].values()
        self._count = 1

    def run_account(self, **settings: Any) -> Any:
        """The account's process with routes and without load balancers."""
        chosen: dict[str, Any] = {
            "controllers": CONTROLLERS,
            "balancer_classes": (),
            "route_networks": (f"prod={self.network['id']}",),
            "route_pod_networks": ("prod=10.0.0.0/8",),
        }
        return self.cluster.run_account(**(chosen | settings))

    async def join(self, name: str, *pod_cidrs: str, provider_id: str = "", **server: Any) -> tuple[int, str]:
        """Create a server and its Node; return the server's id and its address in the network."""
        self._count += 1
        address = f"10.0.1.{self._count}"
        server = {"private": [(self.network["id"], address)]} | server
        server_id = self.project.add_server(name, **server)
        await self.register(name, provider_id or f"hcloud://{server_id}", *pod_cidrs)
        return server_id, address

    async def register(self, name: str, provider_id: str, *pod_cidrs: str) -> None:
        """Create a Node."""
        spec: dict[str, Any] = {"providerID": provider_id}
        spec |= {"podCIDR": pod_cidrs[0], "podCIDRs": list(pod_cidrs)} if pod_cidrs else {}
        body = {"metadata": {"name": name}, "spec": spec}
        created = await self.cluster.admin.request("POST", "/api/v1/nodes", body=body)
        assert created.status == 201, created

    async def find_condition(self, name: str) -> NodeCondition | None:
        return (await self.cluster.api.get_node(name)).find_condition(NETWORK_UNAVAILABLE)

    async def wait_for_condition(self, name: str, reason: str, seconds: float = 30.0) -> NodeCondition:
        """The condition of the Node, once it has this reason."""
        return await wait_for_value(
            lambda: self.find_condition(name),
            lambda found: found.reason == reason,
            f"{reason} of {name}",
            seconds,
        )

    async def report_pod_networks(self, *pod_cidrs: str) -> None:
        """Publish the networks as metadata does, from the machine config of a control plane."""
        bus = MemoryBus(self.cluster.bus_server)
        last = await bus.get_last(LEADING)
        assert last is not None
        assert isinstance(last.event, Leading)
        await bus.publish(make_cluster_networks(stream_id=last.event.stream_id, pod_cidrs=pod_cidrs))
        await bus.close()

    async def read_record(self) -> str:
        """The record of the network; "" without one."""
        name = get_route_record_name("prod")
        config_map = await self.cluster.api.get_config_map(RECORDS_NAMESPACE, name)
        return config_map.data.get(str(self.network["id"]), "")

    async def delete_record(self) -> None:
        """Delete the ConfigMap: another cluster on this API server would take it for its own."""
        path = f"/api/v1/namespaces/{RECORDS_NAMESPACE}/configmaps/{get_route_record_name('prod')}"
        await self.cluster.admin.request("DELETE", path)

    @property
    def routes(self) -> set[tuple[str, str]]:
        return {(each["destination"], each["gateway"]) for each in self.network["routes"]}

    def list_writes(self) -> list[str]:
        return [each.path for each in self.cluster.cloud.requests if each.method != "GET"]
