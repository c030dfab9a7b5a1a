"""A cluster whose machines are replaced, fall silent and come back; our processes with lifecycle."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import LABELER, LIFECYCLE, LIFECYCLE_LEASE_NAME, METADATA, WATCHER
from libs.common.contract.subjects import ENRICHED_NODE
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, Member, SimMachineFacts, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import PATIENT_LEASE, ServiceProcesses
from tests.bus_actors import wait_until
from tests.integration.conftest import operating
from tests.integration.service_cluster import run_services

NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LIFECYCLE_LEASE_NAME}"
USER = get_user_name(LIFECYCLE)
WIRINGS = (WATCHER, METADATA, LABELER, LIFECYCLE)
EVIDENCE_SECONDS = 4.0
# As usual but for the time that it takes: minutes are seconds.
QUICK = (
    "--lifecycle-not-ready-time=1s",
    f"--lifecycle-evidence-time={EVIDENCE_SECONDS:g}s",
    "--lifecycle-start-grace=1s",
)
CONTROL_PLANE = "life-cp"


class Cluster:
    """One control plane machine, which knows whom discovery knows, and whatever joins."""

    def __init__(self, kubelets: KubeletFleet, machines: MachineFleet) -> None:
        self.kubelets = kubelets
        self.machines = machines
        self.nats: NatsServer
        self.services: ServiceProcesses
        self.installations: list[ServiceProcesses] = []  # those in which lifecycle deletes Nodes
        self.joined: set[str] = set()
        self._members: dict[str, SimMachineFacts] = {}

    async def join(self, *some: SimMachineFacts, **flags: Any) -> None:
        """These machines run, are members of the cluster, and their kubelets have joined and are Ready."""
        await self._run(*some)
        self.joined |= {machine.name for machine in some}
        await self.kubelets.join_all(SimKubelet.of_machine(machine, **flags) for machine in some)

    async def until_usable(self, *names: str) -> None:
        """All of them are initialized."""
        for name in names:

            async def usable(name: str = name) -> bool:
                spec = (await self.node(name))["spec"]
                return UNINITIALIZED_TAINT not in {taint["key"] for taint in spec.get("taints", [])}

            await wait_until(usable, f"{name} usable")

    async def replace(self, name: str, by: str, **flags: Any) -> None:
        """Another machine is installed at the address of that one, and joins; the kubelet of that one
        does not answer from now on, and discovery knows it no more.
        """
        there = self._members.pop(name)
        await self.machines.delete_machines(there.id)
        await self.join(make_machine(by, there.reachable_at[0]), **flags)
        await self.kubelets.set_unreachable(name)

    async def change(self, name: str, **fields: Any) -> None:
        """The machine says something else of itself."""
        self._members[name] = await self.machines.change_machine(name, **fields)

    async def fall_silent(self, name: str) -> None:
        """No machine answers at its address; discovery may still know it."""
        await self.machines.delete_machines(name)

    async def exists(self, name: str) -> bool:
        """Whether there is such a Node."""
        return (await self.kubelets.request("GET", f"{NODES}/{name}")).status == HTTPStatus.OK

    async def node(self, name: str) -> dict[str, Any]:
        """As Kubernetes holds it."""
        return dict((await self.kubelets.request("GET", f"{NODES}/{name}")).body)

    async def taints(self, name: str) -> set[str]:
        """Their keys and effects."""
        taints = (await self.node(name))["spec"].get("taints", [])
        return {f"{taint['key']}:{taint['effect']}" for taint in taints}

    async def is_ready(self, name: str) -> bool:
        """Whether Kubernetes says so."""
        conditions = (await self.node(name))["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    async def until_deleted(self, *names: str, seconds: float = 180) -> None:
        """There is none of these Nodes any more.

        A Node that Kubernetes' own controllers wrote in the moment of its deletion is kept for ten minutes.
        This is correct, and too long for a test: lifecycle starts over, and needs all evidence again.
        """
        started_over: set[str] = set()

        async def all_gone() -> bool:
            there = [name for name in names if await self.exists(name)]
            refused = await self.events("DeletingNodeFailed") if there else {}
            for name in there:
                if name not in started_over and "another client wrote it meanwhile" in refused.get(name, ""):
                    started_over.add(name)
                    await self._begin_lifecycle_anew()
            return not there

        await wait_until(all_gone, f"{names} deleted", seconds)

    async def _begin_lifecycle_anew(self) -> None:
        for services in self.installations:
            for process in [
                name for name in services.children if name.startswith(("lifecycle", "all-in-one"))
            ]:
                await services.kill(process)
                services.restart(process)

    async def stay(self, *names: str, seconds: float) -> None:
        """Whenever one looks for that long, these Nodes are there."""
        end = time.monotonic() + seconds

        async def time_is_up() -> bool:
            listed = (await self.kubelets.request("GET", NODES)).body["items"]
            gone = {*names} - {node["metadata"]["name"] for node in listed}
            assert not gone, f"{gone} deleted"
            return time.monotonic() > end

        await wait_until(time_is_up, "the time is up", 2 * seconds + 30)

    async def events(self, reason: str) -> dict[str, str]:
        """Messages of the Events with that reason, by Node name."""
        found = (await self.kubelets.request("GET", f"{EVENTS}?fieldSelector=reason={reason}")).body["items"]
        return {event["involvedObject"]["name"]: event["message"] for event in found}

    async def until_told(self, reason: str, name: str) -> str:
        """What the Event of that reason about that Node says: it comes behind what it is about."""
        told: dict[str, str] = {}

        async def is_told() -> bool:
            nonlocal told
            told = await self.events(reason)
            return name in told

        await wait_until(is_told, f"Event {reason} about {name}")
        return told[name]

    async def until_stage(self, name: str, stage: str) -> None:
        """metadata has said that the machine is at that stage of its life."""

        async def is_said() -> bool:
            async with operating(self.nats) as operator:
                message = await operator.get_last_msg("TALOSCCM", f"{ENRICHED_NODE}.{name}")
            event = msgspec.json.decode(message.data or b"")
            return bool(event.get("facts", {}).get("stage") == stage)

        await wait_until(is_said, f"{name} is {stage}")

    async def until_proving(self, name: str) -> None:
        """The first look has shown that another machine answers in that one's place."""
        process = next(iter({"metadata", "all-in-one"} & self.services.children.keys()))
        log, words = self.services.children[process].log, "other machines answer at the Node's addresses"

        def is_said() -> bool:
            return any(words in line and f"node={name}" in line for line in log.read_text().splitlines())

        await wait_until(is_said, f"{process} says that {words}")

    async def leave(self) -> None:
        """No Node is left to others of this API server."""
        for name in self.joined:
            await self.kubelets.delete_node(name)

    async def _run(self, *some: SimMachineFacts) -> None:
        self._members |= {machine.name: machine for machine in some}
        members = tuple(Member(name=name) for name in self._members)
        head = msgspec.structs.replace(self._members[CONTROL_PLANE], members=members)
        await self.machines.put_machines(
            head, *(machine for machine in some if machine.name != CONTROL_PLANE)
        )


@asynccontextmanager
async def a_cluster(control_plane: ControlPlane, run_dir: Path) -> AsyncIterator[Cluster]:
    """Ready services and two usable Nodes: the control plane machine, and one without faults."""
    async with AsyncExitStack() as stack:
        kubelets = await stack.enter_async_context(KubeletFleet.start(control_plane))
        await kubelets.request("DELETE", LEASE)  # with the deletions of the last hour
        await kubelets.request("DELETE", EVENTS)
        machines = await stack.enter_async_context(MachineFleet.start(run_dir / "machines"))
        cluster = Cluster(kubelets, machines)
        cluster.nats = await stack.enter_async_context(NatsServer.start(run_dir / "nats"))
        stack.push_async_callback(cluster.leave)
        await cluster.join(make_machine(CONTROL_PLANE, "10.240.0.1", control_plane=True))
        cluster.services = await stack.enter_async_context(
            run_services(
                run_dir / "services",
                control_plane,
                kubelets,
                machines,
                nats_url=cluster.nats.url,
                wirings=WIRINGS,
                flags=["--controllers=cloud-node,cloud-node-lifecycle", *PATIENT_LEASE],
                own_flags=dict.fromkeys(("lifecycle", "all-in-one"), QUICK),
            )
        )
        cluster.installations.append(cluster.services)
        await cluster.join(make_machine("life-well", "10.240.0.2"))
        await cluster.until_usable(CONTROL_PLANE, "life-well")
        yield cluster
