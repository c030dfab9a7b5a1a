"""Two cloud controller managers at one real control plane: what is whose is written by nobody else."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.node import CONDITION_BLOCKED
from libs.common.wiring import SERVICES
from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelet, Kubelets
from libs.testbed.machines import Machine, Machines, Platform, a_machine
from libs.testbed.native_ccm import NODE_LIFECYCLE, Instance, NativeCcm
from libs.testbed.nats_server import NatsServer
from libs.testbed.running_services import RunningServices
from libs.testbed.service_rights import ALL_IN_ONE
from libs.testbed.signing_requests import CSRS, outcome_in
from tests.bus_actors import eventually
from tests.integration.lifecycle_cluster import CONTROL_PLANE, LEASE, PATIENT, QUICK, Cluster

A, B, NATIVE = ALL_IN_ONE, "another-talos-ccm", NativeCcm.USER
SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown:NoSchedule"
IN_ONE_PROCESS = {"nats_url": "", "all_in_one": True, "bus": "memory"}
POD_CIDRS = ("--cluster-cidr=10.184.0.0/16", "--service-cluster-ip-range=10.184.255.0/24")


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane whose log tells who wrote what."""
    run_dir = tmp_path_factory.mktemp("ownership-control-plane")
    async with ControlPlane.start(run_dir, audit_fields=True) as running:
        yield running


@pytest.fixture
async def cluster(own: ControlPlane, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Machines, and whatever joins; without anybody yet who would look after Nodes."""
    async with Kubelets.start(own) as kubelets, Machines.start(tmp_path / "machines") as machines:
        await kubelets.request("DELETE", LEASE)
        running = Cluster(kubelets, machines)
        yield running
        await running.leave()


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
) -> AsyncIterator[RunningServices]:
    """All of ours, ready, whose file says which Nodes are their own; without a NATS in one process."""
    form: dict[str, Any] = {"nats_url": nats.url} if nats else IN_ONE_PROCESS
    config = run_dir / f"{instance}.yaml"
    config.write_bytes(msgspec.yaml.encode({"ownership": ownership}))
    async with RunningServices.start(
        run_dir / instance,
        own,
        cluster.kubelets,
        talosconfig=cluster.machines.talosconfig(),
        flags=[f"--cloud-config={config}", f"--controllers={controllers}", *PATIENT, *flags],
        own_flags={"all-in-one": QUICK, "lifecycle": QUICK},
        wirings=SERVICES,
        instance=instance,
        **form,
    ) as services:
        await services.ready()
        yield services


def manager_of(user: str) -> str:
    """Whose process that is: each of our services has a user of its own. "" for nobody's."""
    return next((one for one in (A, B, NATIVE) if user == one or user.startswith(f"{one}-")), "")


def writers_of_fields(own: ControlPlane, nodes: Iterable[str]) -> dict[tuple[str, str], set[str]]:
    """Which of the controller managers have changed each field of these Nodes."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for change in own.node_changes():
        if manager_of(change.user) and change.node in set(nodes):
            found[change.node, change.field].add(manager_of(change.user))
    return found


def written_by(own: ControlPlane, manager: str, since: int) -> set[str]:
    """All Nodes and requests about which that one has as much as tried to write."""
    return {write.about for write in own.node_writes(since) if manager_of(write.user) == manager}


async def blocked(cluster: Cluster, name: str) -> str:
    """The reason that stands on the Node, "" without one."""
    conditions = (await cluster.node(name))["status"]["conditions"]
    return next((str(each["reason"]) for each in conditions if each["type"] == CONDITION_BLOCKED), "")


async def until_blocked(cluster: Cluster, name: str) -> str:
    """The same, once there is one."""

    async def is_told() -> bool:
        return bool(await blocked(cluster, name))

    await eventually(is_told, f"{name} says what it waits for", 60)
    return await blocked(cluster, name)


async def provider_id(cluster: Cluster, name: str) -> str:
    return str((await cluster.node(name))["spec"].get("providerID", ""))


async def requested(cluster: Cluster, *machines: Machine) -> dict[str, str]:
    """By machine the name of its kubelet's request for a certificate."""
    ask = cluster.kubelets.ask_for_certificate
    return {machine.name: await ask(Kubelet.on(machine)) for machine in machines}


async def is_untouched(cluster: Cluster, request: str) -> bool:
    return not outcome_in((await cluster.kubelets.request("GET", f"{CSRS}/{request}")).body).conditions


def of_team(team: str) -> dict[str, Any]:
    terms = [{"key": "team", "operator": "In", "values": [team]}]
    return {"nodeSelector": [{"matchExpressions": terms}]}


def team_machines(team: str, net: int) -> dict[str, Machine]:
    """One of each kind."""
    return {
        "cloud": a_machine(f"two-{team}-cloud", f"10.242.{net}.1", platform="hcloud"),
        "metal": a_machine(f"two-{team}-metal", f"10.242.{net}.2"),
        "silent": a_machine(f"two-{team}-silent", f"10.242.{net}.3"),
        "gone": a_machine(f"two-{team}-gone", f"10.242.{net}.4"),
    }


async def team_joins(cluster: Cluster, team: str, machines: dict[str, Machine]) -> None:
    await cluster.machines.put(machines["silent"])
    await cluster.machines.fault(machines["silent"].id, unavailable=True)
    await cluster.join(*machines.values(), labels={"team": team})


async def until_served(cluster: Cluster, machines: dict[str, Machine]) -> list[str]:
    """Whoever answers is usable and has a pod CIDR, whoever does not says so; returns the pod CIDRs."""
    names = [machine.name for kind, machine in machines.items() if kind != "silent"]
    await cluster.until_usable(*names)
    assert await until_blocked(cluster, machines["silent"].name)

    async def all_have_some() -> bool:
        return all(["podCIDR" in (await cluster.node(name))["spec"] for name in names])

    await eventually(all_have_some, "pod CIDRs", 60)
    return [(await cluster.node(name))["spec"]["podCIDR"] for name in names]


async def test_two_of_ours_with_disjoint_selectors_write_to_no_node_of_the_other(
    own: ControlPlane, cluster: Cluster, tmp_path: Path
):
    since = own.audit_mark()
    teams = {team: team_machines(team, net) for net, team in enumerate("ab")}
    nobodys = a_machine("two-nobodys", "10.242.9.1")
    everything = "*,node-ipam-controller"
    await cluster.join(a_machine(CONTROL_PLANE, "10.242.8.1", control_plane=True), labels={"team": "a"})
    of_a: dict[str, Any] = {"ownership": of_team("a"), "controllers": f"{everything},cloud-node-lifecycle"}
    of_b: dict[str, Any] = {"ownership": of_team("b"), "controllers": everything, "instance": B}
    async with (
        running(own, cluster, tmp_path, **of_a, flags=POD_CIDRS),
        running(own, cluster, tmp_path, **of_b, flags=POD_CIDRS),
    ):
        await cluster.join(nobodys, labels={"team": "c"})
        for team, machines in teams.items():
            await team_joins(cluster, team, machines)
        requests = await requested(cluster, nobodys, *(machines["cloud"] for machines in teams.values()))
        blocks = [block for machines in teams.values() for block in await until_served(cluster, machines)]
        for team in teams:
            assert (await cluster.kubelets.outcome_of(requests[f"two-{team}-cloud"], seconds=60)).certificate
            await cluster.replace(f"two-{team}-gone", by=f"two-{team}-next", labels={"team": team})
        await cluster.until_deleted("two-a-gone")
        await cluster.until_usable("two-a-next", "two-b-next")
        assert await cluster.exists("two-b-gone")
        assert await is_untouched(cluster, requests["two-nobodys"])

    assert not [pair for pair in combinations(map(ip_network, blocks), 2) if pair[0].overlaps(pair[1])]
    wrote = {user: written_by(own, user, since) for user in (A, B)}
    members = {team: {machine.name for machine in machines.values()} for team, machines in teams.items()}
    assert wrote[A] == members["a"] | {CONTROL_PLANE, "two-a-next", requests["two-a-cloud"]}
    assert wrote[B] == members["b"] | {"two-b-next", requests["two-b-cloud"]}
    fields = writers_of_fields(own, cluster.joined)
    assert {len(users) for users in fields.values()} == {1}


def instance_of(machine: Machine) -> Instance:
    """What its cloud knows of it: the same providerID that Talos was told."""
    assert machine.platform is not None
    return Instance(
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
    await cluster.kubelets.turn_not_ready(name)
    native.shut_down(name)

    async def is_tainted() -> bool:
        return SHUTDOWN in await cluster.taints(name)

    await eventually(is_tainted, f"{name} is tainted", 60)
    native.terminate(name)
    await cluster.until_deleted(name)


@pytest.mark.parametrize("apart", [False, True], ids=["all-in-one-memory", "separate-processes"])
async def test_beside_a_native_manager_with_nodes_of_its_own_neither_writes_to_the_others(
    own: ControlPlane, cluster: Cluster, nats_server: NatsServer, tmp_path: Path, *, apart: bool
):
    since = own.audit_mark()
    clouds = [a_machine(f"apart-cloud-{n}", f"10.243.0.{n}", platform="hcloud") for n in range(1, 4)]
    metals = [a_machine(f"apart-metal-{n}", f"10.243.1.{n}") for n in range(1, 4)]
    silent = clouds[2]
    await cluster.join(a_machine(CONTROL_PLANE, "10.243.8.1", control_plane=True))
    everything = "*,node-ipam-controller,cloud-node-lifecycle"
    ours: dict[str, Any] = {"ownership": {"providerIDSchemes": ["talos"]}, "controllers": everything}
    ours |= {"nats": nats_server} if apart else {}
    instances = [instance_of(machine) for machine in clouds]
    async with (
        running(own, cluster, tmp_path, **ours, flags=POD_CIDRS),
        NativeCcm.start(
            tmp_path / "native", own, scheme="hcloud", instances=instances, monitor_seconds=0.5
        ) as native,
    ):
        await cluster.machines.put(silent)
        await cluster.machines.fault(silent.id, unavailable=True)
        await cluster.join(*clouds, *metals)
        requests = await requested(cluster, clouds[0], metals[0])
        await cluster.until_usable(*(machine.name for machine in (*clouds, *metals)))
        assert {await provider_id(cluster, machine.name) for machine in clouds} == {
            instance.provider_id for instance in instances
        }
        for machine in metals:
            assert (await provider_id(cluster, machine.name)).startswith("talos://")
        assert (await cluster.kubelets.outcome_of(requests[metals[0].name], seconds=60)).certificate
        assert await is_untouched(cluster, requests[clouds[0].name])

        await cluster.change(clouds[1].name, stage="shutting down")
        await cluster.fall_silent(clouds[1].name)
        await until_shut_down_and_gone(cluster, native, clouds[1].name)
        await cluster.replace(metals[1].name, by="apart-metal-next")
        await cluster.until_deleted(metals[1].name)
        await cluster.until_usable("apart-metal-next")

    wrote = {user: written_by(own, user, since) for user in (A, NATIVE)}
    ours_alone = {CONTROL_PLANE, "apart-metal-next", requests[metals[0].name]}
    assert wrote[A] == {machine.name for machine in metals} | ours_alone
    assert wrote[NATIVE] == {machine.name for machine in clouds}
    assert {len(users) for users in writers_of_fields(own, cluster.joined).values()} == {1}


async def test_beside_a_native_manager_that_only_deletes_the_provider_id_is_the_natives_and_ours_the_labels(
    own: ControlPlane, cluster: Cluster, tmp_path: Path
):
    whole = a_machine("both-cloud", "10.244.200.1", platform="hcloud")
    late = a_machine("both-late", "10.244.200.2", platform="hcloud")
    metal = a_machine("both-metal", "10.244.200.3")
    ours: dict[str, Any] = {"ownership": {"providerIDSchemes": ["hcloud"]}, "controllers": "*"}
    instances = [instance_of(whole), instance_of(late)]
    await cluster.join(a_machine(CONTROL_PLANE, "10.244.200.8", control_plane=True, platform="hcloud"))
    async with (
        running(own, cluster, tmp_path, **ours),
        NativeCcm.start(
            tmp_path / "native",
            own,
            scheme="hcloud",
            instances=instances,
            controllers=[NODE_LIFECYCLE],
            monitor_seconds=0.5,
        ) as native,
    ):
        # Its cloud's metadata service has not answered yet.
        not_yet = msgspec.structs.replace(late, platform=Platform(platform="hcloud"))
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

    fields = writers_of_fields(own, {whole.name, late.name, metal.name})
    assert {len(users) for users in fields.values()} == {1}
    of_native = {field for (_, field), users in fields.items() if users == {NATIVE}}
    assert of_native == {f"spec.taints[{SHUTDOWN}].{part}" for part in ("key", "effect")}
