"""The flow of signing requests in memory: the watcher's events, and the events of a metadata under test."""

import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import BusError, Message
from libs.common.contract.events import (
    CsrEnriched,
    Event,
    NodeGone,
    NodeObserved,
    ObservationOrder,
    SnapshotComplete,
)
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ENRICHED_CSR, ENRICHED_NODE, subject_of
from libs.testbed.child_process import HANG_SECONDS
from services.metadata.machines.talos_client import TalosClient
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings
from tests.builders import NOW, make_csr_gone, make_csr_observed
from tests.bus_actors import MAX_BYTES, wait_for_value, wait_until
from tests.clocks import ManualClock
from tests.metadata_actors import run_metadata_on

# No machine is watched, so metadata polls only when an event requires it.
UNWATCHED = MetadataSettings(watched_machines=0, probe_seconds=0.1)


class FailingBus(MemoryBus):
    """Records the subjects it published to; raises while `refuses` is set."""

    def __init__(self, server: MemoryServer, subjects: list[str]) -> None:
        super().__init__(server)
        self.refuses = False
        self._subjects = subjects

    async def publish(self, event: Event, **options: Any) -> int:
        if self.refuses:
            raise BusError("refused by the test")
        self._subjects.append(subject_of(event))  # before a reader can have the event
        try:
            return await super().publish(event, **options)
        except BusError:
            self._subjects.remove(subject_of(event))
            raise


class MetadataCsrFlow:
    """Publishes as the watcher does, and reads what metadata publishes."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.bus = MemoryBus(self.server)
        self.subjects: list[str] = []  # subjects that metadata published to
        self._version = 100

    @classmethod
    async def make(cls) -> "MetadataCsrFlow":
        flow = cls()
        await flow.bus.provision((), max_bytes=MAX_BYTES)
        return flow

    @property
    def stream_id(self) -> str:
        return self.bus.stream_id

    @asynccontextmanager
    async def metadata(
        self,
        talos: TalosClient | None,
        settings: MetadataSettings = UNWATCHED,
        *,
        seed: int = 1,
        in_real_time: bool = False,
    ) -> AsyncIterator[tuple[MetadataService, FailingBus]]:
        """A metadata service on a bus of its own; `talos` None = the client that the settings describe.

        Its clock stands still unless `in_real_time`: on a busy machine, a test takes longer than facts stay
        fresh.
        """
        bus = FailingBus(self.server, self.subjects)
        clock = None if in_real_time else ManualClock()
        async with run_metadata_on(bus, talos, settings, seed=seed, clock=clock) as service:
            yield service, bus

    # ---- events of the watcher

    async def observe_node(self, node: Node) -> int:
        order = self._next()
        return await self.bus.publish(
            NodeObserved(stream_id=self.stream_id, order=order, node=node, observed_at=NOW)
        )

    async def publish_node_gone(self, node: Node) -> int:
        order = self._next()
        return await self.bus.publish(
            NodeGone(stream_id=self.stream_id, order=order, name=node.name, uid=node.uid, observed_at=NOW)
        )

    async def file_request(self, request: SigningRequest) -> int:
        """Publish the request; the sequence of the event in the stream."""
        return await self.bus.publish(make_csr_observed(request, stream_id=self.stream_id))

    async def delete_request(self, request: SigningRequest) -> int:
        return await self.bus.publish(make_csr_gone(request, stream_id=self.stream_id))

    async def publish_snapshot(self) -> None:
        await self.bus.publish(
            SnapshotComplete(stream_id=self.stream_id, epoch=1, nodes=1, requests=1, service_cidrs=())
        )

    # ---- events of metadata

    async def last(self, name: str) -> Message | None:
        return await self.bus.get_last(f"{ENRICHED_CSR}.{name}")

    async def get_enriched(self, name: str = "csr-1") -> CsrEnriched | None:
        message = await self.last(name)
        return message.event if message and isinstance(message.event, CsrEnriched) else None

    async def wait_for_enriched(
        self,
        says: Callable[[CsrEnriched], bool] = lambda event: True,
        name: str = "csr-1",
        seconds: float = HANG_SECONDS,
    ) -> CsrEnriched:
        """The enriched request, once it `says` that."""
        return await wait_for_value(
            lambda: self.get_enriched(name), says, f"the enriched {name} is as expected", seconds
        )

    def count_enriched(self, name: str = "csr-1") -> int:
        """Number of metadata's events on the request."""
        return self.subjects.count(f"{ENRICHED_CSR}.{name}")

    async def wait_for_node(self, name: str = "web-1") -> None:
        """Return once metadata has published the Node."""

        async def there() -> bool:
            return await self.bus.get_last(f"{ENRICHED_NODE}.{name}") is not None

        await wait_until(there)

    def _next(self) -> ObservationOrder:
        self._version += 1
        return ObservationOrder(epoch=1, resource_version=self._version)


def has_facts(event: CsrEnriched) -> bool:
    return event.facts is not None


def has_fault(event: CsrEnriched) -> bool:
    return event.fault is not None


@cache
def make_request_pem(*addresses: str) -> bytes:
    """A kubelet's request for these addresses."""
    names = [x509.DNSName("web-1"), *(x509.IPAddress(ipaddress.ip_address(text)) for text in addresses)]
    builder = x509.CertificateSigningRequestBuilder(x509.Name([]))
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signed = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)
