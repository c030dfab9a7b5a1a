"""Load balancers of Services from end to end, with Octavia and Neutron themselves as the cloud."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.testbed.clouds.api_server import SimApiServer
from libs.testbed.clouds.openstack_services.services import BalancerProject, RealOpenStack
from tests.bus_actors import wait_for_value, wait_until
from tests.clocks import RunningClock
from tests.clouds.balancer_actors import advance, has_finalizer
from tests.real.openstack.client import INTERNAL, annotate
from tests.real.openstack.cluster import PATIENCE, OpenStackCluster

EXCLUDED = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}


@pytest.fixture
async def cluster(server: SimApiServer[RealOpenStack], tmp_path: Path) -> AsyncIterator[OpenStackCluster]:
    async with OpenStackCluster.open(server, tmp_path) as opened:
        yield opened


async def test_a_service_gets_a_floating_address_and_keeps_nothing_at_its_end(cluster: OpenStackCluster):
    address = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.kube.create_service("web")
        service = await cluster.kube.wait_for_address("web", PATIENCE)
        [floating] = cluster.project.list_parts("floatingips")
        [entry] = service.status.load_balancer.ingress
        assert (entry.ip, entry.ip_mode) == (floating["floating_ip_address"], "VIP")
        assert has_finalizer(service)
        [balancer] = cluster.project.list_parts("loadbalancers")
        assert f"talos-ccm/service-uid={service.uid}" in balancer["tags"]
        assert cluster.list_ports() == {80}
        await wait_until(lambda: cluster.list_targets() == {address}, "the Node is a target", PATIENCE)
        await cluster.kube.delete_service("web")
        await cluster.wait_for_end("web")


async def test_ports_and_targets_follow_the_service_and_its_nodes(cluster: OpenStackCluster):
    first = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.kube.create_service("web", annotations=INTERNAL)
        await wait_until(lambda: cluster.list_targets() == {first}, "the first Node", PATIENCE)
        second = await cluster.join("web-2")
        await wait_until(lambda: cluster.list_targets() == {first, second}, "a Node joins", PATIENCE)
        patch = [{"op": "add", "path": "/metadata/labels", "value": EXCLUDED}]
        await cluster.kube.api.patch_node("web-1", patch)
        await wait_until(lambda: cluster.list_targets() == {second}, "a Node is excluded", PATIENCE)
        ports = [{"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053}]
        await cluster.patch_service("web", {"spec": {"ports": ports}})
        await wait_until(lambda: cluster.list_ports() == {53}, "another port", PATIENCE)
        await wait_until(lambda: len(cluster.project.list_parts("pools")) == 1, "one pool is left", PATIENCE)
        assert cluster.list_targets() == {second}


async def test_an_invalid_value_prevents_the_creation_and_is_reported(cluster: OpenStackCluster):
    async with cluster.run_account():
        annotations = annotate(proxy_protocol="v3", floating_subnet_tags="public")
        await cluster.kube.create_service("web", annotations=annotations)
        service = await wait_for_value(
            lambda: cluster.kube.find_service("web"),
            lambda found: found.status.conditions,
            "the Service is blocked",
            PATIENCE,
        )
        [condition] = service.status.conditions
        assert condition.type == "TalosLoadBalancerBlocked"
        assert '"v3" is not one of true, false, v1, v2' in condition.message
        assert "floating-subnet-tags: it is not supported" in condition.message
        assert cluster.project.list_parts("loadbalancers") == []
        nothing = dict.fromkeys(annotations)
        await cluster.patch_service("web", {"metadata": {"annotations": nothing}})
        await cluster.kube.wait_for_address("web", PATIENCE)


async def test_an_existing_balancer_keeps_only_the_field_that_is_invalid(cluster: OpenStackCluster):
    async with cluster.run_account():
        await cluster.kube.create_service("web", annotations=INTERNAL)
        await cluster.kube.wait_for_address("web", PATIENCE)
        values = annotate(connection_limit="many", timeout_client_data="1000")
        ranges = {"loadBalancerSourceRanges": ["192.0.2.0/24"]}
        await cluster.patch_service("web", {"metadata": {"annotations": values}, "spec": ranges})

        def has_changed() -> bool:
            [listener] = cluster.project.list_parts("listeners")
            return (listener["timeout_client_data"], listener["allowed_cidrs"]) == (1000, ["192.0.2.0/24"])

        await wait_until(has_changed, "the other fields", PATIENCE)
        [listener] = cluster.project.list_parts("listeners")
        assert listener["connection_limit"] == -1


async def test_a_balancer_that_fails_before_it_is_ready_is_replaced_and_gets_no_address(
    cluster: OpenStackCluster,
):
    services, project = cluster.server.cloud.services, cluster.project
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as account:
        with services.ending_changes_with("fail"):
            await cluster.kube.create_service("web")
            await wait_until(lambda: list_states(project) == ["ERROR"], "it fails", PATIENCE)
            [failed] = project.list_parts("loadbalancers")
            await cluster.kube.wait_for_event("web", "SyncLoadBalancerFailed")
            assert project.list_parts("floatingips") == []
        await advance(account, clock, 100)
        await cluster.kube.wait_for_address("web", PATIENCE)
        await wait_until(lambda: list_states(project) == ["ACTIVE"], "another one", PATIENCE)
        [balancer] = project.list_parts("loadbalancers")
        assert balancer["id"] != failed["id"]


async def test_a_balancer_that_fails_after_it_has_served_stays_and_is_reported(cluster: OpenStackCluster):
    services, project = cluster.server.cloud.services, cluster.project
    async with cluster.run_account():
        await cluster.kube.create_service("web")
        service = await cluster.kube.wait_for_address("web", PATIENCE)
        [balancer] = project.list_parts("loadbalancers")
        with services.ending_changes_with("fail"):
            await cluster.join("web-1")
            await wait_until(lambda: list_states(project) == ["ERROR"], "it fails", PATIENCE)
        blocked = await wait_for_value(
            lambda: cluster.kube.find_service("web"),
            lambda found: found.status.conditions,
            "the Service is blocked",
            PATIENCE,
        )
        assert "has failed" in blocked.status.conditions[0].message
        assert blocked.status.load_balancer == service.status.load_balancer
        assert [each["id"] for each in project.list_parts("loadbalancers")] == [balancer["id"]]
        assert len(project.list_parts("floatingips")) == 1


async def test_a_floating_address_that_a_user_moved_stays_where_it_is(cluster: OpenStackCluster):
    services, project = cluster.server.cloud.services, cluster.project
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as account:
        await cluster.kube.create_service("web")
        await cluster.kube.wait_for_address("web", PATIENCE)
        [address] = project.list_parts("floatingips")
        port = services.create("network", "/v2.0/ports", project=project.id, network_id=project.network)["id"]
        path = f"/v2.0/floatingips/{address['id']}"
        body = msgspec.json.encode({"floatingip": {"port_id": port}})
        assert services.request("network", "PUT", path, body, project=project.id).status == 200

        async def is_reported() -> bool:
            return "LoadBalancerFieldIgnored" in await cluster.kube.list_events("web")

        await advance(account, clock, 60)
        await wait_until(is_reported, "the move is reported", PATIENCE)
        [moved] = project.list_parts("floatingips")
        assert moved["port_id"] == port
        await cluster.kube.delete_service("web")
        await cluster.wait_until_gone("web")
        [left] = project.list_parts("floatingips")
        assert (left["id"], left["port_id"], left["description"]) == (address["id"], port, "")


def list_states(project: BalancerProject) -> list[str]:
    """The states of all load balancers."""
    return [each["provisioning_status"] for each in project.list_parts("loadbalancers")]


async def test_an_address_that_a_user_keeps_outlives_the_service(cluster: OpenStackCluster):
    async with cluster.run_account():
        await cluster.kube.create_service("web", annotations=annotate(keep_floatingip="true"))
        service = await cluster.kube.wait_for_address("web", PATIENCE)
        await cluster.kube.delete_service("web")
        await cluster.wait_until_gone("web")
        await cluster.kube.wait_for_event("web", "LoadBalancerReleased")  # it names the address
        [kept] = cluster.project.list_parts("floatingips")
        [entry] = service.status.load_balancer.ingress
        assert (kept["floating_ip_address"], kept["description"]) == (entry.ip, "")
        assert cluster.project.list_parts("loadbalancers") == []
