"""Own and foreign Nodes with real processes: they write nothing about a foreign Node."""

from pathlib import Path
from typing import Any, Final

import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, DEFAULT_SERVICES, IPAM
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.signing_requests import CSRS
from tests.bus_actors import wait_until
from tests.integration.service_cluster import FORMS, ServiceCluster

FLAGS: Final = [
    "--allocate-node-cidrs",
    "--cluster-cidr=10.244.0.0/16",
    "--service-cluster-ip-range=10.96.0.0/12",
]
OURS: Final = (
    "ownership: {nodeSelector: [{matchExpressions: [{key: metadata.name, operator: In, values: [%s]}]}]}\n"
)
SILENT: Final = SimKubelet(name="silent-1", ips=("10.231.0.9",))  # no machine is there


class Cluster:
    """A simulated API server on which ours-1, theirs-1 and silent-1 join, each with a request."""

    def __init__(self, kubelets: KubeletFleet, file: Path) -> None:
        self.kubelets = kubelets
        self.file = file
        self.requests: dict[str, str] = {}

    def own(self, *names: str) -> None:
        """The file says that these are ours."""
        self.file.write_text(OURS % ", ".join(names))

    async def join(self, *joining: SimKubelet) -> None:
        await self.kubelets.join_all(joining)
        for kubelet in joining:
            self.requests[kubelet.name] = await self.kubelets.request_certificate(kubelet)

    async def node(self, name: str) -> dict[str, Any]:
        return dict((await self.kubelets.request("GET", f"/api/v1/nodes/{name}")).body)

    async def request_of(self, name: str) -> dict[str, Any]:
        return dict((await self.kubelets.request("GET", f"{CSRS}/{self.requests[name]}")).body)

    async def is_served(self, name: str) -> bool:
        """Initialised, with pod CIDRs and a certificate."""
        spec, request = (await self.node(name))["spec"], await self.request_of(name)
        tainted = UNINITIALIZED_TAINT in [taint["key"] for taint in spec.get("taints", [])]
        return not tainted and bool(spec.get("podCIDRs")) and "certificate" in request.get("status", {})

    async def told_about(self) -> set[str]:
        """The Nodes on which there are Events."""
        events = (await self.kubelets.request("GET", "/api/v1/namespaces/default/events")).body["items"]
        return {event["involvedObject"]["name"] for event in events}

    async def claims(self) -> str:
        """The pages of claims, as text."""
        path = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"
        return str((await self.kubelets.request("GET", path)).body["items"])


@pytest.fixture(params=FORMS)
async def cluster(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    simulated_cluster: ServiceCluster,
    nats_server: NatsServer,
) -> tuple[Cluster, ServiceProcesses]:
    some = [make_machine("ours-1", "10.231.0.1"), make_machine("theirs-1", "10.231.0.2")]
    there = Cluster(simulated_cluster.kubelets, tmp_path / "ccm.yaml")
    there.own("ours-1")
    services = await simulated_cluster.serve(
        wirings=(*DEFAULT_SERVICES, IPAM),
        flags=[*FLAGS, f"--cloud-config={there.file}"],
        **{"nats_url": nats_server.url} | FORMS[request.param],
    )
    await simulated_cluster.put_machines(*some)
    await there.join(*(SimKubelet.of_machine(machine) for machine in some), SILENT)
    return there, services


async def left_alone(services: ServiceProcesses, service: str, node: str) -> None:
    """Return when that service has told that it leaves the Node alone."""
    child = services.children.get(service) or services.children["all-in-one"]

    def is_told() -> bool:
        words = (f" {service} ", f" node={node} ", " outcome=not-ours ")
        return any(all(word in line for word in words) for line in child.log.read_text().splitlines())

    await wait_until(is_told, f"{service} leaves {node} alone", 40)


async def test_a_node_of_anothers_is_as_its_kubelet_left_it_until_the_file_gives_it_to_us(
    cluster: tuple[Cluster, ServiceProcesses],
):
    there, services = cluster
    theirs = ("theirs-1", "silent-1")
    before = {name: await there.node(name) for name in theirs}
    await wait_until(lambda: there.is_served("ours-1"), "ours is served", 40)
    for service in ("labeler", "csr", "ipam"):
        for name in theirs:
            await left_alone(services, service, name)
    for name in theirs:
        assert await there.node(name) == before[name]
        assert "conditions" not in (await there.request_of(name)).get("status", {})
        assert before[name]["metadata"]["uid"] not in await there.claims()
    assert await there.told_about() <= {"ours-1"}

    there.own("ours-1", "theirs-1")
    await wait_until(lambda: there.is_served("theirs-1"), "the other one is served, too", 40)
    assert await there.node("silent-1") == before["silent-1"]
    assert "silent-1" not in await there.told_about()
