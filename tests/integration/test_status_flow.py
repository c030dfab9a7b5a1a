"""`talos-ccm status`: an installation of separate services on a real control plane, seen by its operator."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from tests.architecture.sources import ROOT
from tests.bus_actors import wait_until
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


async def test_a_service_whose_pod_is_not_ready_is_wrong_and_each_stuck_node_has_its_line(cluster: Installed):
    await cluster.node.delete_pod(cluster.kubelets, namespace=NAMESPACE, name="ccm-labeler-1")
    await cluster.run_pod("labeler", ready=False)
    said = await cluster.status()
    assert (said.status, said.err) == (1, "")
    assert "labeler: 0 of 1 pods ready, ccm-labeler-1 labeler: CrashLoopBackOff" in said.out
    assert f"\n  {SILENT} " in said.out
    await cluster.node.delete_pod(cluster.kubelets, namespace=NAMESPACE, name="ccm-labeler-1")
    await cluster.run_pod("labeler")


async def test_who_may_only_list_nodes_is_told_what_is_missing(cluster: Installed):
    user = "status-nodes-only"
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    await grant(cluster, user, {"kind": "ClusterRole", "metadata": {"name": user}, "rules": [rule]})
    as_user = {"KUBECONFIG": str(cluster.server.kubeconfig(user))}

    async def sees_nodes() -> bool:
        return (await cluster.status(**as_user)).out != ""

    await wait_until(sees_nodes, "the RBAC change is applied", _SECONDS)
    said = await cluster.status(**as_user)
    assert said.status in (1, 2)
    assert "CSRs: list certificatesigningrequests: 403" in said.out
    assert "this requires permission to list pods in status-tests" in said.out
    assert "\nCSRs          unknown\n" in said.out
    stranger = {"KUBECONFIG": str(cluster.server.kubeconfig("status-stranger"))}
    said = await cluster.status(**stranger)
    assert (said.status, said.out) == (2, "")
    assert "nodes" in said.err


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
