"""Around csr in tests: an API server's requests in memory, what the others say, a csr on a bus of its own."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import nats

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Bus
from libs.common.contract.events import (
    CsrEnriched,
    Decided,
    EnrichedCsrGone,
    Event,
    Leading,
    NodeEnriched,
    NodeUnreachable,
    SnapshotComplete,
)
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.services import CSR, DURABLES
from libs.common.contract.signing_request import NODE_USER_PREFIX, SigningRequest
from libs.common.contract.subjects import DECIDED, STREAM
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import FenceFailed, KubeError, NotFound
from libs.common.kube.events import ObjectEvent, event_name
from libs.common.kube.server_identity import ServerIdentity
from libs.common.service.service import Dependencies
from libs.testbed.nats_server import NatsServer
from libs.testbed.signing_requests import make_request_pem
from services.csr.service import CsrService
from services.csr.settings import CsrSettings
from tests.builders import (
    NOW,
    make_csr_gone,
    make_csr_observed,
    make_node_gone,
    make_node_observed,
    make_request,
)
from tests.bus_actors import MAX_BYTES, run_during, wait_until, wait_until_led, wait_until_ready
from tests.csr_cases import API_SERVER, NODES, SERVICE_NETWORKS, make_metadata_events
from tests.flow_actors import QUICK
from tests.json_patch import PatchFailed
from tests.json_patch import apply_json_patch as apply_json
from tests.manual_clock import ManualClock

REFUSED = MachineFault(
    kind="refused", step="PlatformMetadata", endpoint="cp:50000", message="connection refused"
)


@cache
def make_serving_pem(node: str, dns: tuple[str, ...], ips: tuple[str, ...]) -> bytes:
    """What that node's kubelet asks for, signed by its key."""
    return make_request_pem(common_name=f"{NODE_USER_PREFIX}{node}", dns=dns, ips=ips)


def make_serving_request(
    name: str = "csr-1",
    *,
    node: str = "web-1",
    ips: tuple[str, ...] = ("10.0.0.5",),
    dns: tuple[str, ...] | None = None,
    age_seconds: float = 0.0,
    **fields: Any,
) -> SigningRequest:
    """A request of that node for its own name and these addresses, filed that long before NOW."""
    return make_request(
        name,
        uid=f"uid-of-{name}",
        node=node,
        pem=make_serving_pem(node, (node,) if dns is None else dns, ips),
        created=NOW - timedelta(seconds=age_seconds),
        **fields,
    )


class InMemoryRequests:
    """The CertificateSigningRequests and Events of an API server; patches are judged as there."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []
        self.patched: list[str] = []  # names, of patches that failed too
        self.failing: dict[str, KubeError] = {}  # name -> what each write of it raises
        self.stalled: dict[str, asyncio.Event] = {}  # name -> what its write waits for
        self.watchers: Callable[[SigningRequest], Awaitable[object]] | None = None
        self._documents: dict[str, dict[str, Any]] = {}
        self._event_names: set[str] = set()
        self.identity: ServerIdentity | KubeError = API_SERVER  # what a TLS handshake with it shows

    def put(self, request: SigningRequest) -> None:
        """Create or replace, as somebody else does."""
        document = {"status": {}} | msgspec.json.decode(msgspec.json.encode(request))
        self._documents[request.name] = document

    def request(self, name: str) -> SigningRequest:
        """As it is now."""
        return msgspec.convert(self._documents[name], SigningRequest)

    def delete(self, name: str) -> None:
        del self._documents[name]

    def get_decision(self, name: str) -> str:
        """Type of its only condition, "" while it is pending."""
        conditions = self.request(name).status.conditions
        assert len(conditions) <= 1
        return conditions[0].type if conditions else ""

    def list_event_reasons(self, node: str) -> list[str]:
        """Reasons of the Events on a Node, in order."""
        return [event.reason for event in self.events if event.regarding.name == node]

    # ---- watch_endpoint.Kubernetes

    async def fetch_server_identity(self) -> ServerIdentity:
        if isinstance(self.identity, KubeError):
            raise self.identity
        return self.identity

    # ---- approvals_api.Kubernetes

    async def patch_signing_request_approval(
        self, name: str, json_patch: Sequence[dict[str, Any]], /
    ) -> None:
        self.patched.append(name)
        if name in self.stalled:
            await self.stalled[name].wait()
        if name in self.failing:
            raise self.failing[name]
        if name not in self._documents:
            raise NotFound(f'certificatesigningrequests "{name}" not found', status=404)
        try:
            document = apply_json(self._documents[name], list(json_patch))
        except PatchFailed as error:
            raise FenceFailed(str(error), status=422) from error
        version = int(document["metadata"]["resourceVersion"]) + 1000
        document["metadata"]["resourceVersion"] = str(version)
        self._documents[name] = document
        if self.watchers is not None:
            await self.watchers(self.request(name))

    async def create_event(self, event: ObjectEvent, *, now: datetime) -> bool:
        name = event_name(event, now)
        if name in self._event_names:
            return False
        self._event_names.add(name)
        self.events.append(event)
        return True


class CsrServiceFlow:
    """Speaks as watcher and metadata do, and reads what csr said."""

    def __init__(self, connect: Callable[..., Awaitable[Bus]], bus: Bus, kube: KubeApi | None) -> None:
        self._connect = connect
        self._bus = bus
        self.kube = InMemoryRequests()
        self._real_kube = kube
        self.stream_id = ""
        self.nats_url = ""
        self._version = 100

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        kind: str,
        tmp_path: Path,
        *,
        requests: int | None = 0,
        kube: KubeApi | None = None,
        bus_clock: ManualClock | None = None,
    ) -> AsyncIterator["CsrServiceFlow"]:
        """On a bus of that kind, led, with a snapshot that counts requests; None: none are watched.

        csr writes to `kube`, without one to `self.kube`, and then its writes are observed at once. The bus
        in memory dates its messages by `bus_clock`.
        """
        async with AsyncExitStack() as stack:
            connect: Callable[..., Awaitable[Bus]]
            url = ""
            if kind == "nats":
                server = await stack.enter_async_context(NatsServer.start(tmp_path / "nats"))
                url = server.url
                connect = partial(NatsBus.connect, (url,), timing=QUICK)
            else:
                memory = MemoryServer(clock=bus_clock.now) if bus_clock else MemoryServer()

                async def connect(*, service: str) -> Bus:
                    return MemoryBus(memory)

            bus = await connect(service="watcher")
            stack.push_async_callback(bus.close)
            flow = cls(connect, bus, kube)
            flow.nats_url = url
            flow.kube.watchers = flow.observe_request
            await flow.provision(requests)
            yield flow

    async def provision(self, requests: int | None, *there: Node) -> None:
        """A stream, the watcher's word of the Nodes in the cluster, and a leader."""
        durables = tuple({durable.name: durable for durable in (*DURABLES, *CSR.durables)}.values())
        self.stream_id = await self._bus.provision(durables, max_bytes=MAX_BYTES)
        for node in there:
            await self.publish_node(node)
        await self.publish_snapshot(requests)
        await self.publish_leading()

    async def wipe(self, *there: Node) -> None:
        """NATS loses everything, and the watcher says it anew; metadata has reported on no machine yet."""
        client = await nats.connect(self.nats_url)
        await client.jetstream().delete_stream(STREAM)
        await client.close()
        await self.provision(0, *there)

    @asynccontextmanager
    async def run_csr(
        self, *, clock: ManualClock | None = None, seed: int = 1, ready: bool = True, **settings: Any
    ) -> AsyncIterator[CsrService]:
        """A csr on a bus of its own, as in a process of its own; the Service networks are known to it."""
        settings.setdefault("service_cluster_ip_range", SERVICE_NETWORKS)
        clock = clock or ManualClock()
        bus = await self._connect(service="csr")
        try:
            parts = Dependencies(
                bus=bus,
                kube=self._real_kube or self.kube,  # type: ignore[arg-type]  # what csr needs of it
                monotonic=clock,
                now=clock.now,
                random=random.Random(seed),
                identity=f"test_{seed}",
            )
            service = CsrService(parts, CsrSettings(**settings))
            async with run_during(service.run()):
                await (wait_until_ready if ready else wait_until_led)(service, bus)
                yield service
        finally:
            await bus.close()

    @property
    def bus(self) -> Bus:
        """The watcher's and metadata's."""
        return self._bus

    # ---- the watcher's words

    async def publish(self, event: Event) -> int:
        return await self._bus.publish(event)

    async def publish_snapshot(self, requests: int | None = 0) -> None:
        await self.publish(SnapshotComplete(stream_id=self.stream_id, epoch=1, nodes=0, requests=requests))

    async def publish_leading(self) -> None:
        await self.publish(Leading(stream_id=self.stream_id, epoch=1, holder="test"))

    async def publish_node(self, node: Node) -> int:
        """How a Node is now."""
        return await self.publish(make_node_observed(node, stream_id=self.stream_id))

    async def publish_node_gone(self, node: Node) -> None:
        await self.publish(make_node_gone(node, stream_id=self.stream_id))

    async def file_request(self, request: SigningRequest) -> int:
        """A kubelet files it, and the watcher has seen that."""
        self._version += 1
        metadata = msgspec.structs.replace(request.metadata, resource_version=str(self._version))
        request = msgspec.structs.replace(request, metadata=metadata)
        self.kube.put(request)
        return await self.observe_request(request)

    async def observe_request(self, request: SigningRequest) -> int:
        return await self.publish(make_csr_observed(request, stream_id=self.stream_id))

    async def delete_request(self, request: SigningRequest) -> None:
        """Somebody deletes it, and watcher and metadata say so."""
        self.kube.delete(request.name)
        place = await self.publish(make_csr_gone(request, stream_id=self.stream_id))
        await self.publish(
            EnrichedCsrGone(
                stream_id=self.stream_id, observed_sequence=place, name=request.name, uid=request.uid
            )
        )

    # ---- metadata's words

    async def publish_facts(self, node: Node, facts: MachineFacts) -> None:
        """What the Node's machine says."""
        await self.publish(
            NodeEnriched(
                stream_id=self.stream_id,
                observed_sequence=await self.publish_node(node),
                node=node,
                facts=facts,
                verified_by="nodename",
                observed_at=NOW,
                enriched_at=NOW,
            )
        )

    async def publish_unreachable(
        self, node: Node, last_known: MachineFacts | None = None, *, fault: MachineFault = REFUSED
    ) -> None:
        """The Node's machine says nothing."""
        await self.publish(
            NodeUnreachable(
                stream_id=self.stream_id,
                observed_sequence=await self.publish_node(node),
                node=node,
                fault=fault,
                last_known=last_known,
                attempt=1,
                retry_at=NOW,
                observed_at=NOW,
                enriched_at=NOW,
            )
        )

    async def publish_case_cluster(self) -> None:
        """The Nodes among which `csr_cases` are judged, and what their machines say."""
        for node in NODES.values():
            await self.publish_node(node)
        for event in make_metadata_events():
            await self.publish(msgspec.structs.replace(event, stream_id=self.stream_id))

    async def enrich_request(self, request: SigningRequest, *, observed: int = 1, **fields: Any) -> int:
        """What metadata says of a request; keywords are fields of CsrEnriched."""
        return await self.publish(
            CsrEnriched(
                stream_id=self.stream_id,
                observed_sequence=observed,
                request=request,
                observed_at=NOW,
                enriched_at=NOW,
                **fields,
            )
        )

    async def file_and_enrich(self, request: SigningRequest, **fields: Any) -> None:
        """It is filed, and metadata says this of it."""
        await self.enrich_request(request, observed=await self.file_request(request), **fields)

    # ---- what csr has decided

    async def get_decision(self, name: str) -> Decided | None:
        message = await self._bus.get_last(f"{DECIDED}.csr.csr.{name}")
        if message is None:
            return None
        assert isinstance(message.event, Decided)
        return message.event

    async def wait_for_decision(self, name: str, *outcomes: str, seconds: float = 20.0) -> Decided:
        """The decision, as soon as it is one of these."""
        found: list[Decided] = []

        async def is_decided() -> bool:
            decided = await self.get_decision(name)
            if decided is None or decided.outcome not in outcomes:
                return False
            found.append(decided)
            return True

        await wait_until(is_decided, f"{name} decided as {outcomes}", seconds)
        return found[0]
