"""A channel of libs.talos on a connection to a server that a test plays, frame by frame."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamReset

from libs.talos.bounded_protocol import BoundedProtocol
from libs.talos.channel import TalosChannel
from libs.talos.credentials import Credentials
from libs.talos.talosconfig import Endpoint
from tests.bus_actors import wait_until

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

    async def call(self, deadline_seconds: float = 30) -> "asyncio.Task[list[bytes]]":
        """Start a call; return when the server has the request."""
        before = len(self.server.streams)
        call = self.channel.collect("/a/B", b"request", {"node": "n"}, deadline_seconds=deadline_seconds)
        task = asyncio.create_task(call)
        await wait_until(lambda: len(self.server.streams) > before)
        return task
