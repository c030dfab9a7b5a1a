"""Load balancers of Services from end to end, at a simulated Thalassa Cloud."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.clouds.thalassa.balancers.annotations import PREFIX
from libs.common.contract.kube_service import KEEP_ANNOTATION
from libs.testbed.sim_apiserver.server import SimApiServer
from services.cloud.service import CloudService
from tests.bus_actors import wait_for_value, wait_until
from tests.clocks import RunningClock
from tests.clouds.balancer_actors import SERVICES, BalancerCluster, advance, has_finalizer
from tests.contract.clouds.accounts import SECRET, ThalassaAccount, open_thalassa

EXCLUDED = {"node.kubernetes.io/exclude-from-external-load-balancers": ""}
ACL = "192.0.2.0/24"


class ThalassaCluster:
    """The Services, Nodes and processes of `kube`, whose own cloud is not used."""

    def __init__(self, kube: BalancerCluster, account: ThalassaAccount, folder: Path) -> None:
        self.kube, self.server, self.organisation = kube, account.server, account.organisation
        self.vpc = self.organisation.add_vpc("net")
        account.keys |= {"vpcIdentity": self.vpc}
        self.file = account.write_credential(folder, SECRET)

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator["ThalassaCluster"]:
        """With a watcher, and without the process of the account."""
        async with (
            SimApiServer.start(folder / "kubernetes") as api_server,
            BalancerCluster.open(api_server, folder) as kube,
            kube.run_watcher(),
            open_thalassa() as account,
        ):
            yield cls(kube, account, folder)

    @asynccontextmanager
    async def run_account(self, **settings: Any) -> AsyncIterator[CloudService]:
        """The process of the account."""
        own: dict[str, Any] = {
            "accounts": ("thalassa/prod",),
            "credential_file": self.file,
            "endpoint": self.server.endpoint,
        }
        async with self.kube.run_account("prod", **(own | settings)) as service:
            yield service

    async def join(self, name: str) -> str:
        """Create a machine and its Node; return the machine's identity."""
        machine = self.organisation.add_machine(name, vpc=self.vpc)
        body = {"metadata": {"name": name}, "spec": {"providerID": f"thalassacloud://{machine}"}}
        created = await self.kube.admin.request("POST", "/api/v1/nodes", body=body)
        assert created.status == 201, created
        return machine

    async def patch_service(self, name: str, body: Mapping[str, Any]) -> None:
        """Change a Service by a merge patch."""
        content_type = "application/merge-patch+json"
        patched = await self.kube.admin.request(
            "PATCH", f"{SERVICES}/{name}", body=dict(body), content_type=content_type
        )
        assert patched.status == 200, patched

    def list_objects(self, kind: str) -> list[dict[str, Any]]:
        return list(self.organisation.tables[kind].values())

    @property
    def listeners(self) -> list[dict[str, Any]]:
        return [each for balancer in self.list_objects("loadbalancers") for each in balancer["_listeners"]]

    def list_targets(self) -> set[str]:
        """The machines behind all ports."""
        groups = self.list_objects("loadbalancer-target-groups")
        attached = (each for group in groups for each in group["_attachments"])
        return {each["virtualMachineInstance"]["identity"] for each in attached}

    async def wait_for_end(self, name: str) -> None:
        """Wait until the Service is gone, and check that nothing is left."""
        await self.kube.wait_until_gone(name)
        assert self.list_objects("loadbalancers") == self.list_objects("loadbalancer-target-groups") == []


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ThalassaCluster]:
    async with ThalassaCluster.open(tmp_path) as opened:
        yield opened


async def test_a_service_gets_an_address_and_keeps_nothing_at_its_end(cluster: ThalassaCluster):
    cluster.organisation.balancers.build_seconds = cluster.organisation.balancers.delete_seconds = 0.5
    machine = await cluster.join("web-1")
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as account:
        await cluster.kube.create_service("web")
        service = await cluster.kube.wait_for_address("web")
        [balancer] = cluster.list_objects("loadbalancers")
        assert [(each.ip, each.ip_mode) for each in service.status.load_balancer.ingress] == [
            (balancer["externalIpAddresses"][0], "Proxy")
        ]
        assert has_finalizer(service)
        assert balancer["labels"]["talos-ccm/service-uid"] == service.uid
        await wait_until(lambda: cluster.list_targets() == {machine}, "the Node is a target")
        assert [each["port"] for each in cluster.listeners] == [80]
        await cluster.kube.delete_service("web")
        # In the first minute of a leader, a change of a former one may still create a target group.
        await advance(account, clock, 60)
        await cluster.wait_for_end("web")
        await cluster.kube.wait_for_event("web", "DeletedLoadBalancer")


async def test_a_load_balancer_that_its_service_keeps_stays_without_target_groups(cluster: ThalassaCluster):
    await cluster.join("web-1")
    clock = RunningClock()
    async with cluster.run_account(clock=clock) as account:
        await cluster.kube.create_service("web", annotations={KEEP_ANNOTATION: "true"})
        await cluster.kube.wait_for_address("web")
        [before] = cluster.list_objects("loadbalancers")
        await cluster.kube.delete_service("web")
        await advance(account, clock, 60)
        await cluster.kube.wait_until_gone("web")
        [left] = cluster.list_objects("loadbalancers")
        assert (left["identity"], left["labels"], left["_listeners"]) == (before["identity"], {}, [])
        assert cluster.list_objects("loadbalancer-target-groups") == []
        await cluster.kube.wait_for_event("web", "LoadBalancerReleased")


async def test_ports_targets_and_the_acl_follow_the_service_and_its_nodes(cluster: ThalassaCluster):
    first = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.kube.create_service("web")
        await wait_until(lambda: cluster.list_targets() == {first}, "the first Node")
        second = await cluster.join("web-2")
        await wait_until(lambda: cluster.list_targets() == {first, second}, "a Node joins")
        patch = [{"op": "add", "path": "/metadata/labels", "value": EXCLUDED}]
        await cluster.kube.api.patch_node("web-1", patch)
        await wait_until(lambda: cluster.list_targets() == {second}, "a Node is excluded")
        ports = [{"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053}]
        annotations = {PREFIX + "acl-port-dns": ACL}
        await cluster.patch_service(
            "web", {"metadata": {"annotations": annotations}, "spec": {"ports": ports}}
        )

        def has_changed() -> bool:
            shown = [(each["protocol"], each["port"], each["allowedSources"]) for each in cluster.listeners]
            return shown == [("udp", 53, [ACL])]

        await wait_until(has_changed, "another port")
        await wait_until(
            lambda: len(cluster.list_objects("loadbalancer-target-groups")) == 1, "one target group is left"
        )
        assert cluster.list_targets() == {second}


async def test_an_unreadable_acl_makes_nothing_and_an_open_port_keeps_its_own(cluster: ThalassaCluster):
    async with cluster.run_account():
        await cluster.kube.create_service("web", annotations={PREFIX + "acl-allowed-sources": "office"})
        service = await wait_for_value(
            lambda: cluster.kube.find_service("web"),
            lambda found: found.status.conditions,
            "the Service is blocked",
        )
        [condition] = service.status.conditions
        assert condition.type == "TalosLoadBalancerBlocked"
        assert 'acl-allowed-sources: "office" is not a list of networks' in condition.message
        assert cluster.list_objects("loadbalancers") == []
        await cluster.patch_service(
            "web", {"metadata": {"annotations": {PREFIX + "acl-allowed-sources": ACL}}}
        )
        await cluster.kube.wait_for_address("web")
        values = {PREFIX + "acl-allowed-sources": "", PREFIX + "max-connections": "7"}
        await cluster.patch_service("web", {"metadata": {"annotations": values}})
        await wait_until(lambda: cluster.listeners[0]["maxConnections"] == 7, "the other field")
        assert cluster.listeners[0]["allowedSources"] == [ACL]


async def test_tcp_and_udp_of_one_port_are_rejected_with_a_sentence(cluster: ThalassaCluster):
    ports = [
        {"name": f"dns-{protocol.lower()}", "port": 53, "protocol": protocol, "nodePort": node_port}
        for protocol, node_port in (("TCP", 30053), ("UDP", 30054))
    ]
    async with cluster.run_account():
        await cluster.kube.create_service("dns", ports=ports)
        await wait_for_value(
            lambda: cluster.kube.find_service("dns"),
            lambda found: any(
                "a load balancer has one port" in each.message for each in found.status.conditions
            ),
            "the Service is blocked",
        )
        assert cluster.list_objects("loadbalancers") == []


async def test_a_create_whose_answer_is_lost_makes_no_double_after_a_crash(cluster: ThalassaCluster):
    cluster.server.add_fault("drop", "/v1/loadbalancers", method="POST", count=1)
    async with cluster.run_account(retry_period_seconds=0.1):
        await cluster.kube.create_service("web")
        await wait_until(lambda: len(cluster.list_objects("loadbalancers")) == 1, "it is created")
    async with cluster.run_account(retry_period_seconds=0.1):
        await cluster.kube.wait_for_address("web")
        assert len(cluster.list_objects("loadbalancers")) == 1


async def test_a_balancer_that_another_hand_deletes_is_made_again_with_its_target_groups(
    cluster: ThalassaCluster,
):
    machine = await cluster.join("web-1")
    async with cluster.run_account():
        await cluster.kube.create_service("web")
        await cluster.kube.wait_for_address("web")
        await wait_until(lambda: cluster.list_targets() == {machine}, "the Node is a target")
        [group] = cluster.list_objects("loadbalancer-target-groups")
        [balancer] = cluster.list_objects("loadbalancers")
        cluster.organisation.remove("loadbalancers", balancer["identity"])
        # without a change, it is noticed within a minute
        values = {PREFIX + "max-connections": "7"}
        await cluster.patch_service("web", {"metadata": {"annotations": values}})
        await wait_until(lambda: [each["maxConnections"] for each in cluster.listeners] == [7], "again")
        assert cluster.list_objects("loadbalancer-target-groups") == [group]


async def test_a_double_of_a_former_leader_goes_and_others_stay(cluster: ThalassaCluster):
    async with cluster.run_account():
        await cluster.kube.create_service("web")
        await cluster.kube.wait_for_address("web")
    [recorded] = cluster.list_objects("loadbalancers")
    table = cluster.organisation.tables["loadbalancers"]
    labels = {
        "lb-1": recorded["labels"],
        "lb-2": recorded["labels"] | {"talos-ccm/cluster": "other"},
        "lb-3": {},
    }
    for identity, each in labels.items():
        table[identity] = recorded | {"identity": identity, "labels": each, "_listeners": []}
    async with cluster.run_account():
        left = {recorded["identity"], "lb-2", "lb-3"}
        await wait_until(lambda: table.keys() == left, "the double goes")
        assert [each["port"] for each in cluster.listeners] == [80]
