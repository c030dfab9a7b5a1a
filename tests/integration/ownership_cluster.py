"""What it takes to run several cloud controller managers at one control plane, and to tell who wrote what."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from libs.common.contract.node import BLOCKED_CONDITION
from libs.common.contract.services import SERVICES
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts
from libs.testbed.native_ccm import NativeCcm
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import ALL_IN_ONE
from libs.testbed.service_processes import PATIENT_LEASE, ServiceProcesses
from libs.testbed.signing_requests import CSRS, read_outcome
from tests.bus_actors import wait_until
from tests.integration.lifecycle_cluster import LEASE, QUICK, Cluster
from tests.integration.service_cluster import MEMORY, run_services

A, B, NATIVE = ALL_IN_ONE, "another-talos-ccm", NativeCcm.USER
POD_CIDRS = ("--cluster-cidr=10.184.0.0/16", "--service-cluster-ip-range=10.184.255.0/24")


@asynccontextmanager
async def cluster_without_controllers(own: ControlPlane, run_dir: Path) -> AsyncIterator[Cluster]:
    """Machines and kubelets, without a controller for Nodes yet."""
    async with KubeletFleet.start(own) as kubelets, MachineFleet.start(run_dir / "machines") as machines:
        await kubelets.request("DELETE", LEASE)
        running = Cluster(kubelets, machines)
        yield running
        await running.leave()
        await kubelets.request("DELETE", CSRS)
        await kubelets.request("DELETE", LEASE)


@asynccontextmanager
async def running(
    own: ControlPlane,
    cluster: Cluster,
    run_dir: Path,
    *,
    instance: str = A,
    ownership: dict[str, Any],
    controllers: str,
    flags: Iterable[str] = (),
    nats: NatsServer | None = None,
) -> AsyncIterator[ServiceProcesses]:
    """Our services, ready, with this ownership; without NATS in one process."""
    form: dict[str, Any] = {"nats_url": nats.url} if nats else MEMORY
    config = run_dir / f"{instance}.yaml"
    config.write_bytes(msgspec.yaml.encode({"ownership": ownership}))
    async with run_services(
        run_dir / instance,
        own,
        cluster.kubelets,
        cluster.machines,
        flags=[f"--cloud-config={config}", f"--controllers={controllers}", *PATIENT_LEASE, *flags],
        own_flags={"all-in-one": QUICK, "lifecycle": QUICK},
        wirings=SERVICES,
        instance=instance,
        **form,
    ) as services:
        yield services


def manager_of(user: str) -> str:
    """The controller manager of that user: each of our services has its own user. "" for none."""
    return next((one for one in (A, B, NATIVE) if user == one or user.startswith(f"{one}-")), "")


def writers_of_fields(own: ControlPlane, nodes: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """The controller managers that changed each field of these Nodes."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for change in own.list_node_changes():
        if manager_of(change.user) and change.node in set(nodes):
            found[change.node, change.field].add(manager_of(change.user))
    return found


def written_by(own: ControlPlane, manager: str, since: int) -> set[str]:
    """Nodes and requests that this manager wrote or tried to write."""
    return {write.about for write in own.list_node_writes(since) if manager_of(write.user) == manager}


async def blocked(cluster: Cluster, name: str) -> str:
    """The reason of the Node's condition, "" without one."""
    conditions = (await cluster.node(name))["status"]["conditions"]
    return next((str(each["reason"]) for each in conditions if each["type"] == BLOCKED_CONDITION), "")


async def until_blocked(cluster: Cluster, name: str) -> str:
    """The same, once the condition is set."""

    async def is_reported() -> bool:
        return bool(await blocked(cluster, name))

    await wait_until(is_reported, f"{name} reports what it waits for")
    return await blocked(cluster, name)


async def provider_id(cluster: Cluster, name: str) -> str:
    return str((await cluster.node(name))["spec"].get("providerID", ""))


async def requested(cluster: Cluster, *machines: SimMachineFacts) -> dict[str, str]:
    """The name of the kubelet's certificate request by machine."""
    ask = cluster.kubelets.request_certificate
    return {machine.name: await ask(SimKubelet.of_machine(machine)) for machine in machines}


async def is_untouched(cluster: Cluster, request: str) -> bool:
    return not read_outcome((await cluster.kubelets.request("GET", f"{CSRS}/{request}")).body).conditions
