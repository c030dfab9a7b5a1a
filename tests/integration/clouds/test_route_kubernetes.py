"""Routes on a real API server, by processes with the rights of their specs and no others."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.contract.services import ROUTES, WATCHER, expand_cloud
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.service_permissions import build_role_objects, get_collection_path, get_user_name
from tests.bus_actors import wait_until
from tests.clouds.balancer_actors import BalancerCluster
from tests.clouds.route_actors import CONTROLLERS, RouteCluster

ACCOUNT = expand_cloud("prod", ROUTES)


@pytest.fixture
async def nodes(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[RouteCluster]:
    """A cluster whose processes have only the rights of their specs; its Nodes go at the end."""
    users = {"watcher": get_user_name(WATCHER), "prod": get_user_name(ACCOUNT)}
    async with BalancerCluster.open(control_plane, tmp_path, users=users) as cluster:
        for spec in (WATCHER, ACCOUNT):
            for manifest in build_role_objects(spec):
                await cluster.admin.request("POST", get_collection_path(manifest), body=manifest)
        async with cluster.run_watcher(controllers=CONTROLLERS):
            routes = RouteCluster(cluster)
            yield routes
        await routes.delete_record()
        for name in ("route-1", "route-2", "route-3"):
            await cluster.admin.delete_node(name)


async def test_the_rights_of_the_specs_suffice_for_the_whole_life_of_a_route(
    control_plane: ControlPlane, nodes: RouteCluster
):
    mark = control_plane.audit_mark()
    async with nodes.run_account():
        server_id, first = await nodes.join("route-1", "10.244.1.0/24")
        await nodes.wait_for_condition("route-1", "RouteCreated")
        await nodes.join("route-2", "10.244.2.0/24", private=())
        await nodes.wait_for_condition("route-2", "NoRouteCreated")
        await nodes.cluster.wait_for_event("route-2", "FailedToCreateRoute")
        assert first in await nodes.read_record()
        nodes.project.remove("servers", server_id)
        await nodes.cluster.admin.delete_node("route-1")
        _, third = await nodes.join("route-3", "10.244.3.0/24")
        await nodes.wait_for_condition("route-3", "RouteCreated")
        await wait_until(lambda: nodes.routes == {("10.244.3.0/24", third)}, "the first route goes")
    users = {get_user_name(WATCHER), get_user_name(ACCOUNT)}
    requests = [each for each in control_plane.audit_counts(mark) if each.user in users]
    assert requests
    assert not [each for each in requests if each.forbidden]
