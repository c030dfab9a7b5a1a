"""Routes to the pods of Nodes from end to end, with Neutron itself as the cloud."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.testbed.clouds.api_server import SimApiServer
from libs.testbed.clouds.openstack_services.services import RealOpenStack
from tests.bus_actors import wait_until
from tests.clocks import RunningClock
from tests.clouds.balancer_actors import advance
from tests.real.openstack.route_cluster import RouterCluster, get_address

POD_CIDR, OTHER_POD_CIDR = "10.244.1.0/24", "10.244.2.0/24"
ADD, PORT = ".*/add_extraroutes", ".*/ports/.*"
PATIENCE = 60.0


@pytest.fixture
async def cluster(server: SimApiServer[RealOpenStack], tmp_path: Path) -> AsyncIterator[RouterCluster]:
    async with RouterCluster.open(server, tmp_path) as opened:
        yield opened


async def test_a_node_gets_route_and_pair_which_go_with_node_and_server(cluster: RouterCluster):
    async with cluster.run_account():
        port = await cluster.attach("web-1", POD_CIDR, "fd00::/64")
        condition = await cluster.wait_for_condition("web-1", "RouteCreated")
        router = cluster.behind.router
        assert condition.message == f"Router {router} routes {POD_CIDR} to this Node", "it has no IPv6"
        assert cluster.routes == {(POD_CIDR, get_address(port))}
        assert cluster.behind.list_pairs(port["id"]) == {POD_CIDR}
        await cluster.cluster.admin.delete_node("web-1")
        other = await cluster.attach("web-2", OTHER_POD_CIDR)
        await cluster.wait_for_condition("web-2", "RouteCreated")
        assert (POD_CIDR, get_address(port)) in cluster.routes, "its server exists"
    cluster.delete_server(port)
    async with cluster.run_account():
        left = {(OTHER_POD_CIDR, get_address(other))}
        await wait_until(lambda: cluster.routes == left, "the route is gone", PATIENCE)
        await wait_until(lambda: cluster.behind.list_pairs(port["id"]) == set(), "its pair, too", PATIENCE)
    assert cluster.behind.list_pairs(other["id"]) == {OTHER_POD_CIDR}


async def test_a_process_that_crashed_between_pair_and_route_is_continued(cluster: RouterCluster):
    cluster.server.add_fault("hang", ADD, method="PUT", count=1, effect="never")
    hanging = cluster.server.faults[-1]
    async with cluster.run_account():
        port = await cluster.attach("web-1", POD_CIDR)
        await wait_until(lambda: hanging.count == 0, "the write hangs", PATIENCE)
    async with cluster.run_account():
        await cluster.wait_for_condition("web-1", "RouteCreated")
    assert cluster.routes == {(POD_CIDR, get_address(port))}
    assert cluster.behind.list_pairs(port["id"]) == {POD_CIDR}


async def test_a_pair_without_its_route_goes_with_the_node(cluster: RouterCluster):
    """The process that wrote it has crashed before the route."""
    cluster.server.add_fault("hang", ADD, count=1, effect="never")
    hanging = cluster.server.faults[-1]
    async with cluster.run_account():
        port = await cluster.attach("web-1", POD_CIDR)
        await wait_until(lambda: hanging.count == 0, "the route is not there", PATIENCE)
    assert cluster.behind.list_pairs(port["id"]) == {POD_CIDR}
    await cluster.cluster.admin.delete_node("web-1")
    cluster.delete_server(port)
    async with cluster.run_account():
        await wait_until(lambda: cluster.behind.list_pairs(port["id"]) == set(), "the pair is gone", PATIENCE)
    assert cluster.routes == set()


async def test_a_process_that_crashed_between_both_deletions_is_continued(cluster: RouterCluster):
    async with cluster.run_account():
        port = await cluster.attach("web-1", POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
    await cluster.cluster.admin.delete_node("web-1")
    cluster.delete_server(port)
    cluster.server.add_fault("hang", PORT, method="PUT", count=1, effect="never")
    hanging = cluster.server.faults[-1]
    async with cluster.run_account():
        await wait_until(lambda: hanging.count == 0, "the route is gone, and the pair is not", PATIENCE)
    assert cluster.routes == set()
    async with cluster.run_account():
        await wait_until(lambda: cluster.behind.list_pairs(port["id"]) == set(), "the pair is gone", PATIENCE)


async def test_an_equal_route_with_its_pair_is_recorded_and_not_written(cluster: RouterCluster):
    port = await cluster.attach("web-1", POD_CIDR)
    routes = [{"destination": POD_CIDR, "nexthop": get_address(port)}]
    add = f"/routers/{cluster.behind.router}/add_extraroutes"
    cluster.behind.send("PUT", add, router={"routes": routes})
    pairs = [{"ip_address": POD_CIDR}, {"ip_address": "10.0.0.200"}]
    cluster.behind.send("PUT", f"/ports/{port['id']}", port={"allowed_address_pairs": pairs})
    async with cluster.run_account():
        await cluster.wait_for_condition("web-1", "RouteCreated")
    assert cluster.list_writes() == []
    assert get_address(port) in await cluster.read_record()
    await cluster.cluster.admin.delete_node("web-1")
    cluster.delete_server(port)
    async with cluster.run_account():
        await wait_until(lambda: cluster.routes == set(), "the route is gone", PATIENCE)
    assert cluster.behind.list_pairs(port["id"]) == {"10.0.0.200"}


async def test_the_node_of_a_full_router_without_a_shown_limit_names_the_rejection(cluster: RouterCluster):
    cluster.behind.retire()
    cluster.behind.set_route_quota(1)

    def hide(request: Any, answer: Any) -> None:
        if "/quotas/" in request.path:
            del answer.document["quota"]["router_route"]

    cluster.server.after_answer = hide
    async with cluster.run_account():
        await cluster.attach("web-1", POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
        await cluster.attach("web-2", OTHER_POD_CIDR)
        condition = await cluster.wait_for_condition("web-2", "NoRouteCreated")
        assert "the cloud rejects it: HTTP 409: Quota exceeded for resources" in condition.message
        await cluster.cluster.wait_for_event("web-2", "FailedToCreateRoute")
        cluster.behind.set_route_quota(2)
        await cluster.wait_for_condition("web-2", "RouteCreated")


async def test_the_node_of_a_server_without_a_port_behind_the_router_names_the_missing_port(
    cluster: RouterCluster,
):
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as service:
        server_id = cluster.behind.sim.add_server("web-1")
        await cluster.register("web-1", f"openstack:///{server_id}", POD_CIDR)
        condition = await cluster.wait_for_condition("web-1", "NoRouteCreated")
        assert f"is not attached to router {cluster.behind.router}" in condition.message
        await cluster.cluster.wait_for_event("web-1", "FailedToCreateRoute")
        cluster.behind.add_port(server_id)
        await advance(service, clock, 60)
        await cluster.wait_for_condition("web-1", "RouteCreated", PATIENCE)
