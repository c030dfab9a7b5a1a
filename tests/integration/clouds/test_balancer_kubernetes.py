"""Load balancers on a real API server, by processes with the rights of their specs and no others."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.contract.services import LOAD_BALANCERS, WATCHER, expand_cloud
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.service_permissions import build_role_objects, get_collection_path, get_user_name
from tests.bus_actors import wait_until
from tests.clouds.balancer_actors import BalancerCluster, has_finalizer

ACCOUNT = expand_cloud("prod", LOAD_BALANCERS)


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane that removes no Node and no Service by itself."""
    async with ControlPlane.start(
        tmp_path_factory.mktemp("balancer-control-plane"), controller_manager=False
    ) as running:
        yield running


@pytest.fixture
async def cluster(own: ControlPlane, tmp_path: Path) -> AsyncIterator[BalancerCluster]:
    users = {"watcher": get_user_name(WATCHER), "prod": get_user_name(ACCOUNT)}
    async with BalancerCluster.open(own, tmp_path, users=users) as cluster:
        for spec in (WATCHER, ACCOUNT):
            for manifest in build_role_objects(spec):
                await cluster.admin.request("POST", get_collection_path(manifest), body=manifest)
        async with cluster.run_watcher():
            yield cluster


async def test_the_rights_of_the_specs_suffice_for_the_whole_life_of_a_load_balancer(
    own: ControlPlane, cluster: BalancerCluster
):
    mark = own.audit_mark()
    first = await cluster.join("lb-1")
    async with cluster.run_account():
        await cluster.create_service("web")
        service = await cluster.wait_for_address("web")
        assert has_finalizer(service)
        await wait_until(lambda: cluster.list_targets() == {first}, "a target")
        second = await cluster.join("lb-2")
        await wait_until(lambda: cluster.list_targets() == {first, second}, "a Node joins")
        await cluster.admin.delete_node("lb-1")
        await wait_until(lambda: cluster.list_targets() == {second}, "a Node leaves")
        await cluster.create_service("bad", loadBalancerSourceRanges=["10.0.0.0/8"])

        async def is_blocked() -> bool:
            found = await cluster.find_service("bad")
            return found is not None and bool(found.status.conditions)

        await wait_until(is_blocked, "a condition")
        await cluster.delete_service("bad")
        await cluster.delete_service("web")
        await cluster.wait_for_end("web")
        await cluster.wait_for_event("web", "DeletedLoadBalancer")
    await cluster.admin.delete_node("lb-2")
    users = {get_user_name(WATCHER), get_user_name(ACCOUNT)}
    requests = [each for each in own.audit_counts(mark) if each.user in users]
    assert requests
    assert not [each for each in requests if each.forbidden]


async def test_a_process_that_was_killed_is_continued(cluster: BalancerCluster):
    """Its create has taken effect, and nothing has read the answer."""
    cluster.cloud.add_fault("hang", "/load_balancers", method="POST", count=1)
    hanging = cluster.cloud.faults[-1]
    async with cluster.run_account():
        await cluster.create_service("again")
        await wait_until(lambda: hanging.count == 0, "the create hangs")
    async with cluster.run_account():
        await cluster.wait_for_address("again")
        assert len(cluster.balancers) == 1
        await cluster.delete_service("again")
        await cluster.wait_for_end("again")
