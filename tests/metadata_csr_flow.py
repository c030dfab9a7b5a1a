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
from libs.common.contract.events import CsrEnriched, Event
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import ENRICHED_CSR, ENRICHED_NODE, subject_of
from libs.testbed.child_process import HANG_SECONDS
from services.metadata.machines.talos_client import TalosClient
from services.metadata.service import MetadataService
from services.metadata.settings import MetadataSettings
from tests.builders import make_csr_gone, make_csr_observed
from tests.bus_actors import wait_for_value
from tests.clocks import ManualClock
from tests.metadata_actors import run_metadata_on
from tests.service_flow import ServiceFlow

# No machine is watched, so metadata polls only when an event requires it.
UNWATCHED = MetadataSettings(watched_machines=0, probe_seconds=0.1)


class RecordingBus(MemoryBus):
    """Records the subjects it published to."""

    def __init__(self, server: MemoryServer, subjects: list[str]) -> None:
        super().__init__(server)
        self._subjects = subjects

    async def publish(self, event: Event, **options: Any) -> int:
        self._subjects.append(subject_of(event))  # before a reader can have the event
        try:
            return await super().publish(event, **options)
        except BusError:  # such as a conflict
            self._subjects.remove(subject_of(event))
            raise


class MetadataCsrFlow(ServiceFlow):
    """Publishes as the watcher does, and reads what metadata publishes."""

    durables = ()

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.subjects: list[str] = []  # subjects that metadata published to
        super().__init__(MemoryBus(self.server))

    @asynccontextmanager
    async def metadata(
        self,
        talos: TalosClient | None,
        settings: MetadataSettings = UNWATCHED,
        *,
        seed: int = 1,
        in_real_time: bool = False,
    ) -> AsyncIterator[MetadataService]:
        """A metadata service on a bus of its own; `talos` None = the client that the settings describe.

        Its clock stands still unless `in_real_time`: on a busy machine, a test takes longer than facts stay
        fresh.
        """
        bus = RecordingBus(self.server, self.subjects)
        clock = None if in_real_time else ManualClock()
        async with run_metadata_on(bus, talos, settings, seed=seed, clock=clock) as service:
            yield service

    async def file_request(self, request: SigningRequest) -> int:
        """Publish the request; the sequence of the event in the stream."""
        return await self.publish(make_csr_observed(request, stream_id=self.stream_id))

    async def delete_request(self, request: SigningRequest) -> int:
        return await self.publish(make_csr_gone(request, stream_id=self.stream_id))

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
        await wait_for_value(lambda: self.bus.get_last(f"{ENRICHED_NODE}.{name}"))


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
