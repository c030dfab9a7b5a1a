"""`talos-ccm status ipam` shows the allocations and conflicts, and writes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, DEFAULT_SERVICES, IPAM
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import make_machine
from services.ipam.pages import NAME_PREFIX
from tests.bus_actors import wait_until
from tests.integration.operator_shell import CommandResult, talos_ccm
from tests.integration.service_cluster import MEMORY, ApiServer, ServiceCluster

_SECONDS = 60
COUNT = 5
POOLS = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"
FLAGS = [
    "--allocate-node-cidrs",
    POOLS,
    "--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",
    "--node-cidr-mask-size-ipv6=96",
    "--pod-cidr-quarantine=1h",
]
AS_IPAM = (POOLS, "--node-cidr-mask-size-ipv6=96", "--pod-cidr-quarantine=1h")
CONFIG_MAPS = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"


class Cluster:
    """A cluster in which ipam runs, and a shell in which kubectl would work."""

    def __init__(self, home: Path, server: ApiServer, kubelets: KubeletFleet) -> None:
        self.home = home
        self.server = server
        self.kubelets = kubelets

    async def status(self, *arguments: str, **environment: str) -> CommandResult:
        return await talos_ccm(self.home, self.server, "status", "ipam", *arguments, **environment)

    async def told(self) -> Any:
        """The JSON output."""
        said = await self.status(*AS_IPAM, "-o", "json")
        assert said.err == ""
        return json.loads(said.out)

    async def create_node(self, name: str, *pod_cidrs: str) -> None:
        """A Node whose pod CIDRs another allocator assigned."""
        spec = {"podCIDR": pod_cidrs[0], "podCIDRs": pod_cidrs}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}
        assert (await self.kubelets.request("POST", "/api/v1/nodes", body=node)).status == 201


@pytest.fixture
async def cluster(simulated_cluster: ServiceCluster, tmp_path: Path) -> Cluster:
    """All in one process with ipam, and nodes that have their pod CIDRs."""
    await simulated_cluster.serve(**MEMORY, flags=FLAGS, wirings=(*DEFAULT_SERVICES, IPAM))
    await simulated_cluster.join(*(make_machine(f"status-{n}", f"10.229.0.{n + 1}") for n in range(COUNT)))
    home = tmp_path / "home"
    home.mkdir()

    async def served() -> bool:
        return sum("podCIDRs" in node["spec"] for node in await simulated_cluster.list_nodes()) == COUNT

    await wait_until(served, "all have pod CIDRs", _SECONDS)
    return Cluster(home, simulated_cluster.server, simulated_cluster.kubelets)


async def test_what_ipam_gave_is_told_as_it_is_and_nothing_is_written(cluster: Cluster):
    mark = cluster.server.audit_mark()
    said = await cluster.status(*AS_IPAM, "--nodes")
    assert (said.status, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert ["default", "10.244.0.0/16", "/24", "256", "5", "251", "0"] in lines
    assert ["default", "fd00:10:244::/48", "/96", "2^48", "5", "2^48", "-", "5", "0"] in lines
    nodes = (await cluster.kubelets.request("GET", "/api/v1/nodes")).body["items"]
    for node in nodes:
        for cidr in node["spec"]["podCIDRs"]:
            assert [node["metadata"]["name"], cidr, "claimed"] in lines
    assert said.out.endswith("Conflicts  none\n")
    asked = {
        (request.verb, request.resource)
        for request in cluster.server.audit_counts(mark)
        if request.user == "admin" and request.resource in ("nodes", "configmaps")
    }
    assert asked == {("list", "nodes"), ("list", "configmaps")}


async def test_without_flags_the_claims_tell_what_they_can(cluster: Cluster):
    said = await cluster.status()
    assert said.status == 0
    assert [line.split() for line in said.out.splitlines()][1:3] == [
        ["?", "10.240.0.0/12", "/24", "?", "5", "?", "0"],
        ["?", "fd00:10:244::/48", "/96", "?", "5", "?", "0"],
    ]
    assert "The number of blocks is unknown: set --cluster-cidr" in said.out


async def test_pools_of_the_config_file_are_those_of_ipam(cluster: Cluster):
    path = cluster.home / "ccm-config.yaml"
    path.write_text("ipam:\n  pools:\n    - {name: metal, cidrs: [10.244.0.0/23], maskSizeIPv4: 24}\n")
    said = await cluster.status(f"--cloud-config={path}")
    lines = [line.split() for line in said.out.splitlines()]
    assert ["metal", "10.244.0.0/23", "/24", "2", "2", "0", "0"] in lines
    assert ["(none)", "10.240.0.0/12", "/24", "?", "3", "?", "0"] in lines
    path.write_text("ipam:\n  pools:\n    - {name: metal, cidrs: [10.244.0.1/23]}\n")
    said = await cluster.status(f"--cloud-config={path}")
    assert (said.status, said.out) == (2, "")
    assert "line 3" in said.err


async def test_the_block_of_a_node_that_is_gone_is_told_with_its_end(cluster: Cluster):
    before = await cluster.told()
    blocks = {held["podCIDR"] for held in before["podCIDRs"] if held["node"] == "status-2"}
    await cluster.kubelets.delete_node("status-2")
    found: dict[str, Any] = {}

    async def rests() -> bool:
        found.update(await cluster.told())
        return len(found["quarantined"]) == 2

    await wait_until(rests, "both blocks of it rest", _SECONDS)
    assert {one["block"] for one in found["quarantined"]} == blocks
    assert {one["node"] for one in found["quarantined"]} == {"status-2"}
    assert [(pool["inUse"], pool["quarantined"]) for pool in found["pools"]] == [(4, 1), (4, 1)]
    assert found["conflicts"] == []
    said = await cluster.status(*AS_IPAM)
    assert said.status == 0
    assert "UTC, in 59 min" in said.out


async def test_what_somebody_else_gave_is_a_conflict(cluster: Cluster):
    [taken] = [
        held["podCIDR"]
        for held in (await cluster.told())["podCIDRs"]
        if held["node"] == "status-0" and ":" not in held["podCIDR"]
    ]
    await cluster.create_node("twice", taken)
    await cluster.create_node("wide", "11.0.0.0/8")
    said = await cluster.status(*AS_IPAM)
    assert said.status == 1
    assert f"Node status-0 has {taken}, Node twice has {taken}" in said.out
    assert "Node wide has 11.0.0.0/8: it is larger than /12" in said.out
    assert sorted(conflict["kind"] for conflict in (await cluster.told())["conflicts"]) == ["odd", "overlap"]


async def test_a_page_that_somebody_spoilt_is_told_even_without_its_labels(cluster: Cluster):
    page = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{NAME_PREFIX}10.16.0.0-12", "namespace": CLAIM_PAGES_NAMESPACE},
        "data": {"claims.json": "{}"},
    }
    assert (await cluster.kubelets.request("POST", CONFIG_MAPS, body=page)).status == 201
    said = await cluster.status(*AS_IPAM)
    assert said.status == 1
    assert f"ConfigMap {NAME_PREFIX}10.16.0.0-12 is unreadable" in said.out


async def test_what_cannot_be_told_is_said_with_why(cluster: Cluster):
    refused = await cluster.status(KUBECONFIG="")
    assert (refused.status, refused.out) == (2, "")
    assert "cannot access the Kubernetes API: no API server is configured" in refused.err
    refused = await cluster.status(KUBECONFIG=str(cluster.server.kubeconfig("stranger")))
    assert (refused.status, refused.out) == (2, "")
    assert "forbidden" in refused.err


async def test_the_real_api_server_is_asked_in_the_same_way(
    tmp_path: Path, control_plane: ControlPlane, kubelets: KubeletFleet
):
    cluster = Cluster(tmp_path, control_plane, kubelets)
    await cluster.create_node("status-really", "10.228.7.0/24")
    try:
        told = await cluster.told()
        assert ("status-really", "10.228.7.0/24") in [
            (held["node"], held["podCIDR"]) for held in told["podCIDRs"]
        ]
        refused = await cluster.status(KUBECONFIG=str(control_plane.kubeconfig("stranger")))
        assert (refused.status, refused.out) == (2, "")
        assert "forbidden" in refused.err
    finally:
        await kubelets.delete_node("status-really")
