"""Pod CIDRs of a burst at the real API server: three replicas share it, and one is killed in the middle."""

import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from itertools import pairwise
from typing import Any

import pytest

from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, DEFAULT_SERVICES, IPAM
from libs.testbed.control_plane.audit_log import WriteRequest
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import ServiceProcesses
from services.ipam.core.pages import NAME_PREFIX
from tests.bus_actors import run_during, wait_until
from tests.integration.conftest import StartServices

Block = IPv4Network | IPv6Network
Given = dict[str, tuple[Block, ...]]

COUNT = int(os.environ.get("TALOS_CCM_TEST_IPAM_NODES", "150"))
REPLICAS = 3
PODS = ("10.180.0.0/14", "fd00:10:180::/48")
# Both lie where the next free blocks would be: nothing but care keeps them out of the pods' networks.
SERVICE_NETWORKS = ("10.180.2.0/23", "fd00:10:180:0:3::/112")
INSIDE = (("10.180.7.9", "fd00:10:180:0:9::7"), ("10.180.40.1", "fd00:10:180:0:20::1"))
FLAGS = (
    "--allocate-node-cidrs",
    f"--cluster-cidr={','.join(PODS)}",
    f"--service-cluster-ip-range={','.join(SERVICE_NETWORKS)}",
)
SERVED = "talosccm_ipam_nodes_served_total"
# A watcher that cannot renew its Lease in time (the machine is overloaded) ends; no kubelet restarts it here.
CONFIG_MAPS = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"


def some_machines(first: int, count: int) -> list[SimMachineFacts]:
    return [
        make_machine(f"ipam-{n}", f"10.232.{n // 250}.{n % 250 + 1}", ip6=f"2001:db8:232::{n + 1:x}")
        for n in range(first, first + count)
    ]


class Cluster:
    """Machines and kubelets that join, and the results on their Nodes."""

    def __init__(self, kubelets: KubeletFleet, machines: MachineFleet) -> None:
        self.kubelets = kubelets
        self.joined: dict[str, SimMachineFacts] = {}
        self._machines = machines

    async def join(self, some: list[SimMachineFacts]) -> None:
        self.joined.update((machine.name, machine) for machine in some)
        await self._machines.put_machines(*some)
        await self.kubelets.join_all(SimKubelet.of_machine(machine) for machine in some)

    async def served(self, seconds: float = 90.0) -> Given:
        """The blocks of each Node that has joined, once all have some.

        Asked of one Node after the other: lists of all would be most of what this API server has to do.
        """
        return {name: await self._blocks_of(name, seconds) for name in self.joined}

    async def _blocks_of(self, name: str, seconds: float) -> tuple[Block, ...]:
        spec: dict[str, Any] = {}

        async def has_some() -> bool:
            nonlocal spec
            spec = (await self.kubelets.request("GET", f"/api/v1/nodes/{name}")).body["spec"]
            return "podCIDRs" in spec

        await wait_until(has_some, f"{name} has pod CIDRs", seconds)
        return tuple(map(ip_network, spec["podCIDRs"]))

    async def leave(self) -> None:
        """Neither nodes nor machines nor claims are left to others of this API server."""
        for name in self.joined:
            await self.kubelets.delete_node(name)
        await self._machines.delete_machines(*(machine.id for machine in self.joined.values()))
        pages = (await self.kubelets.request("GET", CONFIG_MAPS)).body["items"]
        for name in (page["metadata"]["name"] for page in pages):
            if name.startswith(NAME_PREFIX):
                await self.kubelets.request("DELETE", f"{CONFIG_MAPS}/{name}")


@pytest.fixture
async def cluster(kubelets: KubeletFleet, machines: MachineFleet) -> AsyncIterator[Cluster]:
    running = Cluster(kubelets, machines)
    yield running
    await running.leave()


def list_ipam_writes(control_plane: ControlPlane, since: int, resource: str) -> list[WriteRequest]:
    """The writes of all replicas: ipam is a separate process with its own user."""
    writes = control_plane.list_writes((resource,), since)
    return [write for write in writes if write.user == get_user_name(IPAM)]


async def assert_one_patch_each(control_plane: ControlPlane, since: int, names: set[str]) -> None:
    """Granted once, or cut off with the replica that was killed: what that one did, the log cannot tell."""

    def list_patched(*codes: int) -> Counter[str]:
        patches = list_ipam_writes(control_plane, since, "nodes")
        return Counter(write.about for write in patches if write.code in codes)

    def of_all() -> bool:  # which are in the log a moment after the Node shows it
        return list_patched(HTTPStatus.OK, HTTPStatus.GATEWAY_TIMEOUT).keys() == names

    await wait_until(of_all, "a patch for each in the log")
    granted = list_patched(HTTPStatus.OK)
    assert set(granted.values()) == {1}
    assert len(granted) > 0.8 * len(names)


def assert_disjoint(blocks: Iterable[Block]) -> None:
    """Sorted, a block that overlaps any other overlaps its neighbour."""
    ordered = sorted(blocks, key=lambda block: (block.version, int(block.network_address), block.prefixlen))
    assert [pair for pair in pairwise(ordered) if pair[0].overlaps(pair[1])] == []


def assert_right(given: Given, machines: Iterable[SimMachineFacts]) -> None:
    """Each Node has a block of each family inside the pod networks, which overlaps no other range."""
    pods = [ip_network(network) for network in PODS]
    for blocks in given.values():
        assert [block.version for block in blocks] == [4, 6]
        assert all(
            block.subnet_of(network)  # type: ignore[arg-type]  # of one family, as was just asserted
            for block, network in zip(blocks, pods, strict=True)
        )
    everything = [block for blocks in given.values() for block in blocks]
    services = [ip_network(network) for network in SERVICE_NETWORKS]
    assert_disjoint([*everything, *services])
    addresses = [ip_address(address) for machine in machines for address in machine.reachable_at]
    assert [block for block in everything for address in addresses if address in block] == []


async def served_by(services: ServiceProcesses, name: str) -> float:
    """How many Nodes that replica has given pod CIDRs."""
    said = re.search(rf"^{SERVED} (\S+)$", await services.fetch_page(name, "/metrics"), re.MULTILINE)
    return float(said[1]) if said else 0.0


async def kill_one_in_the_middle(
    services: ServiceProcesses, cluster: Cluster, some: list[SimMachineFacts]
) -> None:
    """The first half joins; as soon as a replica has served some of it that one ends, and the others join."""
    replicas = [name for name in services.children if name.startswith(IPAM.service)]
    assert len(replicas) == REPLICAS
    half, busy = len(some) // 2, ""
    before = {name: await served_by(services, name) for name in replicas}

    async def one_is_busy() -> bool:
        nonlocal busy
        served = {name: await served_by(services, name) - before[name] for name in replicas}
        busy = max(served, key=lambda name: served[name])
        return served[busy] >= half // 8

    async with run_during(cluster.join(some[:half])) as joining:
        await wait_until(one_is_busy, "a replica has served some of them")
        await services.kill(busy)
        await joining
    await cluster.join(some[half:])


async def test_a_burst_gets_disjoint_blocks_with_one_patch_each_although_one_of_three_replicas_is_killed(
    start_services: StartServices, cluster: Cluster, control_plane: ControlPlane
):
    services = await start_services(
        wirings=(*DEFAULT_SERVICES, IPAM),
        flags=FLAGS,
        replicas={"ipam": REPLICAS},
    )
    # Addresses count from when they are known: these machines are there before the others come.
    inside = [make_machine(f"ipam-inside-{ip}", ip, ip6=ip6) for ip, ip6 in INSIDE]
    await cluster.join(inside)
    await cluster.served()

    since = control_plane.audit_mark()
    burst = some_machines(0, COUNT)
    await kill_one_in_the_middle(services, cluster, burst)
    given = await cluster.served()

    assert_right(given, cluster.joined.values())
    await assert_one_patch_each(control_plane, since, {machine.name for machine in burst})
    claims = list_ipam_writes(control_plane, since, "configmaps")
    # Promised are 0.1 per node, which the bench holds against 1000 of them. Each replica begins with a write
    # for its first node alone and learns of the others by being refused: of 150 nodes that is most of it. On
    # a machine that is busy with others it takes longer, and the replicas meet more often.
    assert len(claims) <= 0.1 * COUNT + 10 * REPLICAS, Counter(write.code for write in claims)
