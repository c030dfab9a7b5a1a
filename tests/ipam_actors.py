"""ipam under test: Nodes and claim pages of an API server in memory, and an ipam on a bus of its own."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from libs.common.bus.protocol import Bus
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.common.kube.errors import KubeError
from libs.common.kube.objects import ConfigMap, Page
from libs.testbed.child_process import HANG_SECONDS
from services.ipam.on_node_enriched import RETRY_SECONDS
from services.ipam.service import IpamService
from services.ipam.settings import IpamSettings
from tests.builders import (
    make_cluster_networks,
    make_facts,
    make_node,
)
from tests.bus_actors import wait_until
from tests.bus_server import BusServer, run_service
from tests.clocks import ManualClock
from tests.in_memory_api import InMemoryEvents
from tests.ipam_server import IpamServer
from tests.pod_cidrs import OwnedBlock, list_overlapping
from tests.service_flow import ServiceFlow

SOON = RETRY_SECONDS * 2 / 3  # a wait that ends within it was ended by a change, not by the next delivery
PODS = ("10.244.0.0/16", "fd00:10:244::/48")
Failing = Callable[[str, str], KubeError | None]  # verb and name -> what is raised


class InMemoryCluster(InMemoryEvents, IpamServer):
    """Nodes, ConfigMaps and Events of an API server; writes fail as they do there."""

    def __init__(self) -> None:
        InMemoryEvents.__init__(self)
        IpamServer.__init__(self)
        self.patched: list[str] = []  # names of Nodes, of patches that failed too
        self.lists: Counter[str] = Counter()  # of "nodes" and "configmaps", that succeeded
        self.fails_before: Failing = lambda verb, name: None
        self.fails_after: Failing = lambda verb, name: None  # the write is done, its answer lost
        self.watchers: Callable[[Node], Awaitable[object]] | None = None
        self.gate = asyncio.Event()  # cleared, it holds each list of ConfigMaps
        self.gate.set()

    def pod_cidrs(self) -> dict[str, tuple[str, ...]]:
        """Pod CIDRs by Node name; Nodes without pod CIDRs are left out."""
        return {node.name: node.spec.pod_cidrs for node in self.nodes.values() if node.spec.pod_cidrs}

    def _fail(self, judge: Failing, verb: str, name: str) -> None:
        error = judge(verb, name)
        if error is not None:
            raise error

    # ---- requests of ipam

    async def list_config_maps(
        self, namespace: str, labels: Mapping[str, str]
    ) -> AsyncIterator[Page[ConfigMap]]:
        assert namespace == CLAIM_PAGES_NAMESPACE
        await self.gate.wait()
        self._fail(self.fails_before, "list", "configmaps")
        self.lists["configmaps"] += 1
        yield Page(items=tuple(self.pages.values()), resource_version="")

    async def create_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        return self._write("create", config_map)

    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        return self._write("update", config_map)

    def _write(self, verb: str, config_map: ConfigMap) -> ConfigMap:
        self._fail(self.fails_before, verb, config_map.metadata.name)
        written = self.put_page(None, config_map)
        self._fail(self.fails_after, verb, config_map.metadata.name)
        return written

    async def list_nodes(self) -> AsyncIterator[Page[Node]]:
        self._fail(self.fails_before, "list", "nodes")
        self.lists["nodes"] += 1
        yield Page(items=tuple(self.nodes.values()), resource_version="")

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node:
        self.patched.append(name)
        self._fail(self.fails_before, "patch", name)
        node = self.patch(None, name, json_patch)
        if self.watchers is not None:
            await self.watchers(node)
        self._fail(self.fails_after, "patch", name)
        return node


class IpamFlow(ServiceFlow):
    """Publishes as watcher and metadata do, and reads what ipam decides and writes."""

    decisions_of = "ipam.node"

    def __init__(self, server: BusServer, bus: Bus) -> None:
        super().__init__(bus)
        self.kube = InMemoryCluster()
        self._server = server

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, tmp_path: Path, *, networks: bool = True) -> AsyncIterator["IpamFlow"]:
        """On a bus of that kind, with a complete snapshot, a leader, and the cluster's networks."""
        async with BusServer.open(kind, tmp_path) as server, server.open_bus("watcher") as bus:
            flow = cls(server, bus)
            flow.kube.watchers = flow.publish_node
            await flow.start()
            if networks:
                await flow.publish_networks()
            yield flow

    async def wipe(self, *nodes: Node) -> None:
        """NATS loses everything; the watcher and the networks are published again, no facts yet."""
        await self._server.delete_stream()
        await self.start(*nodes)
        await self.publish_networks()

    def run_ipam(
        self, *, clock: ManualClock | None = None, seed: int = 1, ready: bool = True, **settings: Any
    ) -> AbstractAsyncContextManager[IpamService]:
        """An ipam on a bus of its own."""
        return run_service(
            self._server,
            "ipam",
            lambda parts: IpamService(parts, IpamSettings(**settings)),
            kube=self.kube,
            clock=clock,
            seed=seed,
            ready=ready,
        )

    async def publish_networks(self, **fields: Any) -> None:
        """The cluster's networks; keywords are fields of ClusterNetworksObserved."""
        await self.publish(make_cluster_networks(stream_id=self.stream_id, **({"pod_cidrs": PODS} | fields)))

    async def advance_time(self, clock: ManualClock, seconds: float, listed: str) -> None:
        """Advance the clock, with a leader, until ipam has listed "nodes" or "configmaps" again."""
        before = self.kube.lists[listed]
        clock.advance(seconds)
        await self.publish_leading()
        await wait_until(lambda: self.kube.lists[listed] > before, f"{listed} are listed")

    # ---- changes in the cluster

    async def join_nodes(self, *numbers: int, facts: MachineFacts | None = None, **fields: Any) -> None:
        """Nodes web-<number> join; watcher and metadata publish them. Keywords are those of `make_node`."""
        for number in numbers:
            node = self.kube.put_node(make_numbered_node(number, **fields))
            await self.enrich(node, facts or make_numbered_facts(number))

    async def delete_node(self, number: int) -> None:
        """The Node is deleted; watcher and metadata publish that."""
        node = self.kube.nodes.pop(f"web-{number}")
        await self.publish_enriched_gone(node, observed=await self.publish_node_gone(node))

    # ---- results of ipam

    async def wait_for_pod_cidrs(
        self, *numbers: int, seconds: float = HANG_SECONDS
    ) -> dict[str, tuple[str, ...]]:
        """The pod CIDRs of all Nodes, once these Nodes have theirs."""
        names = {f"web-{number}" for number in numbers}
        await wait_until(
            lambda: names <= self.kube.pod_cidrs().keys(), f"{sorted(names)} have pod CIDRs", seconds
        )
        return self.kube.pod_cidrs()


def make_numbered_node(number: int, **fields: Any) -> Node:
    return make_node(f"web-{number}", **({"uid": f"uid-{number}", "ip": get_ip(number)} | fields))


def get_ip(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def make_numbered_facts(number: int, **fields: Any) -> MachineFacts:
    address = AddressStatus(address=f"{get_ip(number)}/16", link="eth0", flags=128)
    return make_facts(
        **({"node_name": f"web-{number}", "node_ip": get_ip(number), "addresses": (address,)} | fields)
    )


def assert_disjoint(allocations: Mapping[str, Sequence[str]]) -> None:
    """No two blocks overlap."""
    blocks = [OwnedBlock(node, cidr) for node, cidrs in allocations.items() for cidr in cidrs]
    assert not list_overlapping(blocks)
