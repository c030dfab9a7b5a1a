"""Clients of Talos machines, answers that our decoder did not encode, and a channel frame by frame."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import msgspec
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamReset

from libs.common.contract.machine import MachineFault
from libs.talos.api import MachineUnavailable, TalosApi, WatchSnapshot
from libs.talos.bounded_protocol import BoundedProtocol
from libs.talos.channel import TalosChannel
from libs.talos.credentials import Credentials, CredentialStore
from libs.talos.proto.generated import EventType
from libs.talos.talosconfig import Endpoint
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.pki import TalosPki
from libs.testbed.sim_machines.protobuf_wire import encode
from tests.bus_actors import wait_until


class Kind(Protocol):
    """A kind of resource, as a query or its request names it."""

    @property
    def namespace(self) -> str: ...
    @property
    def type(self) -> str: ...


def encode_resource(kind: Kind, identifier: str, spec: bytes) -> bytes:
    return encode({1: {1: kind.namespace, 2: kind.type, 3: identifier}, 2: [{1: spec}]})


def encode_answer(resource: bytes) -> bytes:
    """The answer to Get, or one of those to List."""
    return encode({1: [resource]})


def encode_event(kind: EventType, *, resource: bytes = b"", old: bytes = b"", error: str = "") -> bytes:
    """An answer to Watch with one event."""
    return encode({1: [{1: resource, 2: int(kind), 3: old, 4: error}]})


@asynccontextmanager
async def asking(config: Path, *, recheck_seconds: float = 0.0, **options: Any) -> AsyncIterator[TalosApi]:
    """A client with the credentials of this talosconfig, and these options of `TalosApi`."""
    store = CredentialStore([config], recheck_seconds=recheck_seconds)
    api = TalosApi(store, clock=lambda: datetime.now(UTC), **options)
    try:
        yield api
    finally:
        await api.close()


def write_config_of_foreign_client(machines: MachineFleet, folder: Path) -> Path:
    """A talosconfig that trusts the machines, with the client certificate of an authority of its own."""
    foreign = TalosPki(folder / "pki", ["127.0.0.1"])
    ours, theirs = (
        msgspec.yaml.decode(pki.talosconfig(machines.endpoints)) for pki in (foreign, machines.pki)
    )
    ours["contexts"]["default"]["ca"] = theirs["contexts"]["default"]["ca"]
    config = folder / "config"
    config.write_bytes(msgspec.yaml.encode(ours))
    return config


async def query_fault(api: TalosApi, node_ip: str, *, deadline_seconds: float = HANG_SECONDS) -> MachineFault:
    """Why a look at that machine fails; the test fails if it does not."""
    with pytest.raises(MachineUnavailable) as unavailable:
        await api.fetch_facts(node_ip, deadline_seconds=deadline_seconds)
    return unavailable.value.fault


async def opened(
    api: TalosApi, machine: SimMachineFacts, *, silence: float = 30
) -> AsyncGenerator[WatchSnapshot | None, None]:
    """An open watch, which ends after that many silent seconds."""
    signals = api.watch_machine(machine.reachable_at[0], read_deadline_seconds=silence)
    assert isinstance(await following(signals), WatchSnapshot)
    return signals


async def following(signals: AsyncGenerator[WatchSnapshot | None, None]) -> WatchSnapshot | None:
    """The next signal of a watch."""
    async with asyncio.timeout(HANG_SECONDS):
        return await anext(signals)


BEGIN = [(":status", "200"), ("content-type", "application/grpc")]
OK = [("grpc-status", "0")]


def prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


class Server(asyncio.Transport):
    """The client's transport, and the server behind it, which receives what is written at once."""

    def __init__(self) -> None:
        super().__init__()
        config = H2Configuration(client_side=False, header_encoding="utf-8", validate_outbound_headers=False)
        self.http = H2Connection(config)
        self.http.initiate_connection()
        self.client = BoundedProtocol()
        self.reads = True
        self.unread = 0
        self.writes = 0
        self.closed = False
        self.streams: list[int] = []
        self.reset: list[int] = []
        self.client.connection_made(self)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return SimpleNamespace(setsockopt=lambda *_: None, family=None)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        if not self.reads:
            self.unread += len(data)
            return
        for event in self.http.receive_data(bytes(data)):
            match event:
                case RequestReceived():
                    self.streams.append(event.stream_id)
                case StreamReset():
                    self.reset.append(event.stream_id)
        self.send()

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def send(self, *raw: bytes) -> None:
        """Pass what is due and these frames to the client."""
        if data := self.http.data_to_send() + b"".join(raw):
            self.client.data_received(data)

    def answer(self, stream: int, *messages: bytes) -> None:
        self.http.send_headers(stream, BEGIN)
        for message in messages:
            self.http.send_data(stream, prefixed(message))
        self.http.send_headers(stream, OK, end_stream=True)
        self.send()


class Conversation:
    """A channel over a connection to a server that does as it likes."""

    def __init__(self) -> None:
        self.server = Server()
        credentials = cast(Credentials, SimpleNamespace(tls=None))
        self.channel = TalosChannel(Endpoint("server", 50000), credentials, connect_seconds=1)
        self.channel._connection._current = self.server.client

    async def call(self, deadline_seconds: float = HANG_SECONDS) -> "asyncio.Task[list[bytes]]":
        """Start a call; return when the server has the request."""
        before = len(self.server.streams)
        call = self.channel.collect("/a/B", b"request", {"node": "n"}, deadline_seconds=deadline_seconds)
        task = asyncio.create_task(call)
        await wait_until(lambda: len(self.server.streams) > before)
        return task
