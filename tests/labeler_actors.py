"""Around the labeler in tests: an API server's Nodes in memory, a clock to turn, the flow on a real bus."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec

from libs.common.events import (
    Decided,
    EnrichedNodeGone,
    Leading,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    ObservedOrder,
    SnapshotComplete,
)
from libs.common.kube_api.errors import FenceFailed, KubeError, NotFound
from libs.common.kube_api.events import ObjectEvent, event_name
from libs.common.machine import MachineFacts, MachineFault
from libs.common.nats_bus.bus import NatsBus
from libs.common.nats_bus.jetstream import consumer_info
from libs.common.nats_bus.link import Timing
from libs.common.node import Node
from libs.common.process.service import Parts
from libs.common.subjects import DECIDED, ENRICHED_NODE
from libs.common.wiring import DURABLES
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from tests.builders import NOW
from tests.bus_actors import MAX_BYTES, doing, eventually
from tests.json_patch import PatchFailed
from tests.json_patch import apply as apply_json
from tests.status_patch import apply_status

QUICK = Timing(probe_every=0.5, probe_deadline=0.5, retry_first=0.05, retry_cap=0.3, follow_retry_cap=0.3)


class InMemoryNodes:
    """The Nodes and Events of an API server; held to the real one by the labeler's conformance suite."""

    def __init__(self, *nodes: Node) -> None:
        self.events: list[ObjectEvent] = []
        self.requests: list[tuple[str, str]] = []  # (verb, resource), failed ones too
        self.failing: dict[str, KubeError] = {}  # resource -> what every write of it raises
        self.before: Callable[[str], object] = lambda resource: None  # called at the start of each write
        self._documents: dict[str, dict[str, Any]] = {}
        self._event_names: set[str] = set()
        self._version = 1000
        for node in nodes:
            self.put(node)

    def put(self, node: Node) -> Node:
        """Create or replace, as somebody else does; the node gets the next resourceVersion."""
        return self._store(msgspec.json.decode(msgspec.json.encode(node)))

    def change(self, name: str, **metadata: Any) -> Node:
        """Replace parts of the metadata, as somebody else does."""
        node = self.node(name)
        return self.put(
            msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, **metadata))
        )

    def node(self, name: str) -> Node:
        """As it is now."""
        return msgspec.convert(self._documents[name], Node)

    def delete(self, name: str) -> None:
        del self._documents[name]

    def writes(self) -> list[str]:
        """The resources written, in order."""
        return [resource for verb, resource in self.requests if verb != "get"]

    def told(self, name: str) -> list[str]:
        """Reasons of the Events on a Node, in order."""
        return [event.reason for event in self.events if event.about.name == name]

    # ---- node_api.Kubernetes

    async def get_node(self, name: str) -> Node:
        self.requests.append(("get", "nodes"))
        return msgspec.convert(self._found(name), Node)

    async def patch_node(self, name: str, json_patch: Sequence[dict[str, Any]], /) -> Node:
        self._begin("nodes")
        document = self._found(name)
        try:
            return self._store(apply_json(document, list(json_patch)))
        except PatchFailed as error:
            raise FenceFailed(str(error), status=422) from error

    async def patch_node_status(self, name: str, strategic_merge: dict[str, Any], /) -> Node:
        self._begin("nodes/status")
        document = self._found(name)
        try:
            return self._store(apply_status(document, strategic_merge))
        except ValueError as error:
            raise FenceFailed(str(error), status=422) from error

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        self._begin("events")
        name = event_name(event, now)
        if name in self._event_names:
            return False
        self._event_names.add(name)
        self.events.append(event)
        return True

    def _begin(self, resource: str) -> None:
        self.before(resource)
        self.requests.append(("create" if resource == "events" else "patch", resource))
        if resource in self.failing:
            raise self.failing[resource]

    def _found(self, name: str) -> dict[str, Any]:
        if name not in self._documents:
            raise NotFound(f'nodes "{name}" not found', status=404)
        return self._documents[name]

    def _store(self, document: dict[str, Any]) -> Node:
        node = msgspec.convert(document, Node)
        if self._documents.get(node.name) != document:
            self._version += 1
            document["metadata"]["resourceVersion"] = str(self._version)
        self._documents[node.name] = document
        return msgspec.convert(document, Node)


class TurnedClock:
    """Monotonic seconds and the time of day, both moved by hand."""

    def __init__(self, start: datetime = NOW) -> None:
        self.seconds = 1000.0
        self._start = start

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.seconds - 1000.0)

    def turn(self, seconds: float) -> None:
        self.seconds += seconds


class Flow:
    """What watcher and metadata say, and what the labeler decided."""

    def __init__(self, bus: NatsBus, incarnation: str) -> None:
        self.bus = bus
        self.incarnation = incarnation
        self._version = 100

    @classmethod
    @asynccontextmanager
    async def provisioned(cls, url: str, *, led: bool = True) -> AsyncIterator["Flow"]:
        """A stream with its durables and a complete snapshot, led or not yet."""
        bus = await NatsBus.connect((url,), service="watcher", timing=QUICK)
        try:
            flow = cls(bus, await bus.provision(DURABLES, max_bytes=MAX_BYTES))
            await flow.snapshot()
            if led:
                await flow.lead()
            yield flow
        finally:
            await bus.close()

    async def snapshot(self) -> None:
        await self.bus.publish(SnapshotComplete(incarnation=self.incarnation, epoch=1, nodes=0))

    async def lead(self) -> None:
        await self.bus.publish(Leading(incarnation=self.incarnation, epoch=1, holder="test"))

    async def observe(self, node: Node) -> int:
        """The watcher's word of a Node; its place in the stream."""
        order = self._next()
        return await self.bus.publish(
            NodeObserved(incarnation=self.incarnation, order=order, node=node, observed_at=NOW)
        )

    async def gone(self, node: Node) -> int:
        """The watcher's word that it is no more."""
        order = self._next()
        return await self.bus.publish(
            NodeGone(incarnation=self.incarnation, order=order, name=node.name, uid=node.uid, observed_at=NOW)
        )

    async def enrich(
        self, node: Node, facts: MachineFacts, *, observed: int = 0, recognized_by: str = "nodename",
        incarnation: str = "",
    ) -> int:  # fmt: skip
        """Metadata's word of what the machine says; `observed` 0 = the watcher says so first."""
        return await self.bus.publish(
            NodeEnriched(
                incarnation=incarnation or self.incarnation,
                observed_sequence=observed or await self.observe(node),
                node=node,
                facts=facts,
                recognized_by=recognized_by,
                observed_at=NOW,
                enriched_at=NOW,
            )
        )

    async def unreachable(self, node: Node, fault: MachineFault, *, observed: int = 0) -> int:
        """Metadata's word that the machine says nothing."""
        return await self.bus.publish(
            NodeUnreachable(
                incarnation=self.incarnation,
                observed_sequence=observed or await self.observe(node),
                node=node,
                fault=fault,
                attempt=1,
                retry_at=NOW,
                observed_at=NOW,
                enriched_at=NOW,
            )
        )

    async def enriched_gone(self, node: Node) -> int:
        """Metadata passes on that a Node is gone."""
        return await self.bus.publish(
            EnrichedNodeGone(incarnation=self.incarnation, observed_sequence=1, name=node.name, uid=node.uid)
        )

    async def decided(self, name: str) -> Decided | None:
        """What the labeler decided last."""
        message = await self.bus.last(f"{DECIDED}.labeler.node.{name}")
        if message is None:
            return None
        assert isinstance(message.event, Decided)
        return message.event

    async def decisions(self, name: str) -> int:
        """The place of the last decision in the stream, 0 for none: it grows with each one."""
        message = await self.bus.last(f"{DECIDED}.labeler.node.{name}")
        return message.sequence if message else 0

    async def until_decided(self, name: str, *outcomes: str) -> Decided:
        """The labeler's decision, as soon as it is one of these."""

        async def is_decided() -> bool:
            said = await self.decided(name)
            return said is not None and said.outcome in outcomes

        await eventually(is_decided, f"{name} decided as {outcomes}")
        said = await self.decided(name)
        assert said is not None
        return said

    async def until_handled(self) -> None:
        """Everything that metadata has said is settled: nothing pending, in flight or parked."""

        async def is_settled() -> bool:
            info = await consumer_info(await self.bus._link.connection(), DURABLES[0].name)
            return info.num_pending == 0 and info.num_ack_pending == 0

        await eventually(is_settled, f"all of {ENRICHED_NODE} handled")

    def _next(self) -> ObservedOrder:
        self._version += 1
        return ObservedOrder(epoch=1, resource_version=self._version)


@asynccontextmanager
async def labeler_running(
    url: str,
    kube: Any,
    *,
    clock: TurnedClock | None = None,
    seed: int = 1,
    ready: bool = True,
    **settings: Any,
) -> AsyncIterator[LabelerService]:
    """A labeler on a bus of its own, as in a process of its own."""
    clock = clock or TurnedClock()
    bus = await NatsBus.connect((url,), service="labeler", timing=QUICK)
    try:
        parts = Parts(
            bus=bus,
            kube=kube,
            monotonic=clock,
            now=clock.now,
            random=random.Random(seed),
            identity=f"test_{seed}",
        )
        service = LabelerService(parts, LabelerSettings(**settings))
        async with doing(service.run()):
            if ready:
                await eventually(lambda: not service.problems(), "the labeler is ready")
            yield service
    finally:
        await bus.close()
