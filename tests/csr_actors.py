"""csr on a bus of its own, requests of an API server in memory, and Nodes that ask for the same."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from libs.common.bus.protocol import Bus
from libs.common.contract.events import EnrichedCsrGone
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import Node
from libs.common.contract.services import CSR, DURABLES
from libs.common.contract.signing_request import NODE_USER_PREFIX, SigningRequest
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import FenceFailed, KubeError, NotFound
from libs.common.kube.server_identity import ServerIdentity
from libs.testbed.signing_requests import make_request_pem
from services.csr.on_csr_enriched import RETRY_SECONDS
from services.csr.service import CsrService
from services.csr.settings import CsrSettings
from tests.builders import (
    NOW,
    make_csr_enriched,
    make_csr_gone,
    make_csr_observed,
    make_facts,
    make_node,
    make_request,
)
from tests.bus_server import BusServer, run_service
from tests.clocks import ManualClock
from tests.csr_cases import (
    AMONG_OTHERS,
    API_SERVER,
    SERVICE_NETWORKS,
    WHO,
    CsrCase,
)
from tests.csr_der import replace_text
from tests.in_memory_api import InMemoryEvents, PatchFailed
from tests.in_memory_api import apply_json_patch as apply_json
from tests.service_flow import ServiceFlow

SOON = RETRY_SECONDS * 2 / 3  # a wait that ends within it was ended by a change, not by the next delivery


@cache
def make_serving_pem(node: str, dns: tuple[str, ...], ips: tuple[str, ...]) -> bytes:
    """The request of that node's kubelet, signed by its key."""
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


class InMemoryRequests(InMemoryEvents):
    """The CertificateSigningRequests and Events of an API server; patches fail as they do there."""

    def __init__(self) -> None:
        super().__init__()
        self.patched: list[str] = []  # names, of patches that failed too
        self.failing: dict[str, KubeError] = {}  # name -> the error of each write
        self.stalled: dict[str, asyncio.Event] = {}  # name -> the event that its write waits for
        self.watchers: Callable[[SigningRequest], Awaitable[object]] | None = None
        self._documents: dict[str, dict[str, Any]] = {}
        self.identity: ServerIdentity | KubeError = API_SERVER  # what a TLS handshake with it shows

    def put(self, request: SigningRequest) -> None:
        """Create or replace, as another client does."""
        document = {"status": {}} | msgspec.json.decode(msgspec.json.encode(request))
        self._documents[request.name] = document

    def request(self, name: str) -> SigningRequest:
        """The request as it is now."""
        return msgspec.convert(self._documents[name], SigningRequest)

    def delete(self, name: str) -> None:
        del self._documents[name]

    def get_decision(self, name: str) -> str:
        """Type of its only condition, "" while it is pending."""
        conditions = self.request(name).status.conditions
        assert len(conditions) <= 1
        return conditions[0].type if conditions else ""

    # ---- requests of csr

    async def fetch_server_identity(self) -> ServerIdentity:
        if isinstance(self.identity, KubeError):
            raise self.identity
        return self.identity

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


class CsrServiceFlow(ServiceFlow):
    """Publishes as watcher and metadata do, and reads what csr decides and writes."""

    decisions_of = "csr.csr"
    durables = tuple({durable.name: durable for durable in (*DURABLES, *CSR.durables)}.values())

    def __init__(self, server: BusServer, bus: Bus, kube: KubeApi | None) -> None:
        super().__init__(bus)
        self.kube = InMemoryRequests()
        self._server = server
        self._real_kube = kube
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

        csr writes to `kube`, or without one to `self.kube`; the watcher observes those writes at once.
        """
        async with (
            BusServer.open(kind, tmp_path, bus_clock) as server,
            server.open_bus("watcher") as bus,
        ):
            flow = cls(server, bus, kube)
            flow.kube.watchers = flow.observe_request
            await flow.start(requests=requests)
            yield flow

    async def wipe(self, *nodes: Node) -> None:
        """NATS loses everything; the watcher publishes again, metadata does not yet."""
        await self._server.delete_stream()
        await self.start(*nodes)

    def run_csr(
        self, *, clock: ManualClock | None = None, seed: int = 1, ready: bool = True, **settings: Any
    ) -> AbstractAsyncContextManager[CsrService]:
        """A csr that knows the Service networks."""
        settings.setdefault("service_cluster_ip_range", SERVICE_NETWORKS)
        return run_service(
            self._server,
            "csr",
            lambda parts: CsrService(parts, CsrSettings(**settings)),
            kube=self._real_kube or self.kube,
            clock=clock,
            seed=seed,
            ready=ready,
        )

    # ---- events of the watcher

    async def file_request(self, request: SigningRequest) -> int:
        """A kubelet creates the request; the watcher publishes it."""
        self._version += 1
        metadata = msgspec.structs.replace(request.metadata, resource_version=str(self._version))
        request = msgspec.structs.replace(request, metadata=metadata)
        self.kube.put(request)
        return await self.observe_request(request)

    async def observe_request(self, request: SigningRequest) -> int:
        return await self.publish(make_csr_observed(request, stream_id=self.stream_id))

    async def delete_request(self, request: SigningRequest) -> None:
        """The request is deleted; watcher and metadata publish that."""
        self.kube.delete(request.name)
        sequence = await self.publish(make_csr_gone(request, stream_id=self.stream_id))
        await self.publish(
            EnrichedCsrGone(
                stream_id=self.stream_id, observed_sequence=sequence, name=request.name, uid=request.uid
            )
        )

    # ---- events of metadata

    async def enrich_request(self, request: SigningRequest, *, observed: int = 1, **fields: Any) -> int:
        """The enriched request; keywords are fields of CsrEnriched."""
        return await self.publish(
            make_csr_enriched(request, stream_id=self.stream_id, observed_sequence=observed, **fields)
        )

    async def file_and_enrich(self, request: SigningRequest, **fields: Any) -> None:
        """A kubelet creates the request; metadata publishes it with these fields."""
        await self.enrich_request(request, observed=await self.file_request(request), **fields)

    async def join_and_file(self, name: str, node: str, ip: str) -> None:
        """A Node joins, whose machine has that address, and its kubelet requests a certificate for it."""
        own = AddressStatus(address=f"{ip}/24", link="eth0", flags=128)
        facts = make_facts(node_name=node, node_ip=ip, addresses=(own,))
        await self.enrich(make_node(node, uid=f"uid-{node}", ip=ip), facts)
        request = make_serving_request(name, node=node, ips=(ip,))
        await self.file_and_enrich(request, facts=facts, node_uid=f"uid-{node}")


class TwinNode(msgspec.Struct, frozen=True):
    """A node as web-1 is, with a name and addresses of its own, and without the lies."""

    number: int  # 20 to 250

    @property
    def name(self) -> str:
        return f"w-{self.number:03}"

    @property
    def ips(self) -> tuple[str, str]:
        return f"10.0.{self.number}.5", f"fd00:7::{self.number:x}:5"

    @property
    def public_ip(self) -> str:
        return f"198.51.100.{self.number}"

    @property
    def full_name(self) -> str:
        return f"{self.name}.example.com"

    def facts(self) -> MachineFacts:
        """What its machine attests."""
        mine = (f"{self.ips[0]}/24", f"{self.ips[1]}/64", f"{self.public_ip}/32")
        return make_facts(
            platform="aws",
            provider_id=f"aws:///eu-1/i-{self.number}",
            node_name=self.name,
            node_ip=self.ips[0],
            hostname=self.full_name,
            addresses=tuple(AddressStatus(address=address, link="eth0", flags=128) for address in mine),
        )

    def adapt_case(self, case: CsrCase) -> CsrCase:
        """The same of this node; what another than web-1 asks for stays as it is."""
        if case.username != "system:node:web-1":
            return case
        assert case.name not in AMONG_OTHERS
        return msgspec.structs.replace(
            case,
            pem=lambda: self._adapt_pem(case.pem),
            username=f"system:node:{self.name}",
            reason=case.reason.replace(WHO, self.name),
        )

    def _adapt_pem(self, pem: Callable[[], bytes]) -> bytes:
        names = {WHO: self.name, WHO.upper(): self.name.upper()}
        ips = zip(("10.0.0.5", "fd00:7::5", "198.51.100.5"), (*self.ips, self.public_ip), strict=True)
        instead = {was.encode(): now.encode() for was, now in names.items()}
        instead |= {WHO.encode("utf-16-be"): self.name.encode("utf-16-be")}
        instead |= {ipaddress.ip_address(was).packed: ipaddress.ip_address(now).packed for was, now in ips}
        with replace_text(instead):
            return pem()
