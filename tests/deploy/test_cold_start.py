"""The first control plane of a cluster: an API server and a Node that no controller has initialized."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import ChartValues, Manifest, render_manifests, select_kind
from libs.testbed.kubelet_node import UNINITIALIZED, build_registered_node
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from tests.bus_actors import wait_until
from tests.deploy.installation import LOCAL, Installation
from tests.deploy.pods import IP, Pod
from tests.deploy.profiles import DEPLOYED, PROFILES, workloads

NODE, NODE_IP = "first", "10.242.0.1"
WITHIN_SECONDS = 120
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
NOT_READY = "node.kubernetes.io/not-ready"
# The other taints of such a Node, from Talos and from the node lifecycle controller.
TAINTS = (
    {"key": CONTROL_PLANE, "effect": "NoSchedule"},
    {"key": NOT_READY, "effect": "NoSchedule"},
    {"key": NOT_READY, "effect": "NoExecute"},
)


@pytest.fixture(scope="module")
async def own(forked_services: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane on which no other process is forbidden a request."""
    async with ControlPlane.start(tmp_path_factory.mktemp("cold-start")) as running:
        yield running


async def test_a_node_without_network_dns_or_nats_is_initialized_by_the_daemonset_s_pod(
    own: ControlPlane, tmp_path: Path
):
    async with AsyncExitStack() as stack:
        machines = await stack.enter_async_context(MachineFleet.start(tmp_path / "machines"))
        found = await asyncio.to_thread(render_manifests, at_port_of(own, PROFILES["all-in-one"]))
        installed = await stack.enter_async_context(Installation.applied(own, machines, found))
        machine = make_machine(NODE, NODE_IP, control_plane=True)
        await machines.put_machines(machine)
        kubelet = SimKubelet.of_machine(machine, taints=TAINTS, labels={CONTROL_PLANE: ""})
        node = await join_not_ready(installed, kubelet)
        (workload,) = select_kind(found, "DaemonSet").values()
        assert UNINITIALIZED_TAINT in taints(node)
        assert why_not_scheduled(workload, node) == []
        pod = await run(installed, workload, tmp_path / "pod")

        async def initialized() -> bool:
            assert pod.children[workload["metadata"]["name"]].is_running, tail(pod)
            return UNINITIALIZED_TAINT not in taints(await read(installed))

        await wait_until(initialized, "the Node is initialized", WITHIN_SECONDS)
        await pod.until(workload["metadata"]["name"])
        after = await read(installed)
        assert after["spec"]["providerID"].startswith("talos://")
        assert taints(after) == {CONTROL_PLANE, NOT_READY}, "taints of other controllers stay"
        request = await installed.kubelets.request_certificate(kubelet)
        assert (await installed.kubelets.wait_for_outcome(request)).certificate
        # Its network plugin needs the pod CIDR.
        await wait_until(lambda: has_pod_cidr(installed), "the Node has its pod CIDR")
        peers = set(connected_to(pod.children[workload["metadata"]["name"]].pid))
        wanted = {own.server.removeprefix("https://"), *machines.endpoints}
        assert peers == wanted, "it needs only the API server and the machines"
        assert installed.forbidden_requests() == {}


@pytest.mark.parametrize("profile", DEPLOYED)
async def test_pods_of_the_other_profiles_wait_until_the_node_is_ready(profile: str):
    node = {"metadata": {"labels": {CONTROL_PLANE: ""}}, "spec": {"taints": [*TAINTS, UNINITIALIZED]}}
    for workload in await asyncio.to_thread(workloads, profile):
        assert f"{NOT_READY}:NoSchedule" in why_not_scheduled(workload, node)
        node_is_ready = {**node, "spec": {"taints": [TAINTS[0], UNINITIALIZED]}}
        assert why_not_scheduled(workload, node_is_ready) == []


def at_port_of(control_plane: ControlPlane, values: ChartValues) -> ChartValues:
    """The values with the port of this API server."""
    port = int(control_plane.server.rpartition(":")[2])
    return msgspec.structs.replace(values, overrides={**values.overrides, "daemonSet.k8s.servicePort": port})


async def has_pod_cidr(installed: Installation) -> bool:
    return bool((await read(installed))["spec"].get("podCIDRs"))


async def join_not_ready(installed: Installation, kubelet: SimKubelet) -> dict[str, Any]:
    """Join as a kubelet without a network plugin."""
    body = build_registered_node(kubelet, datetime.now(UTC))
    # As an admin: a kubelet may not set the label by which the DaemonSet selects Nodes.
    created = await installed.kubelets.request("POST", "/api/v1/nodes", body=body)
    assert created.status == 201, created
    await installed.kubelets.set_not_ready(kubelet.name)
    return await read(installed)


async def read(installed: Installation) -> dict[str, Any]:
    """Get the Node."""
    return dict((await installed.kubelets.request("GET", f"/api/v1/nodes/{NODE}")).body)


def taints(node: dict[str, Any]) -> set[str]:
    """The keys of the Node's taints."""
    return {taint["key"] for taint in node["spec"].get("taints", ())}


def why_not_scheduled(workload: Manifest, node: dict[str, Any]) -> list[str]:
    """Why the pod cannot run on that Node: missing labels, and taints that it does not tolerate."""
    spec, labels = workload["spec"]["template"]["spec"], node["metadata"]["labels"]
    lacks = [key for key, value in spec["nodeSelector"].items() if labels.get(key) != value]
    return lacks + [
        f"{taint['key']}:{taint['effect']}"
        for taint in node["spec"]["taints"]
        if not any(tolerates(toleration, taint) for toleration in spec["tolerations"])
    ]


def tolerates(toleration: dict[str, Any], taint: dict[str, Any]) -> bool:
    """Whether the toleration matches the taint, by the rules of the scheduler."""
    same = toleration.get("key") in (None, taint["key"]) and toleration.get("effect") in (
        None,
        taint["effect"],
    )
    any_value = toleration.get("operator") == "Exists"
    return same and (any_value or toleration.get("value", "") == taint.get("value", ""))


async def run(installed: Installation, workload: Manifest, folder: Path) -> Pod:
    """Start its pod, with the port of the simulated machines."""
    pod = await Pod.mounted(workload, folder, "https://192.0.2.1:443", installed.kubelets)
    installed.pods["all-in-one"] = pod
    name = workload["metadata"]["name"]
    environment = pod.environment(name)
    assert environment["TALOS_ENDPOINTS"] == environment["KUBERNETES_SERVICE_HOST"] == IP
    port = f"--secure-port={pod.port(name, 'metrics')}"
    pod.start(name, port, LOCAL, env={"TALOS_ENDPOINTS": ",".join(installed.machines.endpoints)})
    return pod


def tail(pod: Pod) -> str:
    """The last log lines of all its processes."""
    return "\n".join(child.tail(50) for child in pod.children.values())


def connected_to(pid: int) -> Iterator[str]:
    """The peers of the process's outgoing IPv4 connections (Linux)."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = str(descriptor.readlink())
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = {row[1] for row in rows if row[3] == "0A"}
    for row in rows:
        if row[9] in inodes and row[3] == "01" and row[1] not in listening:
            address, port = row[2].split(":")
            yield f"{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(port, 16)}"


async def test_kubelets_get_certificates_for_the_addresses_that_are_allowed_without_a_talos_credential(
    own: ControlPlane, tmp_path: Path
):
    async with AsyncExitStack() as stack:
        machines = await stack.enter_async_context(MachineFleet.start(tmp_path / "machines"))
        found = await asyncio.to_thread(render_manifests, PROFILES["csr-only"])
        installed = await stack.enter_async_context(Installation.applied(own, machines, found))
        await installed.run_nats(tmp_path)
        await installed.run_services(tmp_path)
        assert installed.pods.keys() == {"nats", "watcher", "metadata", "csr"}
        within = SimKubelet(name="within", ips=("10.1.0.1",))
        outside = SimKubelet(name="outside", ips=("198.51.100.1",))
        await installed.kubelets.join_all([within, outside])
        granted = await installed.kubelets.request_certificate(within)
        denied = await installed.kubelets.request_certificate(outside)
        assert (await installed.kubelets.wait_for_outcome(granted)).certificate
        why = (await installed.kubelets.wait_for_outcome(denied)).conditions["Denied"]["message"]
        assert "198.51.100.1 is not within --csr-allowed-networks" in why
        assert "TALOSCONFIG" not in installed.pods["metadata"].environment("metadata")
        assert await machines.count_calls() == {}
        assert installed.forbidden_requests() == {}
