"""Routes to the pods of Nodes from end to end: API server, watcher, the account's process, and its cloud."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.node import NETWORK_UNAVAILABLE, NodeCondition
from libs.common.contract.services import RECORDS_NAMESPACE, get_route_record_name
from libs.testbed.sim_apiserver.server import SimApiServer
from services.cloud.service import CloudService
from tests.balancer_actors import TOKEN, BalancerCluster
from tests.bus_actors import wait_for_value, wait_until

_CONTROLLERS = ("cloud-node", "node-route-controller")
_POD_CIDR = "10.244.1.0/24"


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
            "controllers": _CONTROLLERS,
            "balancer_classes": (),
            "route_networks": (f"prod={self.network['id']}",),
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

    async def wait_for_condition(self, name: str, reason: str) -> NodeCondition:
        """The condition of the Node, once it has this reason."""
        return await wait_for_value(
            lambda: self.find_condition(name), lambda found: found.reason == reason, f"{reason} of {name}"
        )

    async def read_record(self) -> str:
        """The record of the network; "" without one."""
        name = get_route_record_name("prod")
        config_map = await self.cluster.api.get_config_map(RECORDS_NAMESPACE, name)
        return config_map.data.get(str(self.network["id"]), "")

    @property
    def routes(self) -> set[tuple[str, str]]:
        return {(each["destination"], each["gateway"]) for each in self.network["routes"]}

    def list_writes(self) -> list[str]:
        return [each.path for each in self.cluster.cloud.requests if each.method != "GET"]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RouteCluster]:
    async with (
        SimApiServer.start(tmp_path / "kubernetes") as api_server,
        BalancerCluster.open(api_server, tmp_path) as cluster,
        cluster.run_watcher(controllers=_CONTROLLERS),
    ):
        yield RouteCluster(cluster)


async def test_a_node_gets_its_route_which_goes_with_node_and_server(cluster: RouteCluster):
    async with cluster.run_account():
        server_id, address = await cluster.join("web-1", _POD_CIDR, "fd00::/64")
        condition = await cluster.wait_for_condition("web-1", "RouteCreated")
        assert condition.status == "False"
        assert cluster.routes == {(_POD_CIDR, address)}, "the cloud has no routes for IPv6"
        await cluster.cluster.admin.delete_node("web-1")
        _, other = await cluster.join("web-2", "10.244.2.0/24")
        await cluster.wait_for_condition("web-2", "RouteCreated")
        assert cluster.routes == {(_POD_CIDR, address), ("10.244.2.0/24", other)}, "its server exists"
    cluster.project.remove("servers", server_id)
    async with cluster.run_account():
        await wait_until(lambda: cluster.routes == {("10.244.2.0/24", other)}, "the route is gone")


async def test_a_server_that_registers_again_with_another_pod_cidr_loses_the_former_route(
    cluster: RouteCluster,
):
    async with cluster.run_account():
        server_id, address = await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
        await cluster.cluster.admin.delete_node("web-1")
        await cluster.register("web-1", f"hcloud://{server_id}", "10.244.9.0/24")
        await wait_until(lambda: cluster.routes == {("10.244.9.0/24", address)}, "only the new route")


async def test_a_pod_cidr_that_another_node_has_now_leads_there(cluster: RouteCluster):
    async with cluster.run_account():
        await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
        await cluster.cluster.admin.delete_node("web-1")
        _, address = await cluster.join("web-2", _POD_CIDR)
        await wait_until(lambda: cluster.routes == {(_POD_CIDR, address)}, "the route to the new Node")
        await cluster.wait_for_condition("web-2", "RouteCreated")


async def test_a_route_of_another_owner_stays_and_the_node_names_it(cluster: RouteCluster):
    foreign = {"destination": _POD_CIDR, "gateway": "10.0.0.99"}
    cluster.network["routes"].append(foreign)
    async with cluster.run_account():
        await cluster.join("web-1", _POD_CIDR)
        condition = await cluster.wait_for_condition("web-1", "NoRouteCreated")
        assert condition.status == "True"
        assert "a route of another owner exists: 10.244.1.0/24 via 10.0.0.99" in condition.message
    assert cluster.network["routes"] == [foreign]
    assert cluster.list_writes() == []


async def test_an_equal_route_is_recorded_and_not_written(cluster: RouteCluster):
    _, address = await cluster.join("web-1", _POD_CIDR)
    cluster.network["routes"].append({"destination": _POD_CIDR, "gateway": address})
    async with cluster.run_account():
        await cluster.wait_for_condition("web-1", "RouteCreated")
    assert cluster.list_writes() == []
    assert address in await cluster.read_record()


async def test_a_rejected_route_is_an_event_and_does_not_stop_others(cluster: RouteCluster):
    async with cluster.run_account():
        await cluster.join("web-1", "10.0.1.128/25")  # overlaps the subnet
        await cluster.cluster.wait_for_event("web-1", "FailedToCreateRoute")
        await cluster.join("web-2", _POD_CIDR)
        await cluster.wait_for_condition("web-2", "RouteCreated")
        condition = await cluster.wait_for_condition("web-1", "NoRouteCreated")
        assert "invalid_input" in condition.message


async def test_a_full_network_is_told_on_the_node(cluster: RouteCluster):
    cluster.project.max_routes = 1
    async with cluster.run_account():
        await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
        await cluster.join("web-2", "10.244.2.0/24")
        condition = await cluster.wait_for_condition("web-2", "NoRouteCreated")
        assert "resource_limit_exceeded" in condition.message


async def test_nodes_of_other_clouds_and_without_pod_cidrs_are_not_touched(cluster: RouteCluster):
    async with cluster.run_account():
        await cluster.join("rack-1", "10.244.3.0/24", provider_id="talos://metal/10.0.0.5")
        await cluster.join("idle", provider_id="")
        await cluster.register("elsewhere", "hcloud://999999", "10.244.4.0/24")
        await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
        for name in ("rack-1", "idle", "elsewhere"):
            assert await cluster.find_condition(name) is None
    assert {destination for destination, _ in cluster.routes} == {_POD_CIDR}


async def test_a_server_outside_the_network_is_told_on_the_node(cluster: RouteCluster):
    async with cluster.run_account():
        await cluster.join("web-1", _POD_CIDR, private=())
        condition = await cluster.wait_for_condition("web-1", "NoRouteCreated")
        assert f"is not attached to network {cluster.network['id']}" in condition.message


async def test_a_dry_run_writes_nothing(cluster: RouteCluster):
    async with cluster.run_account(route_dry_run=True) as service:
        await cluster.join("web-1", _POD_CIDR)
        await wait_until(lambda: has_read_network(cluster, service), "the network is read")
    assert cluster.list_writes() == []
    assert await cluster.find_condition("web-1") is None


def has_read_network(cluster: RouteCluster, service: CloudService) -> bool:
    reads = [each for each in cluster.cluster.cloud.requests if each.path.startswith("/networks/")]
    return bool(reads) and service.problems() == ()


async def test_by_the_token_of_another_project_nothing_is_deleted(cluster: RouteCluster):
    async with cluster.run_account():
        server_id, _ = await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
    before = cluster.routes
    cluster.project.remove("servers", server_id)
    await cluster.cluster.admin.delete_node("web-1")
    cluster.cluster.cloud.cloud.add_project("b" * 64)
    cluster.cluster.token_file.write_text("b" * 64)
    async with cluster.run_account(bus_server=cluster.cluster.bus_server) as service:
        await wait_until(
            lambda: any("finds no network" in each for each in service.problems()), "the problem is told"
        )
        assert cluster.routes == before
        cluster.cluster.token_file.write_text(TOKEN)
        await wait_until(lambda: cluster.routes == set(), "by the right token, the route goes", 40)
