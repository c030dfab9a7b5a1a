"""The main job on real parts: kubelets join, our processes run with their own rights, nodes become usable."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest

from libs.common.contract.node import BLOCKED_CONDITION, UNINITIALIZED_TAINT
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices

Form = dict[str, Any]
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


async def until_usable(kubelets: KubeletFleet, names: Iterable[str], seconds: float = HANG_SECONDS) -> None:
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
    await wait_until(lambda: writes(control_plane, since)["create", "events"] >= nodes, "Synced events said")


async def test_joining_nodes_become_usable_at_two_node_writes_and_one_event_each(
    start_services: StartServices, join, kubelets: KubeletFleet, control_plane: ControlPlane
):
    await start_services()
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
