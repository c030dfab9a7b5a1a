"""Watchers, metadata and the labeler on one bus and a virtual clock, with faults that a test schedules."""

import asyncio
import contextlib
import random
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from libs.common.bus.protocol import Message, UnreadablePayload
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import NodeEnriched, NodeGone, NodeObserved
from libs.common.contract.node import Node
from libs.common.contract.ordering import epoch_of
from libs.common.contract.subjects import ENRICHED_NODE, FLOW, OBSERVED_NODE
from libs.common.kube.objects import ServiceCidr
from libs.common.service.leader_elector import LeadershipLost
from libs.common.service.service import Dependencies
from services.labeler.service import LabelerService
from services.labeler.settings import LabelerSettings
from services.metadata.service import MetadataService
from services.watcher.service import WatcherService
from services.watcher.settings import WatcherSettings
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.clocks import VirtualClock
from tests.faulty_bus import FaultyBus
from tests.in_memory_api import InMemoryLeases, LeaseConnection
from tests.lossy_server import LossyServer, ReconnectingBus
from tests.metadata_actors import CALM, ScriptedTalos
from tests.watched_nodes import NodeConnection, WatchedNodes
from tests.watcher_actors import QUICK, ScriptedKind

NAMES: Final = ("web-1", "web-2")
WITHOUT_LABELER: Final = ("watcher-a", "watcher-b", "metadata")
WITH_LABELER: Final = (*WITHOUT_LABELER, "labeler")
_ADDRESSES: Final = {"web-1": "10.0.0.5", "web-2": "10.0.0.6"}
_SETTINGS: Final = WatcherSettings(controllers=("cloud-node",), **QUICK)  # type: ignore[arg-type]
_RESTART_SECONDS: Final = 1.0  # until an ended process runs again


class _RecordingCache(StreamCache):
    """Remembers each message: event, subject and epoch, fenced ones included."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.received: list[tuple[str, str, int]] = []

    def apply(self, message: Message) -> None:
        assert not isinstance(message.event, UnreadablePayload)
        self.received.append((type(message.event).__name__, message.subject, epoch_of(message.event)))
        super().apply(message)


class HandoverRun:
    """Runs the processes, and follows the flow as a service does.

    Each Node is created for a new machine, whose providerID ends with the number of the Node's uid.
    """

    def __init__(self, processes: tuple[str, ...], *, has_fences: bool = True) -> None:
        self._processes = processes
        self._has_fences = has_fences
        self._clock = VirtualClock()
        self._server = LossyServer(clock=self._clock.now)
        self.nodes = WatchedNodes()
        self._talos = ScriptedTalos(now=self._clock.now)
        self._cache = _RecordingCache(clock=self._clock, on_message=self._record)
        self._leases = InMemoryLeases()
        self._buses: dict[str, list[FaultyBus]] = {process: [] for process in processes}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gone_uids: set[str] = set()
        self._created = 0
        self._changed = 0
        self._has_lost_messages = False
        self._last_changes: dict[str, str] = {}  # by name of a Node, the value of the label
        self.messages = self._cache.received
        self.violations: list[str] = []
        for name in NAMES:
            self.put(name)

    async def run(self, steps: list[tuple[str, str, float]]) -> None:
        """Take each step and let that many seconds pass; then end all faults and let the flow settle."""
        followed = ReconnectingBus(self._server)
        following = asyncio.create_task(followed.follow("flow", f"{FLOW}.>", self._cache))
        for process in self._processes:
            self.start(process)
        try:
            for verb, what, seconds in steps:
                await getattr(self, verb)(what) if verb == "restart" else getattr(self, verb)(what)
                await asyncio.sleep(seconds)
            for process in self._processes:
                self.resume(process)
            await self._settle()
        finally:
            for process in self._processes:
                await self._stop(process)
            for bus in chain.from_iterable(self._buses.values()):
                await bus.close_at_end()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _settle(self, within_seconds: float = 30.0) -> None:
        """Wait until the flow equals the cluster; otherwise record the difference as a violation."""
        with contextlib.suppress(AssertionError):
            await wait_until(lambda: not self.find_difference(), seconds=within_seconds)
        if difference := self.find_difference():
            self.violations.append(f"{difference} {within_seconds:g} s after the last fault")
        self.violations += self.nodes.violations

    def find_difference(self) -> str:
        """Return how the followed flow differs from the cluster; "" if it does not."""
        if not self._cache.is_complete:
            return "the cache is not complete"
        for name in NAMES:
            node = self.nodes.watched.objects.get(name)
            observed = self._cache.get_event(f"{OBSERVED_NODE}.{name}")
            enriched = self._cache.get_event(f"{ENRICHED_NODE}.{name}")
            shown = observed.node if isinstance(observed, NodeObserved) else None
            passed_on = enriched.node if isinstance(enriched, NodeEnriched) else None
            if shown != node:
                return f"{name} is observed in another state"
            if node is None and self._has_lost_messages:
                continue  # the facts stay for an hour if the stream has lost that there was such a Node
            if (passed_on and passed_on.uid) != (node and node.uid):
                return f"{name} is enriched in another state"
            if node and "labeler" in self._processes and (difference := self._find_unwritten(node)):
                return f"{name} {difference}"
        return ""

    def _find_unwritten(self, node: Node) -> str:
        """Return what the labeler has not written, or has written wrongly."""
        if not node.is_initialized:
            return "is not initialized"
        if node.spec.provider_id != _build_provider_id(node.uid):
            return f"has the providerID {node.spec.provider_id} of another machine"
        if node.metadata.labels["changes"] != self._last_changes[node.name]:
            return "has lost a label of another client"
        return ""

    def _record(self, message: Message) -> None:
        """Compare a valid message with the earlier ones."""
        event = message.event
        if isinstance(event, NodeGone):
            self._gone_uids.add(event.uid)
        if isinstance(event, NodeObserved) and event.node.uid in self._gone_uids:
            self.violations.append(f"{event.node.name}, which is deleted, comes back")

    # ---- steps

    def put(self, name: str) -> None:
        """Create the Node, or change a label."""
        self._changed += 1
        exists = name in self.nodes.watched.objects
        node = self.nodes.node(name) if exists else self._create(name)
        self._last_changes[name] = str(self._changed)
        labels = {**node.metadata.labels, "changes": str(self._changed)}
        self.nodes.put(replace(node, metadata=replace(node.metadata, labels=labels)))

    def _create(self, name: str) -> Node:
        """Return the Node of a new machine."""
        self._created += 1
        uid, address = f"uid-{self._created}", _ADDRESSES[name]
        provider_id = _build_provider_id(uid)
        self._talos.put(
            make_facts(node_name=name, node_ip=address, platform="hcloud", provider_id=provider_id)
        )
        return make_node(name, uid=uid, ip=address)

    def delete(self, name: str) -> None:
        if name in self.nodes.watched.objects:
            self.nodes.delete(name)

    def pause(self, process: str) -> None:
        self._buses[process][-1].pause()

    def resume(self, process: str) -> None:
        """Resume the process, and let leave what ended processes of that name have begun to publish."""
        for bus in self._buses[process]:
            bus.resume()

    def lose_reply(self, process: str) -> None:
        self._buses[process][-1].lost_replies += 1

    def lose_end(self, count: str) -> None:
        """NATS loses the last messages; those that they had replaced are there again."""
        self._lose_end(int(count), restores=True)

    def lose_end_and_older(self, count: str) -> None:
        """NATS loses the last messages, and has none of their subjects any more."""
        self._lose_end(int(count), restores=False)

    def _lose_end(self, count: int, *, restores: bool) -> None:
        self._has_lost_messages = True
        self._gone_uids.clear()  # a lost deletion is published again
        self._server.lose_end(count, restores=restores)

    async def restart(self, process: str) -> None:
        """End the process, paused or not, and start another one."""
        await self._stop(process)
        self.start(process)

    def start(self, process: str) -> None:
        self._tasks[process] = asyncio.create_task(self._run_process(process, self._connect(process)))

    async def _run_process(self, process: str, bus: Any) -> None:
        """Run the process, and another one when it has lost its Lease, as a kubelet does."""
        while True:
            try:
                await self._build(process, bus).run()
            except LeadershipLost:
                await asyncio.sleep(_RESTART_SECONDS)
            bus = self._connect(process)

    def _connect(self, process: str) -> FaultyBus:
        bus = FaultyBus(ReconnectingBus(self._server))
        self._buses[process].append(bus)
        return bus

    def _build(self, process: str, bus: Any) -> LabelerService | MetadataService | WatcherService:
        identity = f"{process}-{len(self._buses[process])}"
        kube: Any = LeaseConnection(self._leases, reach=bus.reach)
        if process == "labeler":
            kube = NodeConnection(self.nodes, bus, has_fences=self._has_fences)
        dependencies = Dependencies(
            bus=bus,
            kube=kube,
            monotonic=self._clock,
            now=self._clock.now,
            random=random.Random(identity),
            identity=identity,
        )
        if process == "metadata":
            return MetadataService(dependencies, CALM, talos=self._talos)
        if process == "labeler":
            return LabelerService(dependencies, LabelerSettings())
        return WatcherService(
            dependencies,
            _SETTINGS,
            node_source=self.nodes.watched.source,
            service_cidr_source=ScriptedKind[ServiceCidr]().source,
        )

    async def _stop(self, process: str) -> None:
        task = self._tasks.pop(process)
        if task.done():
            self.violations.append(f"{process} has ended: {task.exception()!r}")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _build_provider_id(uid: str) -> str:
    return f"hcloud://{uid.removeprefix('uid-')}"
