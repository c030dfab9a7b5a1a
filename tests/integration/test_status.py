"""`talos-ccm status` shows messages, allocations and conflicts, and writes nothing."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from libs.common.contract.services import DEFAULT_SERVICES, IPAM
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from tests.architecture.sources import ROOT
from tests.bus_actors import wait_until
from tests.integration.operator_shell import Cluster
from tests.integration.service_cluster import MEMORY, ServiceCluster
from tests.integration.status_cluster import NAMESPACE, WIRINGS, Installed, installed

_SECONDS = 60
SILENT, PLAIN = "status-gone", "status-plain"


@pytest.fixture(scope="module")
async def cluster(
    tmp_path_factory: pytest.TempPathFactory,
    control_plane: ControlPlane,
    kubelets: KubeletFleet,
    machines: MachineFleet,
) -> AsyncIterator[Installed]:
    """With a node that is usable, and two that are not."""
    async with installed(
        tmp_path_factory.mktemp("status-flow"), control_plane, kubelets, machines
    ) as running:
        await running.join("status-web")
        await running.join(SILENT, silent=True)
        await running.join(PLAIN, foreign=True)
        yield running


async def told(cluster: Installed) -> Any:
    """What it says to programs."""
    said = await cluster.status("-o", "json")
    assert said.err == ""
    return json.loads(said.out)


async def test_what_keeps_nodes_from_being_usable_is_told_and_the_services_are_there(cluster: Installed):
    found: Any = {}

    async def blocked() -> bool:
        nonlocal found
        found = await told(cluster)
        stuck = {one["name"]: one for one in found["nodes"]["uninitialized"]}
        return "status-web" not in stuck and stuck[SILENT]["blocked"]

    await wait_until(blocked, "one node is usable, and the other's condition says why not", _SECONDS)
    stuck = {one["name"]: one["why"] for one in found["nodes"]["uninitialized"]}
    assert "TalosUnreachable" in stuck[SILENT]
    assert "provided-node-ip" in stuck[PLAIN]
    assert [one["name"] for one in found["services"]] == ["nats", *(wiring.service for wiring in WIRINGS)]
    assert {one["state"] for one in found["services"]} == {"well"}, found["services"]
    assert found["leader"]["state"] == "well"
    assert found["leader"]["heartbeatSeconds"] is not None
    assert found["stream"]["messages"] > 0
    assert {one["name"] for one in found["queues"]} == {"labeler-nodes", "csr-requests", "ipam-nodes"}
    assert {one["name"] for one in found["certificates"]} == {"nats-server", "nats-authority", "talos"}
    assert {one["state"] for one in found["certificates"]} == {"well"}
    assert found["unknown"] == []
    assert found["podCIDRs"]["claims"] >= 1
    assert [line for line in found["wrong"] if line.startswith("Nodes: ")]


async def test_the_rights_that_the_page_names_suffice_for_all_of_it(cluster: Installed):
    user, told = "status-operator", dict[str, Any]()
    [text] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "status.md").read_text(), re.DOTALL)
    for role in map(msgspec.yaml.decode, text.split("---\n")):
        await grant(cluster, user, role)
        if role["metadata"].get("namespace") == "kube-system":
            role["metadata"]["namespace"] = NAMESPACE
            await grant(cluster, user, role)
    as_user = {"KUBECONFIG": str(cluster.server.kubeconfig(user))}

    async def sees_everything() -> bool:
        nonlocal told
        said = await cluster.status("-o", "json", **as_user)
        told = json.loads(said.out) if said.out else {}
        return told.get("unknown") == []

    await wait_until(sees_everything, "nothing is unknown", _SECONDS)
    assert told["stream"]
    assert {one["name"] for one in told["certificates"]} >= {"nats-server", "talos"}


async def grant(cluster: Installed, user: str, role: dict[str, Any]) -> None:
    """A role of its own, and its binding."""
    kind, name = role["kind"], f"{user}-{role['metadata']['name']}"
    where = {key: value for key, value in role["metadata"].items() if key == "namespace"}
    inside = f"namespaces/{where['namespace']}/" if where else ""
    path = f"/apis/rbac.authorization.k8s.io/v1/{inside}{kind.lower()}"
    binding = {
        "metadata": {"name": name} | where,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    named = role | {"metadata": {"name": name} | where}
    for plural, body in (("s", named), ("bindings", binding)):
        answer = await cluster.kubelets.request("POST", f"{path}{plural}", body=body)
        assert answer.status == 201, answer.body


async def test_watched_without_a_terminal_each_look_is_appended(cluster: Installed):
    said = await cluster.watched(looks=2)
    assert said.out.count("--- ") >= 2
    assert "\x1b" not in said.out
    assert said.status == (0 if "no problems" in said.out else 1)


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


@pytest.fixture
async def allocated(simulated_cluster: ServiceCluster) -> Cluster:
    """All in one process with ipam, and nodes that have their pod CIDRs."""
    await simulated_cluster.serve(**MEMORY, flags=FLAGS, wirings=(*DEFAULT_SERVICES, IPAM))
    await simulated_cluster.join(*(make_machine(f"status-{n}", f"10.229.0.{n + 1}") for n in range(COUNT)))

    async def served() -> bool:
        return sum("podCIDRs" in node["spec"] for node in await simulated_cluster.list_nodes()) == COUNT

    await wait_until(served, "all have pod CIDRs", _SECONDS)
    return Cluster.of("node", simulated_cluster)


async def test_what_ipam_gave_is_told_as_it_is_and_nothing_is_written(allocated: Cluster):
    mark = allocated.server.audit_mark()
    said = await allocated.run("status", "ipam", *AS_IPAM, "--nodes")
    assert (said.status, said.err) == (0, "")
    lines = [line.split() for line in said.out.splitlines()]
    assert ["default", "10.244.0.0/16", "/24", "256", "5", "251", "0"] in lines
    assert ["default", "fd00:10:244::/48", "/96", "2^48", "5", "2^48", "-", "5", "0"] in lines
    nodes = (await allocated.kubelets.request("GET", "/api/v1/nodes")).body["items"]
    for node in nodes:
        for cidr in node["spec"]["podCIDRs"]:
            assert [node["metadata"]["name"], cidr, "claimed"] in lines
    assert said.out.endswith("Conflicts  none\n")
    asked = {
        (request.verb, request.resource)
        for request in allocated.server.audit_counts(mark)
        if request.user == "admin" and request.resource in ("nodes", "configmaps")
    }
    assert asked == {("list", "nodes"), ("list", "configmaps")}
