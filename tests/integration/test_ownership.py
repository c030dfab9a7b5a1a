"""Several cloud controller managers at one control plane: no field has two writers."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.contract.machine import PlatformMetadata
from libs.common.contract.node import BLOCKED_CONDITION
from libs.common.contract.services import SERVICES
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.native_ccm import NODE_LIFECYCLE, CloudInstance, NativeCcm
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import ALL_IN_ONE
from libs.testbed.service_processes import PATIENT_LEASE, ServiceProcesses
from libs.testbed.signing_requests import CSRS, read_outcome
from tests.bus_actors import wait_until
from tests.integration.lifecycle_cluster import CONTROL_PLANE, LEASE, QUICK, Cluster
from tests.integration.service_cluster import MEMORY, run_services
from tests.pod_cidrs import OwnedBlock, list_overlapping

A, B, NATIVE = ALL_IN_ONE, "another-talos-ccm", NativeCcm.USER
POD_CIDRS = ("--cluster-cidr=10.184.0.0/16", "--service-cluster-ip-range=10.184.255.0/24")


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Machines and kubelets, without a controller for Nodes yet."""
    async with (
        KubeletFleet.start(control_plane) as kubelets,
        MachineFleet.start(tmp_path / "machines") as machines,
    ):
        await kubelets.request("DELETE", LEASE)
        made = Cluster(kubelets, machines)
        yield made
        await made.leave()
        await kubelets.request("DELETE", CSRS)
        await kubelets.request("DELETE", LEASE)


@asynccontextmanager
async def running(
    control_plane: ControlPlane,
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
        control_plane,
        cluster.kubelets,
        cluster.machines,
        flags=[f"--cloud-config={config}", f"--controllers={controllers}", *PATIENT_LEASE, *flags],
        own_flags={"all-in-one": QUICK, "lifecycle": QUICK},
        wirings=SERVICES,
        instance=instance,
        **form,
    ) as services:
        cluster.installations.append(services)
        yield services
        cluster.installations.remove(services)


def manager_of(user: str) -> str:
    """The controller manager of that user: each of our services has its own user. "" for none."""
    return next((one for one in (A, B, NATIVE) if user == one or user.startswith(f"{one}-")), "")


def writers_of_fields(control_plane: ControlPlane, nodes: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """The controller managers that changed each field of these Nodes."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for change in control_plane.list_node_changes():
        if manager_of(change.user) and change.node in set(nodes):
            found[change.node, change.field].add(manager_of(change.user))
    return found


def written_by(control_plane: ControlPlane, manager: str, since: int) -> set[str]:
    """Nodes and requests that this manager wrote or tried to write."""
    return {
        write.about for write in control_plane.list_node_writes(since) if manager_of(write.user) == manager
    }


async def until_blocked(cluster: Cluster, name: str) -> str:
    """The reason of the Node's condition, once it is set."""
    reasons: list[str] = []

    async def is_reported() -> bool:
        conditions = (await cluster.node(name))["status"]["conditions"]
        reasons[:] = [str(each["reason"]) for each in conditions if each["type"] == BLOCKED_CONDITION]
        return bool(reasons)

    await wait_until(is_reported, f"{name} reports what it waits for")
    return reasons[0]


async def provider_id(cluster: Cluster, name: str) -> str:
    return str((await cluster.node(name))["spec"].get("providerID", ""))


async def requested(cluster: Cluster, *machines: SimMachineFacts) -> dict[str, str]:
    """The name of the kubelet's certificate request by machine."""
    ask = cluster.kubelets.request_certificate
    return {machine.name: await ask(SimKubelet.of_machine(machine)) for machine in machines}


async def is_untouched(cluster: Cluster, request: str) -> bool:
    return not read_outcome((await cluster.kubelets.request("GET", f"{CSRS}/{request}")).body).conditions


def of_team(team: str) -> dict[str, Any]:
    terms = [{"key": "team", "operator": "In", "values": [team]}]
    return {"nodeSelector": [{"matchExpressions": terms}]}


def team_machines(team: str, net: int) -> dict[str, SimMachineFacts]:
    """One of each kind."""
    return {
        "cloud": make_machine(f"two-{team}-cloud", f"10.242.{net}.1", platform="hcloud"),
        "metal": make_machine(f"two-{team}-metal", f"10.242.{net}.2"),
        "silent": make_machine(f"two-{team}-silent", f"10.242.{net}.3"),
        "gone": make_machine(f"two-{team}-gone", f"10.242.{net}.4"),
    }


async def team_joins(cluster: Cluster, team: str, machines: dict[str, SimMachineFacts]) -> None:
    await cluster.machines.put_machines(machines["silent"])
    await cluster.machines.set_faults(machines["silent"].id, unavailable=True)
    await cluster.join(*machines.values(), labels={"team": team})


async def until_served(cluster: Cluster, machines: dict[str, SimMachineFacts]) -> list[str]:
    """Nodes that answer are usable and have pod CIDRs, the others have a condition; returns the pod CIDRs."""
    names = [machine.name for kind, machine in machines.items() if kind != "silent"]
    await cluster.until_usable(*names)
    assert await until_blocked(cluster, machines["silent"].name)

    async def all_have_some() -> bool:
        return all(["podCIDR" in (await cluster.node(name))["spec"] for name in names])

    await wait_until(all_have_some, "pod CIDRs")
    return [(await cluster.node(name))["spec"]["podCIDR"] for name in names]


async def test_two_of_ours_with_disjoint_selectors_write_to_no_node_of_the_other(
    control_plane: ControlPlane, cluster: Cluster, tmp_path: Path
):
    since = control_plane.audit_mark()
    teams = {team: team_machines(team, net) for net, team in enumerate("ab")}
    nobodys = make_machine("two-nobodys", "10.242.9.1")
    everything = "*,node-ipam-controller,cloud-node-lifecycle"
    await cluster.join(make_machine(CONTROL_PLANE, "10.242.8.1", control_plane=True), labels={"team": "a"})
    of_a: dict[str, Any] = {"ownership": of_team("a"), "controllers": everything}
    of_b: dict[str, Any] = {"ownership": of_team("b"), "controllers": everything, "instance": B}
    async with (
        running(control_plane, cluster, tmp_path, **of_a, flags=POD_CIDRS),
        running(control_plane, cluster, tmp_path, **of_b, flags=POD_CIDRS),
    ):
        await cluster.join(nobodys, labels={"team": "c"})
        for team, machines in teams.items():
            await team_joins(cluster, team, machines)
        requests = await requested(cluster, nobodys, *(machines["cloud"] for machines in teams.values()))
        blocks = [block for machines in teams.values() for block in await until_served(cluster, machines)]
        for team in teams:
            assert (await cluster.kubelets.wait_for_outcome(requests[f"two-{team}-cloud"])).certificate
            await cluster.replace(f"two-{team}-gone", by=f"two-{team}-next", labels={"team": team})
        await cluster.until_deleted("two-a-gone", "two-b-gone")  # each by the lifecycle that it belongs to
        await cluster.until_usable("two-a-next", "two-b-next")
        assert await is_untouched(cluster, requests["two-nobodys"])

    assert not list_overlapping(OwnedBlock(None, block) for block in blocks)
    wrote = {user: written_by(control_plane, user, since) for user in (A, B)}
    members = {team: {machine.name for machine in machines.values()} for team, machines in teams.items()}
    assert wrote[A] == members["a"] | {CONTROL_PLANE, "two-a-next", requests["two-a-cloud"]}
    assert wrote[B] == members["b"] | {"two-b-next", requests["two-b-cloud"]}
    fields = writers_of_fields(control_plane, cluster.joined)
    assert {len(users) for users in fields.values()} == {1}


SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown:NoSchedule"


def instance_of(machine: SimMachineFacts) -> CloudInstance:
    """The cloud's instance, with the same providerID as in Talos."""
    assert machine.platform is not None
    return CloudInstance(
        name=machine.name,
        provider_id=machine.platform.provider_id,
        instance_type="cx22",
        zone="fsn1-dc14",
        region="eu-central",
        internal_ips=machine.reachable_at,
        external_ips=("203.0.113.9",),
    )


async def until_shut_down_and_gone(cluster: Cluster, native: NativeCcm, name: str) -> None:
    """Its cloud switches the machine off, and then has none of that name; the native manager acts on it."""
    await cluster.kubelets.set_not_ready(name)
    native.shut_down(name)

    async def is_tainted() -> bool:
        return SHUTDOWN in await cluster.taints(name)

    await wait_until(is_tainted, f"{name} is tainted")
    native.terminate(name)
    await cluster.until_deleted(name)


async def test_beside_a_native_manager_with_nodes_of_its_own_neither_writes_to_the_others(
    control_plane: ControlPlane, cluster: Cluster, nats_server: NatsServer, tmp_path: Path
):
    since = control_plane.audit_mark()
    clouds = [make_machine(f"apart-cloud-{n}", f"10.243.0.{n}", platform="hcloud") for n in range(1, 4)]
    metals = [make_machine(f"apart-metal-{n}", f"10.243.1.{n}") for n in range(1, 4)]
    silent = clouds[2]
    await cluster.join(make_machine(CONTROL_PLANE, "10.243.8.1", control_plane=True))
    everything = "*,node-ipam-controller,cloud-node-lifecycle"
    ours: dict[str, Any] = {"ownership": {"providerIDSchemes": ["talos"]}, "controllers": everything}
    instances = [instance_of(machine) for machine in clouds]
    async with (
        running(control_plane, cluster, tmp_path, **ours, nats=nats_server, flags=POD_CIDRS),
        NativeCcm.start(
            tmp_path / "native", control_plane, scheme="hcloud", instances=instances, monitor_seconds=0.5
        ) as native,
    ):
        await cluster.machines.put_machines(silent)
        await cluster.machines.set_faults(silent.id, unavailable=True)
        await cluster.join(*clouds, *metals)
        requests = await requested(cluster, clouds[0], metals[0])
        await cluster.until_usable(*(machine.name for machine in (*clouds, *metals)))
        assert {await provider_id(cluster, machine.name) for machine in clouds} == {
            instance.provider_id for instance in instances
        }
        for machine in metals:
            assert (await provider_id(cluster, machine.name)).startswith("talos://")
        assert (await cluster.kubelets.wait_for_outcome(requests[metals[0].name])).certificate
        assert await is_untouched(cluster, requests[clouds[0].name])

        await cluster.change(clouds[1].name, stage="shutting down")
        await cluster.fall_silent(clouds[1].name)
        await until_shut_down_and_gone(cluster, native, clouds[1].name)
        await cluster.replace(metals[1].name, by="apart-metal-next")
        await cluster.until_deleted(metals[1].name)
        await cluster.until_usable("apart-metal-next")

    wrote = {user: written_by(control_plane, user, since) for user in (A, NATIVE)}
    ours_alone = {CONTROL_PLANE, "apart-metal-next", requests[metals[0].name]}
    assert wrote[A] == {machine.name for machine in metals} | ours_alone
    assert wrote[NATIVE] == {machine.name for machine in clouds}
    assert {len(users) for users in writers_of_fields(control_plane, cluster.joined).values()} == {1}


async def test_beside_a_native_manager_that_only_deletes_the_provider_id_is_the_natives_and_ours_the_labels(
    control_plane: ControlPlane, cluster: Cluster, tmp_path: Path
):
    whole = make_machine("both-cloud", "10.244.200.1", platform="hcloud")
    late = make_machine("both-late", "10.244.200.2", platform="hcloud")
    metal = make_machine("both-metal", "10.244.200.3")
    ours: dict[str, Any] = {"ownership": {"providerIDSchemes": ["hcloud"]}, "controllers": "*"}
    instances = [instance_of(whole), instance_of(late)]
    await cluster.join(make_machine(CONTROL_PLANE, "10.244.200.8", control_plane=True, platform="hcloud"))
    async with (
        running(control_plane, cluster, tmp_path, **ours),
        NativeCcm.start(
            tmp_path / "native",
            control_plane,
            scheme="hcloud",
            instances=instances,
            controllers=[NODE_LIFECYCLE],
            monitor_seconds=0.5,
        ) as native,
    ):
        # Its cloud's metadata service has not answered yet.
        not_yet = msgspec.structs.replace(late, platform=PlatformMetadata(platform="hcloud"))
        await cluster.join(whole, not_yet, metal)
        await cluster.until_usable(whole.name)
        assert await until_blocked(cluster, metal.name) == "NativeProviderIDMissing"
        assert await provider_id(cluster, late.name) == ""
        await cluster.change(late.name, platform=late.platform)
        await cluster.until_usable(late.name)
        for machine in (whole, late):
            assert await provider_id(cluster, machine.name) == instance_of(machine).provider_id
            labels = (await cluster.node(machine.name))["metadata"]["labels"]
            assert labels["topology.kubernetes.io/zone"] == "fsn1-dc14"
        assert await provider_id(cluster, metal.name) == ""
        await until_shut_down_and_gone(cluster, native, whole.name)

    fields = writers_of_fields(control_plane, {whole.name, late.name, metal.name})
    assert {len(users) for users in fields.values()} == {1}
    of_native = {field for (_, field), users in fields.items() if users == {NATIVE}}
    assert of_native == {f"spec.taints[{SHUTDOWN}].{part}" for part in ("key", "effect")}
