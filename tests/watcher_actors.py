"""Participants of a watcher test: a scripted API server, and a follower of the published flow."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Generic, NoReturn, TypeVar

import msgspec

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.ordered_publisher import OrderedPublisher
from libs.common.bus.protocol import Bus
from libs.common.clocks import utc_now
from libs.common.contract.events import (
    Event,
    ExistingObject,
    Leading,
    NodeObserved,
    ObservedCsr,
    ObservedKubeService,
    ObservedNode,
    SnapshotComplete,
)
from libs.common.contract.kube_service import KubeService, trim_kube_service
from libs.common.contract.node import Node, ObjectMeta, trim_node
from libs.common.contract.signing_request import SigningRequest, trim_signing_request
from libs.common.contract.subjects import FLOW, OBSERVED_CSR, OBSERVED_NODE, OBSERVED_SERVICE
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import KubeError
from libs.common.kube.objects import ServiceCidr, ServiceCidrSpec, UnreadableObject
from libs.common.kube.watch_events import Bookmark, Changed, Deleted, ListSnapshot, WatchEvent
from libs.testbed.child_process import HANG_SECONDS
from services.watcher.core.kinds import Kind
from services.watcher.core.leader_epoch import LeaderEpoch
from services.watcher.core.publish_decision import FencingToken
from services.watcher.core.published_state import PublishedState
from services.watcher.core.store import Store
from services.watcher.informer import Informer, ObjectSourceFactory
from services.watcher.observation_publisher import ObservationPublisher
from services.watcher.resync_requests import ResyncRequests
from services.watcher.service import WatcherService
from services.watcher.settings import WatcherSettings
from tests.builders import make_node
from tests.bus_actors import MAX_BYTES, Recorder, run_during, wait_until
from tests.clocks import ManualClock, VirtualClock
from tests.service_flow import make_dependencies

StoredT = TypeVar("StoredT", bound=Node | SigningRequest | KubeService | ServiceCidr)


_TRIMS: Final[dict[type, Callable[[Any], Any]]] = {
    Node: trim_node,
    SigningRequest: trim_signing_request,
    KubeService: trim_kube_service,
}


class ScriptedKind(Generic[StoredT]):
    """Objects of one kind in an API server, delivered as by the reflector to any number of watchers."""

    def __init__(self, *objects: StoredT) -> None:
        self.version = 1000
        self.objects = {_key(each): each for each in objects}
        self.unreadable: tuple[str, ...] = ()
        self.refusal: KubeError | None = None  # instead of a list
        self.lists = 0
        self.asked: list[str] = []  # names whose existence was checked
        self.freshness: float | None = 0.0
        self._listeners: list[asyncio.Queue[WatchEvent[StoredT]]] = []
        self._granted = asyncio.Event()

    def source(
        self, on_unreadable: Callable[[UnreadableObject], None], on_trouble: Callable[[Exception], None]
    ) -> "_ScriptedSource[StoredT]":
        return _ScriptedSource(self, on_unreadable, on_trouble)

    def put(self, changed: StoredT) -> StoredT:
        """Add or modify; the object gets the next resourceVersion."""
        self.version += 1
        self.objects[_key(changed)] = stored = _at(changed, self.version)
        self._tell(Changed(_trim(stored)))
        return stored

    def delete(self, name: str) -> None:
        """Delete it; its last state has the version of the deletion, as the API server's does."""
        self.version += 1
        self._tell(Deleted(_at(self.objects.pop(name), self.version)))

    def bookmark(self) -> None:
        self._tell(Bookmark(str(self.version)))

    def list_again(self) -> None:
        """As after a 410."""
        self._tell(self._list())

    def grant(self) -> None:
        """Stop refusing."""
        self.refusal = None
        self._granted.set()

    def _list(self) -> ListSnapshot[StoredT]:
        self.lists += 1
        return ListSnapshot(tuple(map(_trim, self.objects.values())), str(self.version), self.unreadable)

    def _tell(self, event: WatchEvent[StoredT]) -> None:
        for listener in self._listeners:
            listener.put_nowait(event)

    async def _listen(self, handle: Callable[[WatchEvent[StoredT]], Awaitable[None]]) -> NoReturn:
        queue: asyncio.Queue[WatchEvent[StoredT]] = asyncio.Queue()
        if self.refusal is not None:
            await self._granted.wait()
        self._listeners.append(queue)
        try:
            await handle(self._list())
            while True:
                await handle(await queue.get())
        finally:
            self._listeners.remove(queue)


def _key(stored: StoredT) -> str:
    return stored.name if isinstance(stored, ServiceCidr) else stored.key


def _trim(stored: StoredT) -> StoredT:
    """The object without what the watcher does not read, as the reflector delivers it."""
    trim: Callable[[StoredT], StoredT] = _TRIMS.get(type(stored), lambda each: each)
    return trim(stored)


def _at(stored: StoredT, version: int) -> StoredT:
    metadata = msgspec.structs.replace(stored.metadata, resource_version=str(version))
    return msgspec.structs.replace(stored, metadata=metadata)


def make_nodes(count: int) -> list[Node]:
    """n-0.example, n-1.example and so on."""
    return [make_node(f"n-{i}.example", uid=f"uid-{i}", resource_version=str(i + 1)) for i in range(count)]


def make_service_cidr(name: str, *cidrs: str) -> ServiceCidr:
    """A ServiceCIDR with these ranges."""
    return ServiceCidr(metadata=ObjectMeta(name=name), spec=ServiceCidrSpec(cidrs=cidrs))


ScriptedNodes = ScriptedKind[Node]
ScriptedRequests = ScriptedKind[SigningRequest]
ScriptedServices = ScriptedKind[KubeService]


class _ScriptedSource(Generic[StoredT]):
    def __init__(
        self,
        script: ScriptedKind[StoredT],
        on_unreadable: Callable[[UnreadableObject], None],
        on_trouble: Callable[[Exception], None],
    ) -> None:
        self._script = script
        self._on_unreadable = on_unreadable
        self._on_trouble = on_trouble

    def problems(self) -> tuple[str, ...]:
        refusal = self._script.refusal
        return () if refusal is None else (f"not listed yet: {refusal}",)

    def seconds_since_contact(self) -> float | None:
        return self._script.freshness

    async def absent_as_of_version(self, name: str, is_relevant: Callable[[StoredT], bool]) -> str | None:
        self._script.asked.append(name)
        found = self._script.objects.get(name)
        return None if found is not None and is_relevant(found) else str(self._script.version)

    async def run(self, handle: Callable[[WatchEvent[StoredT]], Awaitable[None]]) -> NoReturn:
        if self._script.refusal is not None:
            self._on_trouble(self._script.refusal)

        async def tell(event: WatchEvent[StoredT]) -> None:
            if isinstance(event, ListSnapshot):
                for name in event.unreadable:
                    self._on_unreadable(UnreadableObject(resource="", name=name, reason="no metadata"))
            await handle(event)

        await self._script._listen(tell)


class WatcherFlow(Recorder):
    """Follows the flow and records its events."""

    def list_node_events(self, name: str = "") -> list[ObservedNode]:
        """All events of a Node, or of all, since following began, in stream order."""
        return self._list_events(OBSERVED_NODE, name)

    def list_request_events(self, name: str = "") -> list[ObservedCsr]:
        """All events of a CSR, or of all, since following began, in stream order."""
        return self._list_events(OBSERVED_CSR, name)

    def list_service_events(self, key: str = "") -> list[ObservedKubeService]:
        """All events of a Service, or of all, since following began, in stream order."""
        return self._list_events(OBSERVED_SERVICE, key)

    def existing(self, kind: str = OBSERVED_NODE) -> set[str]:
        """The keys of the objects of that kind whose last event is no deletion."""
        last = {message.subject: message.event for message in self.messages}
        existing = {subject for subject, event in last.items() if isinstance(event, ExistingObject)}
        return {each.removeprefix(f"{kind}.") for each in existing if each.startswith(f"{kind}.")}

    def last(self, name: str) -> ObservedNode | None:
        return next(reversed(self.list_node_events(name)), None)

    def observed(self, name: str) -> NodeObserved:
        """The last event of a Node that exists."""
        last = self.last(name)
        assert isinstance(last, NodeObserved), last
        return last

    def uid(self, name: str) -> str:
        last = self.last(name)
        return last.node.uid if isinstance(last, NodeObserved) else ""

    def epoch(self, name: str) -> int:
        """The epoch of the last event of a Node, 0 for none."""
        last = self.last(name)
        return last.order.epoch if last is not None else 0

    def snapshots(self) -> list[SnapshotComplete]:
        return [event for event in self.events() if isinstance(event, SnapshotComplete)]

    def leadings(self) -> list[Leading]:
        return [event for event in self.events() if isinstance(event, Leading)]

    def events(self) -> list[Event | Any]:
        return [message.event for message in self.messages]

    def _list_events(self, kind: str, key: str) -> list[Any]:
        subjects = {f"{kind}.{key}"} if key else {s for s in self.subjects if s.startswith(f"{kind}.")}
        return [message.event for message in self.messages if message.subject in subjects]

    @asynccontextmanager
    async def follow(self, bus: Bus) -> AsyncIterator["WatcherFlow"]:
        async with run_during(bus.follow("flow", f"{FLOW}.>", self)):
            yield self

    async def wait_for(
        self, condition: Callable[["WatcherFlow"], Any], what: str = "", seconds: float = HANG_SECONDS
    ) -> None:
        await wait_until(lambda: bool(condition(self)), what, seconds)


def make_informer(
    kind: Kind[Any], source: Any, store: Store[Any], *, now: Callable[[], datetime] = utc_now
) -> Informer[Any]:
    """An informer outside a leadership term: it publishes nothing."""
    published = PublishedState(clock=time.monotonic)
    publisher = make_publisher(kind, store, MemoryBus(MemoryServer()), published, now=now)
    return Informer(source, publisher, LeaderEpoch(published, identity="us", has_lease=True))


def make_publisher(
    kind: Kind[Any],
    store: Store[Any],
    bus: Bus,
    published: PublishedState,
    *,
    now: Callable[[], datetime] = utc_now,
) -> ObservationPublisher[Any]:
    """A publisher without a round."""
    return ObservationPublisher(
        kind,
        store,
        published=published,
        publisher=OrderedPublisher(bus),
        requests=ResyncRequests(time.monotonic),
        in_flight=8,
        now=now,
        jitter=random.random,
    )


class PublisherActor:
    """Publishes the objects of one kind, and records what arrives."""

    def __init__(
        self, publisher: ObservationPublisher[Any], store: Store[Any], server: MemoryServer, flow: WatcherFlow
    ) -> None:
        self.publisher = publisher
        self.store = store
        self.server = server
        self.flow = flow

    def put(self, changed: Any) -> None:
        self.store.put(_trim(changed))
        self.publisher.enqueue({changed.name})

    def remove(self, removed: Node, version: int) -> None:
        self.store.remove(removed.name, str(version))
        self.publisher.enqueue({removed.name})

    async def wait_until_settling(self, name: str) -> None:
        """Wait until the cooldown is over, while the object is about to change again."""
        cooling = self.publisher._queue._cooling
        await wait_until(lambda: name in cooling and cooling[name].is_settling, "its cooldown is over")


@asynccontextmanager
async def run_publisher(kind: Kind[Any], *first: Any) -> AsyncIterator[PublisherActor]:
    """A leader that has published the first state of these objects, on the bus of the all-in-one."""
    server, store, flow = MemoryServer(), Store(kind), WatcherFlow()
    bus, published = MemoryBus(server), PublishedState(clock=time.monotonic)

    async def absent_as_of(name: str) -> int | None:
        raise AssertionError(name)

    publisher = make_publisher(kind, store, bus, published)
    stream_id = await bus.provision((), max_bytes=MAX_BYTES)
    store.replace(first, (), "100")
    async with (
        flow.follow(bus),
        run_during(bus.follow("watcher", f"{FLOW}.>", published)),
        run_during(publisher.run(absent_as_of)),
    ):
        await wait_until(lambda: published.problems() == ())
        publisher.start_round(FencingToken(stream_id=stream_id, epoch=1))
        await wait_until(lambda: len(flow.messages) == len(first), "the first states")
        yield PublisherActor(publisher, store, server, flow)


# Quick enough for a test, in the proportions of the real ones.
QUICK = {"lease_duration_seconds": 3.0, "renew_deadline_seconds": 2.0, "retry_period_seconds": 0.25}
# For tests that are not about terms: a busy machine must not end one.
PATIENT: dict[str, Any] = {"lease_duration_seconds": 90.0, "renew_deadline_seconds": 60.0}


def make_watcher(
    bus: Bus,
    source: ObjectSourceFactory[Node] | None = None,
    *,
    requests: ObjectSourceFactory[SigningRequest] | None = None,
    services: ObjectSourceFactory[KubeService] | None = None,
    service_cidrs: ObjectSourceFactory[ServiceCidr] | None = None,
    kube: KubeApi | None = None,
    identity: str = "host-a_1",
    clock: ManualClock | VirtualClock | None = None,
    **settings: Any,
) -> WatcherService:
    """A watcher with quick timing; without a kube it takes no Lease and watches what has a script.

    Without a kube or a script there are no ServiceCIDRs.
    """
    chosen: dict[str, Any] = {
        "observe_only": kube is None,
        "controllers": (
            "*" if kube is not None or requests is not None else "cloud-node",
            *(("service-lb-controller",) if services is not None else ()),
        ),
        **QUICK,
        **settings,
    }
    return WatcherService(
        make_dependencies(bus, kube=kube, identity=identity, clock=clock),
        WatcherSettings(**chosen),
        node_source=source,
        request_source=requests,
        kube_service_source=services,
        service_cidr_source=service_cidrs or (None if kube else ScriptedKind[ServiceCidr]().source),
    )


@asynccontextmanager
async def follow_watcher(
    source: ObjectSourceFactory[Node] | None = None,
    *,
    bus: Bus | None = None,
    flow_bus: Bus | None = None,
    **options: Any,
) -> AsyncIterator[tuple[WatcherService, WatcherFlow]]:
    """A watcher, on the bus of the all-in-one by default, and its flow from the first snapshot on."""
    bus, flow = bus or MemoryBus(MemoryServer()), WatcherFlow()
    watcher = make_watcher(bus, source or ScriptedNodes().source, **options)
    async with run_during(watcher.run()), flow.follow(flow_bus or bus):
        await flow.wait_for(lambda f: f.snapshots(), "a snapshot")
        yield watcher, flow
