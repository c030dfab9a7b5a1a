"""`talos-ccm status ipam` shows the allocations and conflicts, and writes nothing."""

import json
from typing import Any

import pytest

from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, DEFAULT_SERVICES, IPAM
from libs.testbed.machine_fleet import make_machine
from services.ipam.core.pages import NAME_PREFIX
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster
from tests.integration.service_cluster import MEMORY, ServiceCluster

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


@pytest.fixture
async def cluster(simulated_cluster: ServiceCluster) -> Cluster:
    """All in one process with ipam, and nodes that have their pod CIDRs."""
    await simulated_cluster.serve(**MEMORY, flags=FLAGS, wirings=(*DEFAULT_SERVICES, IPAM))
    await simulated_cluster.join(*(make_machine(f"status-{n}", f"10.229.0.{n + 1}") for n in range(COUNT)))

    async def served() -> bool:
        return sum("podCIDRs" in node["spec"] for node in await simulated_cluster.list_nodes()) == COUNT

    await wait_until(served, "all have pod CIDRs", _SECONDS)
    return Cluster.of("node", simulated_cluster)


async def read(cluster: Cluster) -> Any:
    """The JSON output."""
    said = await cluster.run("status", "ipam", *AS_IPAM, "-o", "json")
    assert said.err == ""
    return json.loads(said.out)


async def test_what_ipam_gave_is_told_as_it_is_and_nothing_is_written(cluster: Cluster):
    mark = cluster.server.audit_mark()
    said = await cluster.run("status", "ipam", *AS_IPAM, "--nodes")
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


async def test_the_block_of_a_node_that_is_gone_is_told_with_its_end(cluster: Cluster):
    before = await read(cluster)
    blocks = {held["podCIDR"] for held in before["podCIDRs"] if held["node"] == "status-2"}
    await cluster.kubelets.delete_node("status-2")
    found: dict[str, Any] = {}

    async def rests() -> bool:
        found.update(await read(cluster))
        return len(found["quarantined"]) == 2

    await wait_until(rests, "both blocks of it rest", _SECONDS)
    assert {one["block"] for one in found["quarantined"]} == blocks
    assert {one["node"] for one in found["quarantined"]} == {"status-2"}
    assert [(pool["inUse"], pool["quarantined"]) for pool in found["pools"]] == [(4, 1), (4, 1)]
    assert found["conflicts"] == []
    said = await cluster.run("status", "ipam", *AS_IPAM)
    assert said.status == 0
    assert "UTC, in 59 min" in said.out


async def test_a_page_that_somebody_spoilt_is_told_even_without_its_labels(cluster: Cluster):
    page = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{NAME_PREFIX}10.16.0.0-12", "namespace": CLAIM_PAGES_NAMESPACE},
        "data": {"claims.json": "{}"},
    }
    assert (await cluster.kubelets.request("POST", CONFIG_MAPS, body=page)).status == 201
    said = await cluster.run("status", "ipam", *AS_IPAM)
    assert said.status == 1
    assert f"ConfigMap {NAME_PREFIX}10.16.0.0-12 is unreadable" in said.out
