"""Routes to the pods of Nodes from end to end: API server, watcher, the account's process, and its cloud."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from libs.common.contract.node import Node
from libs.common.contract.services import LEASE_NAMESPACE, RECORDS_NAMESPACE, get_route_record_name
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Forbidden
from libs.common.kube.objects import ConfigMap
from libs.common.observability import metrics
from libs.testbed.sim_apiserver.server import SimApiServer
from services.cloud.service import CloudService
from tests.builders import make_node_gone, make_node_observed
from tests.bus_actors import wait_until
from tests.clocks import RunningClock
from tests.clouds.balancer_actors import TOKEN, BalancerCluster, advance
from tests.clouds.route_actors import CONTROLLERS, RouteCluster

_POD_CIDR = "10.244.1.0/24"
AnswerT = TypeVar("AnswerT")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[RouteCluster]:
    async with (
        SimApiServer.start(tmp_path / "kubernetes") as api_server,
        BalancerCluster.open(api_server, tmp_path) as cluster,
        cluster.run_watcher(controllers=CONTROLLERS),
    ):
        yield RouteCluster(cluster)


async def test_a_node_gets_its_route_which_goes_with_node_and_server(cluster: RouteCluster):
    async with cluster.run_account():
        server_id, address = await cluster.join("web-1", _POD_CIDR, "fd00::/64")
        condition = await cluster.wait_for_condition("web-1", "RouteCreated")
        assert condition.status == "False"
        assert when_compared() > 0
        assert cluster.routes == {(_POD_CIDR, address)}, "the cloud has no routes for IPv6"
        await cluster.cluster.admin.delete_node("web-1")
        _, other = await cluster.join("web-2", "10.244.2.0/24")
        await cluster.wait_for_condition("web-2", "RouteCreated")
        assert cluster.routes == {(_POD_CIDR, address), ("10.244.2.0/24", other)}, "its server exists"
    cluster.project.remove("servers", server_id)
    async with cluster.run_account():
        await wait_until(lambda: cluster.routes == {("10.244.2.0/24", other)}, "the route is gone")


async def test_a_route_goes_soon_after_the_node_of_a_server_that_was_found_while_it_joined(
    cluster: RouteCluster,
):
    async with cluster.run_account():
        _, first = await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")  # by a list of all servers
        server_id, _ = await cluster.join("web-2", "10.244.2.0/24")
        await cluster.wait_for_condition("web-2", "RouteCreated")  # by a query for the new one
        cluster.project.remove("servers", server_id)
        await cluster.cluster.admin.delete_node("web-2")
        await wait_until(lambda: cluster.routes == {(_POD_CIDR, first)}, "the route is gone")


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


async def test_no_route_leaves_the_pod_networks_that_a_control_plane_reports(cluster: RouteCluster):
    """A hostile kubelet registers its Node with the addresses of other machines."""
    async with cluster.run_account(route_pod_networks=()) as service:
        await cluster.join("web-1", _POD_CIDR)
        await wait_until(
            lambda: any("pod networks of the cluster are not known" in each for each in service.problems()),
            "the account waits for the pod networks",
        )
        assert cluster.list_writes() == []
        await cluster.join("hostile", "0.0.0.0/0")
        await cluster.report_pod_networks("10.244.0.0/16", "fd00::/48")
        await cluster.wait_for_condition("web-1", "RouteCreated")
        condition = await cluster.wait_for_condition("hostile", "NoRouteCreated")
        assert "outside the pod networks of the cluster, 10.244.0.0/16, fd00::/48" in condition.message
    assert {destination for destination, _ in cluster.routes} == {_POD_CIDR}


async def test_a_rejection_of_all_routes_is_not_repeated_for_each_node(cluster: RouteCluster):
    cluster.cluster.cloud.add_fault("forbidden", "/networks/.*", method="POST", effect="never")
    numbers = range(1, 13)
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as service:
        for number in numbers:
            await cluster.join(f"web-{number}", f"10.244.{number}.0/24")
        for number in numbers:
            condition = await cluster.wait_for_condition(f"web-{number}", "NoRouteCreated")
            assert "the cloud rejects it: forbidden" in condition.message
        assert len(cluster.list_writes()) < 6, "one after each pause, of 5 s and then longer"
        cluster.cluster.cloud.faults.clear()
        await advance(service, clock, 20)
        for number in numbers:
            await cluster.wait_for_condition(f"web-{number}", "RouteCreated")


class DenyingKube(KubeApi):
    """An admission webhook denies the status of one Node."""

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any]) -> Node:
        if name == "denied":
            raise Forbidden("admission webhook denied the request", status=403)
        return await super().patch_node_status(name, strategic_merge)


async def test_a_node_whose_status_kubernetes_denies_does_not_stop_others(cluster: RouteCluster):
    async with cluster.run_account(client=DenyingKube) as service:
        await cluster.join("denied", _POD_CIDR)
        await cluster.join("web-1", "10.244.2.0/24")
        await cluster.wait_for_condition("web-1", "RouteCreated")
        (problem,) = service.problems()
        assert "the condition of Node denied cannot be written" in problem
    assert {destination for destination, _ in cluster.routes} == {_POD_CIDR, "10.244.2.0/24"}


class CrashingKube(KubeApi):
    """The write of that number takes effect, and nothing reads the answer."""

    crashes_at = 0

    async def _lose(self, write: Awaitable[AnswerT]) -> AnswerT:
        answer = await write
        CrashingKube.crashes_at -= 1
        if CrashingKube.crashes_at == 0:
            await asyncio.Event().wait()
        return answer

    async def create_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        return await self._lose(super().create_config_map(namespace, config_map))

    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        return await self._lose(super().update_config_map(namespace, config_map))

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any]) -> Node:
        return await self._lose(super().patch_node_status(name, strategic_merge))


@pytest.mark.parametrize("write", [1, 2, 3])
async def test_a_process_that_crashed_after_any_write_to_kubernetes_is_continued(
    cluster: RouteCluster, write: int
):
    CrashingKube.crashes_at = write
    async with cluster.run_account(client=CrashingKube):
        _, address = await cluster.join("web-1", _POD_CIDR)
        await wait_until(lambda: CrashingKube.crashes_at == 0, "the write has taken effect")
    async with cluster.run_account():
        await cluster.wait_for_condition("web-1", "RouteCreated")
    assert cluster.routes == {(_POD_CIDR, address)}
    assert address in await cluster.read_record()


@pytest.mark.parametrize("effect", ["now", "never"])
async def test_a_process_that_crashed_while_it_created_a_route_is_continued(
    cluster: RouteCluster, effect: str
):
    cluster.cluster.cloud.add_fault("hang", "/networks/.*", method="POST", count=1, effect=effect)
    hanging = cluster.cluster.cloud.faults[-1]
    async with cluster.run_account():
        _, address = await cluster.join("web-1", _POD_CIDR)
        await wait_until(lambda: hanging.count == 0, "the create hangs")
    async with cluster.run_account():
        await cluster.wait_for_condition("web-1", "RouteCreated")
    assert cluster.routes == {(_POD_CIDR, address)}


async def test_a_process_that_lost_the_lease_reports_no_problem_of_routes(cluster: RouteCluster):
    settings = {"route_networks": ("prod=999",), "bus_server": cluster.cluster.bus_server}
    async with cluster.run_account(**settings) as service:
        await wait_until(
            lambda: any("finds no network 999" in each for each in service.problems()),
            "the problem is reported",
        )
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/talos-ccm-cloud-prod"
        taken = {"spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}}
        admin = cluster.cluster.admin
        await admin.send("PATCH", lease, body=taken, content_type="application/merge-patch+json")
        await wait_until(lambda: service.problems() == (), "another process leads")


async def test_a_record_from_a_backup_deletes_nothing(cluster: RouteCluster):
    """Its routes may have become another owner's meanwhile."""
    path = f"/api/v1/namespaces/{RECORDS_NAMESPACE}/configmaps"
    name, admin = get_route_record_name("prod"), cluster.cluster.admin
    async with cluster.run_account():
        server_id, address = await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
    backup = (await admin.send("GET", f"{path}/{name}"))["data"]
    await admin.send("DELETE", f"{path}/{name}")
    await admin.send("POST", path, body={"metadata": {"name": name}, "data": backup})
    await admin.delete_node("web-1")
    cluster.project.remove("servers", server_id)
    async with cluster.run_account():
        _, other = await cluster.join("web-2", "10.244.2.0/24")
        await cluster.wait_for_condition("web-2", "RouteCreated")
        await cluster.cluster.admin.delete_node("web-2")
        await cluster.join("web-3", "10.244.3.0/24")
        await cluster.wait_for_condition("web-3", "RouteCreated")
    assert {(_POD_CIDR, address), ("10.244.2.0/24", other)} <= cluster.routes
    assert address not in await cluster.read_record()


async def test_forged_messages_about_nodes_move_routes_and_delete_none_of_a_server(cluster: RouteCluster):
    """A client with the NATS key of the watcher can publish them."""
    async with cluster.run_account():
        _, address = await cluster.join("web-1", _POD_CIDR)
        await cluster.wait_for_condition("web-1", "RouteCreated")
        node = await cluster.cluster.api.get_node("web-1")
        await cluster.cluster.forge(make_node_gone(node))
        _, other = await cluster.join("web-2", "10.244.2.0/24")
        await cluster.wait_for_condition("web-2", "RouteCreated")
        assert cluster.routes == {(_POD_CIDR, address), ("10.244.2.0/24", other)}, "its server exists"
        thief = await cluster.cluster.api.get_node("web-2")
        spec = msgspec.structs.replace(thief.spec, pod_cidrs=(_POD_CIDR,))
        await cluster.cluster.forge(make_node_observed(msgspec.structs.replace(thief, spec=spec)))
        await wait_until(lambda: cluster.routes == {(_POD_CIDR, other)}, "the route has moved")


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
        assert not when_compared(), "no alert is due"
    assert cluster.list_writes() == []
    assert await cluster.find_condition("web-1") is None


def when_compared() -> float:
    name = "talosccm_routes_compared_timestamp_seconds"
    return metrics.REGISTRY.get_sample_value(name, {"account": "prod"}) or 0.0


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
    clock = RunningClock()
    async with cluster.run_account(bus_server=cluster.cluster.bus_server, clock=clock) as service:
        await wait_until(
            lambda: any("finds no network" in each for each in service.problems()), "the problem is reported"
        )
        assert cluster.routes == before
        cluster.cluster.token_file.write_text(TOKEN)
        await advance(service, clock, 20)
        await wait_until(lambda: cluster.routes == set(), "by the right token, the route goes")
