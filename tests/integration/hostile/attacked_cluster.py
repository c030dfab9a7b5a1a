"""A cluster with all our services, Nodes that must not change, and Nodes that join during an attack."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from libs.common.bus.nats.bus import NatsBus
from libs.common.contract.events import Decided
from libs.common.contract.node import BLOCKED_CONDITION, UNINITIALIZED_TAINT
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, SERVICES
from libs.common.contract.subjects import DECIDED
from libs.testbed.kubelets import STRATEGIC, KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, Member, SimMachineFacts, make_machine
from libs.testbed.service_processes import PATIENT_LEASE, ServiceProcesses
from libs.testbed.signing_requests import CSRS
from services.ipam.core.pages import NAME_PREFIX
from tests.bootstrap_actors import BootstrapInstallation
from tests.bus_actors import wait_for_value
from tests.integration.csr_cluster import state_of
from tests.integration.lifecycle_cluster import QUICK
from tests.integration.service_cluster import ApiServer, ServiceCluster

NODES: Final = "/api/v1/nodes"
EVENTS: Final = "/api/v1/namespaces/default/events"
PAGES: Final = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"
VICTIM, VICTIM_IP, VICTIM_UUID = "victim-1", "10.229.0.1", "5f0c9b1e-6f0d-4d0b-9a76-1f6f8d0c2a11"
CONTROL_PLANE, VIRTUAL_IP = "victim-cp", "10.255.0.10"
JOIN_EVERY_SECONDS: Final = 2.0  # more cost CPU and prove no more
_WRITTEN_BY_API_SERVER: Final = {"resourceVersion", "managedFields"}
_OF_CONDITIONS: Final = "node.kubernetes.io/"  # taints of Kubernetes' node lifecycle controller
POD_NETWORK: Final = "10.183.0.0/16"
RULES: Final = """
transformations:
- name: from-the-machine
  labels: {example.com/type: "{{ .InstanceType }}", example.com/zone: "{{ .Zone }}"}
  annotations: {example.com/host: "{{ .Hostname }}", example.com/tag: "{{ index .Tags \\"role\\" }}"}
"""
FLAGS: Final = (
    "--controllers=*,node-ipam-controller,cloud-node-lifecycle",
    "--allocate-node-cidrs",
    f"--cluster-cidr={POD_NETWORK}",
    "--service-cluster-ip-range=10.96.0.0/16",
    *PATIENT_LEASE,
)


@dataclass(kw_only=True)
class AttackedCluster:
    """The cluster, and what an attacker or a test reads and writes in it."""

    cluster: ServiceCluster
    services: ServiceProcesses
    bus: NatsBus
    requests: list[str] = field(default_factory=list)  # of attackers: none may be approved
    honest: int = 0  # Nodes that have joined meanwhile

    def __post_init__(self) -> None:
        self.kubelets, self.machines = self.cluster.kubelets, self.cluster.machines

    async def get_node(self, name: str) -> dict[str, Any]:
        """The Node as the API server returns it; {} if there is none."""
        answer = await self.kubelets.request("GET", f"{NODES}/{name}")
        return dict(answer.body) if answer.status == 200 else {}

    async def change_node(self, name: str, body: dict[str, Any]) -> None:
        """Change a Node as an administrator."""
        await self.kubelets.send("PATCH", f"{NODES}/{name}", body=body, content_type=STRATEGIC)

    async def get_decision(self, service: str, kind: str, name: str) -> Decided | None:
        """The last decision of a service about an object."""
        message = await self.bus.get_last(f"{DECIDED}.{service}.{kind}.{name}")
        return message.event if message is not None and isinstance(message.event, Decided) else None

    async def wait_for_decision(self, service: str, kind: str, name: str, text: str) -> None:
        """Wait until the last decision about the object contains the text in its outcome or reason."""

        await wait_for_value(
            lambda: self.get_decision(service, kind, name),
            lambda decided: text in f"{decided.outcome}: {decided.reason}",
            f"{service} decides {text!r} about {name}",
        )

    async def wait_for_node(
        self, name: str, accepts: Callable[[dict[str, Any]], object], what: str
    ) -> dict[str, Any]:
        """The Node, once it is one that `accepts`."""
        return await wait_for_value(lambda: self.get_node(name), accepts, f"{name} {what}")

    async def wait_until_initialized(self, name: str) -> dict[str, Any]:
        """The Node, once it has no uninitialized taint and has a providerID."""

        def is_initialized(node: dict[str, Any]) -> bool:
            taints = [taint["key"] for taint in node["spec"].get("taints", [])]
            return UNINITIALIZED_TAINT not in taints and bool(node["spec"].get("providerID"))

        return await self.wait_for_node(name, is_initialized, "is initialized")

    async def wait_until_blocked(self, name: str, reason: str) -> dict[str, Any]:
        """The Node, once its condition reports that reason; it is not initialized then."""

        def is_blocked(node: dict[str, Any]) -> bool:
            found = [each for each in node["status"]["conditions"] if each["type"] == BLOCKED_CONDITION]
            return any(each["reason"] == reason for each in found)

        node = await self.wait_for_node(name, is_blocked, f"is blocked: {reason}")
        assert UNINITIALIZED_TAINT in {taint["key"] for taint in node["spec"]["taints"]}
        assert "providerID" not in node["spec"]
        return node

    async def wait_for_event(self, name: str, reason: str) -> str:
        """The message of an Event with that reason about that Node."""
        path = f"{EVENTS}?fieldSelector=involvedObject.name={name},reason={reason}"

        async def list_messages() -> list[str]:
            return [each["message"] for each in (await self.kubelets.request("GET", path)).body["items"]]

        return (await wait_for_value(list_messages, bool, f"Event {reason} about {name}"))[0]

    async def let_honest_nodes_join(self, *, least: int, attack: "asyncio.Future[Any]") -> None:
        """One after the other, until the attack is over: each gets all that a Node gets."""
        while not attack.done() or self.honest < least:
            await asyncio.wait({attack}, timeout=JOIN_EVERY_SECONDS)
            await self.let_honest_node_join()

    async def let_honest_node_join(self) -> None:
        """Another Node joins and gets all that a Node gets."""
        self.honest += 1
        machine = make_machine(f"honest-{self.honest}", f"10.228.0.{self.honest}")
        await self.cluster.join(machine)
        node = await self.wait_until_served(SimKubelet.of_machine(machine))
        assert node["spec"]["providerID"] == f"talos://metal/{machine.reachable_at[0]}"

    async def wait_until_served(self, kubelet: SimKubelet) -> dict[str, Any]:
        """The Node of this kubelet, once it is initialized and has a pod CIDR and a certificate."""
        request = await self.kubelets.request_certificate(kubelet)
        node = await self.wait_until_initialized(kubelet.name)
        await self.wait_for_node(kubelet.name, lambda node: node["spec"].get("podCIDRs"), "has a pod CIDR")
        outcome = await self.kubelets.wait_for_outcome(request)
        assert outcome.certificate, (kubelet.name, outcome)
        return node

    async def snapshot_victims(self) -> dict[str, dict[str, Any]]:
        """All that the Nodes of others contain, but heartbeats and what Kubernetes derives from them."""
        return {name: _without_heartbeats(await self.get_node(name)) for name in (VICTIM, CONTROL_PLANE)}

    async def list_approved_requests(self) -> list[str]:
        """Attackers' requests that are approved or have a certificate."""
        states = {name: await state_of(self.kubelets, name) for name in self.requests}
        return [name for name, state in states.items() if state.certificate or "Approved" in state.conditions]


def _without_heartbeats(node: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: node["metadata"][key] for key in node["metadata"].keys() - _WRITTEN_BY_API_SERVER}
    status = {key: node["status"][key] for key in node["status"].keys() - {"conditions"}}
    taints = [each for each in node["spec"].get("taints", []) if not each["key"].startswith(_OF_CONDITIONS)]
    return node | {"metadata": metadata, "spec": node["spec"] | {"taints": taints}, "status": status}


@asynccontextmanager
async def run_attacked_cluster(
    server: ApiServer, kubelets: KubeletFleet, run_dir: Path, nats: BootstrapInstallation, *flags: str
) -> AsyncIterator[AttackedCluster]:
    """Our services with every controller and rules, ready; victims that have all that Nodes get.

    `flags` are for every service.
    """
    async with AsyncExitStack() as stack:
        machines = await stack.enter_async_context(MachineFleet.start(run_dir / "machines"))
        cluster = ServiceCluster(
            stack=stack, server=server, kubelets=kubelets, machines=machines, run_dir=run_dir
        )
        stack.push_async_callback(_delete_objects, kubelets)
        rules = run_dir / "config.yaml"
        rules.write_text(RULES)
        own_flags = {spec.service: nats.nats_flags(spec.service) for spec in SERVICES}
        own_flags["lifecycle"] += QUICK
        own_flags["csr"] += ["--csr-max-expiration=720h"]
        own_flags["ipam"] += ["--node-status-update-frequency=3s"]
        services = await cluster.serve(
            nats_url=nats.url,
            wirings=SERVICES,
            flags=(*FLAGS, f"--cloud-config={rules}", *flags),
            own_flags=own_flags,
        )
        bus = await NatsBus.connect(service="reader", **nats.bus_options("reader"))
        stack.push_async_callback(bus.close)
        attacked = AttackedCluster(cluster=cluster, services=services, bus=bus)
        victims = _make_victims()
        await cluster.join(*victims)
        await attacked.change_node(
            CONTROL_PLANE, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}
        )
        for victim in victims:
            await attacked.wait_until_served(SimKubelet.of_machine(victim))
        yield attacked


def _make_victims() -> tuple[SimMachineFacts, ...]:
    members = tuple(Member(name=name) for name in (VICTIM, CONTROL_PLANE))
    head = make_machine(CONTROL_PLANE, "10.229.0.2", control_plane=True, members=members)
    return make_machine(VICTIM, VICTIM_IP, uuid=VICTIM_UUID, platform="aws"), head


async def _delete_objects(kubelets: KubeletFleet) -> None:
    for path, prefix in ((NODES, ""), (CSRS, ""), (PAGES, NAME_PREFIX)):
        for item in (await kubelets.request("GET", path)).body["items"]:
            if item["metadata"]["name"].startswith(prefix):
                await kubelets.request("DELETE", f"{path}/{item['metadata']['name']}")
