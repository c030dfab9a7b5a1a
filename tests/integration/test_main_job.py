"""The main job on real parts: kubelets join, our processes run with their own rights, nodes become usable."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec
import pytest

from libs.common.contract.node import BLOCKED_CONDITION, UNINITIALIZED_TAINT
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices
from tests.integration.service_cluster import FORMS, MEMORY

Form = dict[str, Any]
both_forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
WRITES = (("patch", "nodes"), ("patch", "nodes/status"), ("create", "events"))
_numbers = itertools.count(1)


def some_machines(count: int, platform: str = "hcloud") -> list[SimMachineFacts]:
    return [
        make_machine(f"job-{n}.example.com", f"10.200.{n // 250}.{n % 250 + 1}", platform=platform, zone="z1")
        for n in itertools.islice(_numbers, count)
    ]


async def node(kubelets: KubeletFleet, name: str) -> dict[str, Any]:
    return dict((await kubelets.request("GET", f"/api/v1/nodes/{name}")).body)


def is_usable(node: dict[str, Any]) -> bool:
    return UNINITIALIZED_TAINT not in {taint["key"] for taint in node["spec"].get("taints", [])}


def blocked(node: dict[str, Any]) -> dict[str, Any] | None:
    return next((c for c in node["status"]["conditions"] if c["type"] == BLOCKED_CONDITION), None)


async def until_usable(kubelets: KubeletFleet, names: Iterable[str], seconds: float = 60) -> None:
    for name in names:

        async def usable(name: str = name) -> bool:
            return is_usable(await node(kubelets, name))

        await wait_until(usable, f"{name} usable", seconds)


@pytest.fixture
async def join(
    kubelets: KubeletFleet, machines: MachineFleet
) -> AsyncIterator[Callable[..., Awaitable[list[str]]]]:
    """Machines run and their kubelets join; all are gone at the end."""
    joined: list[SimMachineFacts] = []

    async def joining(some: list[SimMachineFacts], **flags: Any) -> list[str]:
        await machines.put_machines(*some)
        joined.extend(some)
        await kubelets.join_all([SimKubelet.of_machine(machine, **flags) for machine in some])
        return [machine.name for machine in some]

    yield joining
    for machine in joined:
        await kubelets.delete_node(machine.name)
    await machines.delete_machines(*(machine.id for machine in joined))


def requests_of(control_plane: ControlPlane, since: int) -> Counter[tuple[str, str, str]]:
    """What our services asked for and got, the user's common prefix left out.

    A patch whose fence failed wrote nothing: kube-controller-manager moves the taints of a joining node.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    for request, count in control_plane.audit_counts(since).items():
        if request.user.startswith("talos-ccm") and request.succeeded:
            user = request.user.removeprefix("talos-ccm").removeprefix("-")
            counts[user, request.verb, request.resource] += count
    return counts


def writes(control_plane: ControlPlane, since: int) -> dict[tuple[str, str], int]:
    """How often our services have written each of what a joining node costs."""
    ours = requests_of(control_plane, since)
    return {write: sum(n for (_, *what), n in ours.items() if tuple(what) == write) for write in WRITES}


async def until_synced(control_plane: ControlPlane, since: int, nodes: int) -> None:
    """The Event is the last that is written about a joining node."""
    await wait_until(
        lambda: writes(control_plane, since)["create", "events"] >= nodes, "Synced events said", 60
    )


@both_forms
async def test_joining_nodes_become_usable_at_two_node_writes_and_one_event_each(
    start_services: StartServices, join, kubelets: KubeletFleet, control_plane: ControlPlane, form: Form
):
    await start_services(**form)
    since = control_plane.audit_mark()
    count = 20
    names = await join(some_machines(count))
    await until_usable(kubelets, names)
    one = await node(kubelets, names[0])
    assert one["spec"]["providerID"].startswith("hcloud://")
    assert one["metadata"]["labels"]["topology.kubernetes.io/zone"] == "z1"
    assert blocked(one) is None

    await until_synced(control_plane, since, count)
    assert writes(control_plane, since) == dict.fromkeys(WRITES, count)


async def test_a_node_whose_machine_is_down_says_why_within_30_s_and_stops_saying_so_when_it_is_up(
    start_services: StartServices, join, kubelets: KubeletFleet, machines: MachineFleet
):
    await start_services()
    (machine,) = some_machines(1)
    await machines.put_machines(machine)
    await machines.set_faults(machine.id, unavailable=True)
    (name,) = await join([machine])

    async def says_why() -> bool:
        return blocked(await node(kubelets, name)) is not None

    await wait_until(says_why, "blocked with a reason", 30)
    condition = blocked(await node(kubelets, name))
    assert condition is not None
    assert condition["status"] == "True"
    assert machine.reachable_at[0] in condition["message"]
    assert not is_usable(await node(kubelets, name))

    await machines.set_faults(machine.id)
    await until_usable(kubelets, [name], 90)
    assert blocked(await node(kubelets, name)) is None


async def test_nodes_that_join_while_nats_is_wiped_become_usable(
    start_services: StartServices, join, kubelets: KubeletFleet, nats_server: NatsServer
):
    await start_services()
    await until_usable(kubelets, await join(some_machines(3)))
    await nats_server.kill()
    names = await join(some_machines(5))
    await nats_server.wipe()
    await until_usable(kubelets, names)


async def test_a_machine_that_changes_changes_its_node(
    start_services: StartServices, join, kubelets: KubeletFleet, machines: MachineFleet
):
    await start_services(**MEMORY)
    (machine,) = some_machines(1)
    (name,) = await join([machine])
    await until_usable(kubelets, [name])
    platform = machine.platform
    assert platform is not None
    await machines.change_machine(machine.id, platform=msgspec.structs.replace(platform, zone="z2"))

    async def moved() -> bool:
        labels = (await node(kubelets, name))["metadata"]["labels"]
        return bool(labels["topology.kubernetes.io/zone"] == "z2")

    await wait_until(moved, "in zone z2", 30)


async def test_a_quiet_cluster_is_left_alone(
    start_services: StartServices, join, kubelets: KubeletFleet, control_plane: ControlPlane
):
    await start_services()
    begun = control_plane.audit_mark()
    names = await join(some_machines(3))
    await until_usable(kubelets, names)
    await until_synced(control_plane, begun, len(names))
    since = control_plane.audit_mark()
    for name in names:  # a heartbeat changes nothing that we read
        await kubelets.heartbeat(name)
    # A watch tells in order: once a node that joins afterwards is usable, the heartbeats have been heard.
    await until_usable(kubelets, await join(some_machines(1)))
    await until_synced(control_plane, since, 1)
    assert writes(control_plane, since) == dict.fromkeys(WRITES, 1)
