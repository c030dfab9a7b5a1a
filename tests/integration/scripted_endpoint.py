"""A Talos endpoint that misbehaves to order, frame by frame: what no honest server can be made to do."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    PingAckReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import ProtocolError

from libs.talos.proto.generated import GetRequest
from libs.testbed.loopback_site import stop_listening
from libs.testbed.pki import TalosPki
from tests.talos_actors import encode_answer, encode_resource

Headers = list[tuple[str, str]]
HEADERS: Headers = [(":status", "200"), ("content-type", "application/grpc")]
OK: Headers = [("grpc-status", "0")]


class Request:
    """One call: what was asked, and the means to answer it."""

    def __init__(self, server: "_Connection", stream: int, headers: dict[str, str]) -> None:
        self.received = headers
        self.path = headers[":path"]
        self.node = headers.get("node", "")
        self.body = b""
        self._server = server
        self._stream = stream

    @property
    def asked(self) -> GetRequest:
        """Namespace, type and id have the same field numbers in Get, List and Watch."""
        return GetRequest.parse(self.body[5:])

    def resource(self, spec: bytes = b"") -> bytes:
        """The resource that was asked for, with that spec."""
        return encode_resource(self.asked, self.asked.id or "eth0/10.0.0.5/24", spec)

    def answer(self, *messages: bytes, trailers: Headers = OK) -> None:
        """Headers, messages and trailers, as an honest server sends them."""
        self.headers(HEADERS)
        for message in messages:
            self.data(b"\0" + len(message).to_bytes(4, "big") + message)
        self.headers(trailers, end=True)

    def answer_well(self) -> None:
        """The empty resource; no addresses."""
        if self.path.endswith("/Get"):
            self.answer(encode_answer(self.resource()))
        else:
            self.answer()

    def headers(self, headers: Headers, *, end: bool = False) -> None:
        self._server.http.send_headers(self._stream, headers, end_stream=end)
        self._server.flush()

    def data(self, data: bytes) -> None:
        self._server.http.send_data(self._stream, data)
        self._server.flush()

    @property
    def room(self) -> int:
        """How much may be sent now."""
        return self._server.http.local_flow_control_window(self._stream)

    def reset(self) -> None:
        self._server.http.reset_stream(self._stream)
        self._server.flush()

    def ping(self) -> None:
        self._server.http.ping(b"8 bytes.")
        self._server.flush()

    def go_away(self) -> None:
        self._server.http.close_connection()
        self._server.flush()


Script = Callable[[Request], None]


class ScriptedEndpoint:
    """Where it listens, and what it saw."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.settings: dict[int, int] = {}  # said to the next connections
        self.connections = 0
        self.pings_answered = 0
        self.told: dict[int, int] = {}  # the client's settings that are not HTTP/2's defaults
        self.requests: list[Request] = []
        self.address = ""


@asynccontextmanager
async def scripted_endpoint(
    pki_dir: Path, script: Script, *, pki: TalosPki | None = None
) -> AsyncIterator[tuple[ScriptedEndpoint, TalosPki]]:
    """An endpoint on a free port of 127.0.0.1 that hands every complete request to the script."""
    pki = pki or TalosPki(pki_dir, ["127.0.0.1"])
    pki_dir = pki.directory
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki_dir / "server.crt", pki_dir / "server.key")
    tls.load_verify_locations(pki_dir / "ca.crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.set_alpn_protocols(["h2"])
    endpoint = ScriptedEndpoint(script)
    open_connections: set[_Connection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(endpoint, open_connections), "127.0.0.1", 0, ssl=tls, ssl_shutdown_timeout=0.5
    )
    endpoint.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield endpoint, pki
    finally:
        await stop_listening(server)
        lost = [connection.lost.wait() for connection in open_connections]
        for connection in open_connections:
            connection.transport.abort()
        await asyncio.gather(*lost)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, endpoint: ScriptedEndpoint, open_connections: set["_Connection"]) -> None:
        # The client's limits are what is tested: ours must not get in the way.
        config = H2Configuration(client_side=False, header_encoding=None, validate_outbound_headers=False)
        self.http = H2Connection(config)
        self.lost = asyncio.Event()
        self._endpoint = endpoint
        self._open = open_connections
        self._requests: dict[int, Request] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._endpoint.connections += 1
        self._open.add(self)
        self.http.initiate_connection()
        if self._endpoint.settings:
            self.http.update_settings(self._endpoint.settings)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        self.lost.set()

    def flush(self) -> None:
        self.transport.write(self.http.data_to_send())

    def data_received(self, data: bytes) -> None:
        try:
            events = self.http.receive_data(data)
        except ProtocolError:
            self.transport.abort()
            return
        for event in events:
            self._handle(event)
        self.flush()

    def _handle(self, event: object) -> None:
        match event:
            case RequestReceived():
                headers = {name.decode(): value.decode() for name, value in event.headers}
                request = Request(self, event.stream_id, headers)
                self._requests[event.stream_id] = request
            case DataReceived():
                self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                self._requests[event.stream_id].body += event.data
            case StreamEnded():
                request = self._requests[event.stream_id]
                self._endpoint.requests.append(request)
                self._endpoint.script(request)
            case StreamReset():
                self._requests.pop(event.stream_id, None)
            case RemoteSettingsChanged():
                for key, one in event.changed_settings.items():
                    if one.new_value != one.original_value:
                        self._endpoint.told[key] = one.new_value
            case PingAckReceived():
                self._endpoint.pings_answered += 1
            case ConnectionTerminated():
                self.transport.close()
