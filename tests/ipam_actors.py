"""Around ipam in tests: an API server's Nodes and pages in memory, what others say, an ipam of its own."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from ipaddress import ip_network
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import nats

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Bus
from libs.common.contract.events import (
    Decided,
    EnrichedNodeGone,
    Event,
    Leading,
    NodeEnriched,
    NodeUnreachable,
    SnapshotComplete,
)
from libs.common.contract.machine import AddressStatus, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE, DURABLES
from libs.common.contract.subjects import DECIDED, STREAM
from libs.common.kube.config_maps import ConfigMap
from libs.common.kube.errors import AlreadyExists, Conflict, FenceFailed, KubeError, NotFound
from libs.common.kube.events import ObjectEvent, event_name
from libs.common.kube.objects import Page
from libs.common.service.service import Dependencies
from libs.testbed.nats_server import NatsServer
from services.ipam.service import IpamService
from services.ipam.settings import IpamSettings
from tests.builders import (
    NOW,
    STREAM_ID,
    make_cluster_networks,
    make_facts,
    make_node,
    make_node_gone,
    make_node_observed,
)
from tests.bus_actors import MAX_BYTES, run_during, wait_until, wait_until_led, wait_until_ready
from tests.flow_actors import QUICK
from tests.json_patch import PatchFailed
from tests.json_patch import apply_json_patch as apply_json
from tests.manual_clock import ManualClock

PODS = ("10.244.0.0/16", "fd00:10:244::/48")
REFUSED = MachineFault(
    kind="refused", step="PlatformMetadata", endpoint="cp:50000", message="connection refused"
)
Failing = Callable[[str, str], KubeError | None]  # verb and name -> what is raised


class InMemoryCluster:
    """Nodes, ConfigMaps and Events of an API server; writes are judged as there."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []
        self.patched: list[str] = []  # names of Nodes, of patches that failed too
        self.page_writes = 0  # that succeeded
        self.lists: Counter[str] = Counter()  # of "nodes" and "configmaps", that succeeded
        self.fails_before: Failing = lambda verb, name: None
        self.fails_after: Failing = lambda verb, name: None  # the write is done, its answer lost
        self.watchers: Callable[[Node], Awaitable[object]] | None = None
        self.now: Callable[[], datetime] = lambda: NOW
        self._nodes: dict[str, dict[str, Any]] = {}
        self._config_maps: dict[str, ConfigMap] = {}
        self._event_names: set[str] = set()
        self._version = 1000

    # ---- what others do

    def put(self, node: Node) -> Node:
        """Create or replace a Node, as somebody else does."""
        metadata = msgspec.structs.replace(node.metadata, resource_version=self._next())
        node = msgspec.structs.replace(node, metadata=metadata)
        self._nodes[node.name] = msgspec.json.decode(msgspec.json.encode(node))
        return node

    def delete(self, name: str) -> None:
        del self._nodes[name]

    def node(self, name: str) -> Node:
        return msgspec.convert(self._nodes[name], Node)

    def pod_cidrs(self) -> dict[str, tuple[str, ...]]:
        """By node, of those that have some."""
        nodes = [msgspec.convert(document, Node) for document in self._nodes.values()]
        return {node.name: node.spec.pod_cidrs for node in nodes if node.spec.pod_cidrs}

    def delete_page(self, name: str) -> None:
        del self._config_maps[name]

    @property
    def pages(self) -> Mapping[str, ConfigMap]:
        return self._config_maps

    def list_event_reasons(self, node: str) -> list[str]:
        """Reasons of the Events on a Node, in order."""
        return [event.reason for event in self.events if event.regarding.name == node]

    def _next(self) -> str:
        self._version += 1
        return str(self._version)

    def _fail(self, judge: Failing, verb: str, name: str) -> None:
        error = judge(verb, name)
        if error is not None:
            raise error

    # ---- claims_api.Kubernetes

    async def list_config_maps(
        self, namespace: str, labels: Mapping[str, str]
    ) -> AsyncIterator[Page[ConfigMap]]:
        assert namespace == CLAIM_PAGES_NAMESPACE
        self._fail(self.fails_before, "list", "configmaps")
        found = [
            page for page in self._config_maps.values() if labels.items() <= page.metadata.labels.items()
        ]
        self.lists["configmaps"] += 1
        yield Page(items=tuple(found), resource_version=str(self._version))

    async def get_config_map(self, namespace: str, name: str) -> ConfigMap:
        self._fail(self.fails_before, "get", name)
        if name not in self._config_maps:
            raise NotFound(name, status=404)
        return self._config_maps[name]

    async def create_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        name = config_map.metadata.name
        self._fail(self.fails_before, "create", name)
        if name in self._config_maps:
            raise AlreadyExists(name, status=409)
        return self._write(config_map, "create")

    async def update_config_map(self, namespace: str, config_map: ConfigMap) -> ConfigMap:
        name = config_map.metadata.name
        self._fail(self.fails_before, "update", name)
        if name not in self._config_maps:
            raise NotFound(name, status=404)
        if self._config_maps[name].metadata.resource_version != config_map.metadata.resource_version:
            raise Conflict(name, status=409)
        return self._write(config_map, "update")

    def _write(self, config_map: ConfigMap, verb: str) -> ConfigMap:
        there = self._config_maps.get(config_map.metadata.name)
        created = there.metadata.creation_timestamp if there else self.now()
        metadata = msgspec.structs.replace(
            config_map.metadata, resource_version=self._next(), creation_timestamp=created
        )
        written = msgspec.structs.replace(config_map, metadata=metadata)
        self._config_maps[metadata.name] = written
        self.page_writes += 1
        self._fail(self.fails_after, verb, metadata.name)
        return written

    async def list_nodes(self) -> AsyncIterator[Page[Node]]:
        self._fail(self.fails_before, "list", "nodes")
        nodes = tuple(msgspec.convert(document, Node) for document in self._nodes.values())
        self.lists["nodes"] += 1
        yield Page(items=nodes, resource_version=str(self._version))

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node:
        self.patched.append(name)
        self._fail(self.fails_before, "patch", name)
        if name not in self._nodes:
            raise NotFound(name, status=404)
        try:
            document = apply_json({"spec": {}} | self._nodes[name], list(json_patch))
        except PatchFailed as error:
            raise FenceFailed(str(error), status=422) from error
        document["metadata"]["resourceVersion"] = self._next()
        self._nodes[name] = document
        node = self.node(name)
        if self.watchers is not None:
            await self.watchers(node)
        self._fail(self.fails_after, "patch", name)
        return node

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        name = event_name(event, now)
        if name in self._event_names:
            return False
        self._event_names.add(name)
        self.events.append(event)
        return True


class IpamFlow:
    """Speaks as watcher and metadata do, and reads what ipam said."""

    def __init__(self, connect: Callable[..., Awaitable[Bus]], bus: Bus) -> None:
        self._connect = connect
        self.bus = bus
        self.kube = InMemoryCluster()
        self.stream_id = ""
        self.nats_url = ""

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, tmp_path: Path, *, networks: bool = True) -> AsyncIterator["IpamFlow"]:
        """On a bus of that kind, with a complete snapshot, a leader, and the cluster's networks."""
        async with AsyncExitStack() as stack:
            connect: Callable[..., Awaitable[Bus]]
            url = ""
            if kind == "nats":
                server = await stack.enter_async_context(NatsServer.start(tmp_path / "nats"))
                url = server.url
                connect = partial(NatsBus.connect, (url,), timing=QUICK)
            else:
                memory = MemoryServer()

                async def connect(*, service: str) -> Bus:
                    return MemoryBus(memory)

            bus = await connect(service="watcher")
            stack.push_async_callback(bus.close)
            flow = cls(connect, bus)
            flow.nats_url = url
            flow.kube.watchers = flow.publish_node
            await flow.provision()
            if networks:
                await flow.publish_networks()
            yield flow

    async def provision(self, *there: Node) -> None:
        """A stream as the watcher makes it, with what it says first: what Nodes are there."""
        self.stream_id = await self.bus.provision(DURABLES, max_bytes=MAX_BYTES)
        for node in there:
            await self.publish_node(node)
        await self.publish_snapshot()
        await self.publish_leading()

    async def wipe(self, *there: Node) -> None:
        """NATS loses everything, and the watcher says it anew; of the machines nothing is said yet."""
        client = await nats.connect(self.nats_url)
        await client.jetstream().delete_stream(STREAM)
        await client.close()
        await self.provision(*there)
        await self.publish_networks()

    @asynccontextmanager
    async def run_ipam(
        self, *, clock: ManualClock | None = None, seed: int = 1, ready: bool = True, **settings: Any
    ) -> AsyncIterator[IpamService]:
        """An ipam on a bus of its own, as in a process of its own."""
        clock = clock or ManualClock()
        bus = await self._connect(service="ipam")
        try:
            parts = Dependencies(
                bus=bus,
                kube=self.kube,  # type: ignore[arg-type]  # what ipam needs of it
                monotonic=clock,
                now=clock.now,
                random=random.Random(seed),
                identity=f"test_{seed}",
            )
            service = IpamService(parts, IpamSettings(**settings))
            async with run_during(service.run()):
                await (wait_until_ready if ready else wait_until_led)(service, bus)
                yield service
        finally:
            await bus.close()

    # ---- the watcher's words

    async def publish(self, event: Event) -> int:
        return await self.bus.publish(event)

    async def publish_snapshot(self) -> None:
        await self.publish(SnapshotComplete(stream_id=self.stream_id, epoch=1, nodes=0, requests=0))

    async def publish_leading(self) -> None:
        await self.publish(Leading(stream_id=self.stream_id, epoch=1, holder="test"))

    async def publish_node(self, node: Node) -> int:
        """How a Node is now."""
        return await self.publish(make_node_observed(node, stream_id=self.stream_id))

    async def advance_time(self, clock: ManualClock, seconds: float, listed: str) -> None:
        """That much, while somebody leads, and until that ("nodes", "configmaps") has been listed again."""
        before = self.kube.lists[listed]
        clock.advance(seconds)
        await self.publish_leading()
        await wait_until(lambda: self.kube.lists[listed] > before, f"{listed} are listed")

    # ---- metadata's words

    async def publish_networks(self, **fields: Any) -> None:
        """What a control plane says; keywords are fields of ClusterNetworksObserved."""
        await self.publish(make_cluster_networks(stream_id=self.stream_id, **({"pod_cidrs": PODS} | fields)))

    async def publish_enriched(self, node: Node, facts: MachineFacts, observed_sequence: int = 1) -> int:
        return await self.publish(
            make_enriched(node, facts, stream_id=self.stream_id, place=observed_sequence)
        )

    async def publish_unreachable(self, node: Node, last_known: MachineFacts | None = None) -> None:
        """The Node's machine says nothing."""
        await self.publish(
            NodeUnreachable(
                stream_id=self.stream_id,
                observed_sequence=await self.publish_node(node),
                node=node,
                fault=REFUSED,
                last_known=last_known,
                attempt=1,
                retry_at=NOW,
                observed_at=NOW,
                enriched_at=NOW,
            )
        )

    # ---- what happens in the cluster

    async def join_nodes(self, *numbers: int, facts: MachineFacts | None = None, **fields: Any) -> None:
        """Nodes web-<number> join, seen by the watcher, asked by metadata; keywords are a Node's."""
        for number in numbers:
            node = self.kube.put(make_numbered_node(number, **fields))
            await self.publish_enriched(
                node, facts or make_numbered_facts(number), await self.publish_node(node)
            )

    async def delete_node(self, number: int) -> None:
        """A Node is deleted, and everybody says so."""
        node = self.kube.node(f"web-{number}")
        self.kube.delete(node.name)
        place = await self.publish(make_node_gone(node, stream_id=self.stream_id))
        await self.publish(
            EnrichedNodeGone(stream_id=self.stream_id, observed_sequence=place, name=node.name, uid=node.uid)
        )

    # ---- what ipam did

    async def wait_for_pod_cidrs(self, *numbers: int, seconds: float = 30.0) -> dict[str, tuple[str, ...]]:
        """The pod CIDRs of all, as soon as these Nodes have theirs."""
        names = {f"web-{number}" for number in numbers}
        await wait_until(
            lambda: names <= self.kube.pod_cidrs().keys(), f"{sorted(names)} have pod CIDRs", seconds
        )
        return self.kube.pod_cidrs()

    async def get_decision(self, number: int) -> Decided | None:
        message = await self.bus.get_last(f"{DECIDED}.ipam.node.web-{number}")
        return message.event if message and isinstance(message.event, Decided) else None

    async def wait_for_decision(self, number: int, *outcomes: str, seconds: float = 30.0) -> Decided:
        """The decision, as soon as it is one of these."""
        found: list[Decided] = []

        async def is_decided() -> bool:
            decided = await self.get_decision(number)
            if decided is None or decided.outcome not in outcomes:
                return False
            found.append(decided)
            return True

        await wait_until(is_decided, f"web-{number} decided as {outcomes}", seconds)
        return found[0]


def make_numbered_node(number: int, **fields: Any) -> Node:
    return make_node(f"web-{number}", **({"uid": f"uid-{number}", "ip": get_ip(number)} | fields))


def make_enriched(
    node: Node, facts: MachineFacts, *, stream_id: str = STREAM_ID, place: int = 1
) -> NodeEnriched:
    """Metadata's word of a Node."""
    return NodeEnriched(
        stream_id=stream_id,
        observed_sequence=place,
        node=node,
        facts=facts,
        verified_by="nodename",
        observed_at=NOW,
        enriched_at=NOW,
    )


def get_ip(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}"


def make_numbered_facts(number: int, **fields: Any) -> MachineFacts:
    address = AddressStatus(address=f"{get_ip(number)}/16", link="eth0", flags=128)
    return make_facts(
        **({"node_name": f"web-{number}", "node_ip": get_ip(number), "addresses": (address,)} | fields)
    )


def assert_disjoint(allocations: Mapping[str, Sequence[str]]) -> None:
    """No two blocks touch, of whomever."""
    for family in (4, 6):
        blocks = [
            ip_network(cidr)
            for cidrs in allocations.values()
            for cidr in cidrs
            if ip_network(cidr).version == family
        ]
        assert not any(one.overlaps(other) for one, other in combinations(blocks, 2)), allocations
