"""What one connection to NATS sends and when, and how it ends, by a server that records or has a script."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import BusError
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.pki import CertificateAuthority
from tests.bus_actors import wait_until
from tests.bus_server import connected
from tests.tcp_server import serve_tcp

NewLoop = Callable[[], asyncio.AbstractEventLoop]
_GREETING = b'INFO {"server_id":"A","version":"2.11.0","headers":true,"max_payload":1048576%s}\r\n'


class NatsRecorder:
    """A server that records the names of commands, and the headers of the messages by subject."""

    def __init__(self) -> None:
        self.port = 0
        self.commands: list[str] = []
        self.sent: dict[str, list[str]] = {}

    @classmethod
    @asynccontextmanager
    async def start(cls) -> AsyncIterator["NatsRecorder"]:
        recorder = cls()
        async with serve_tcp(recorder._serve) as recorder.port:
            yield recorder

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_GREETING % b"")
        while line := await reader.readline():
            command, *tokens = line.decode().split()
            self.commands.append(command)
            if command == "PING":
                writer.write(b"PONG\r\n")
            elif command in {"PUB", "HPUB"}:
                data = await reader.readexactly(int(tokens[-1]) + 2)
                headers = data[: int(tokens[-2])] if command == "HPUB" else b""
                self.sent[tokens[0]] = headers.decode().split("\r\n")


@asynccontextmanager
async def scripted(*sent: bytes) -> AsyncIterator[int]:
    """The port of a server that answers the first PING with PONG and then sends `sent`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_GREETING % b"")
        while line := await reader.readline():
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n" + b"".join(sent))
                break
        if not sent or sent[-1]:
            await reader.read()

    async with serve_tcp(serve) as port:
        yield port


async def test_a_round_trip_is_behind_all_that_was_sent_before():
    async with NatsRecorder.start() as recorder, connected(recorder.port) as connection:
        recorder.commands.clear()
        await connection.send("talosccm.v1.first", b"1")
        await connection.send("talosccm.v1.second", b"2")
        await connection.round_trip(HANG_SECONDS)
        publishes = [command for command in recorder.commands if command in {"PUB", "PING"}]
        assert publishes[:2] == ["PUB", "PUB"]
        assert recorder.sent.keys() >= {"talosccm.v1.first", "talosccm.v1.second"}


async def test_an_inbox_is_drained_only_when_the_server_knows_of_its_end():
    async with NatsRecorder.start() as recorder, connected(recorder.port) as connection:
        inbox = await connection.open_inbox(lambda message: None)
        await connection.round_trip(HANG_SECONDS)
        recorder.commands.clear()
        await connection.drain(inbox)
        assert recorder.commands[:2] == ["UNSUB", "PING"]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"-ERR 'Authorization Violation'\r\n", "authorization"),
        (b"-ERR 'User Authentication Expired'\r\n", "user authentication expired"),
        (b"-ERR 'Stale Connection'\r\n", "stale connection"),
        (b"nonsense\r\n", "protocol"),
        (b"", "the server closed the connection"),
    ],
)
async def test_a_connection_that_the_server_ends_is_lost_at_once_with_the_reason(sent: bytes, reason: str):
    async with scripted(sent) as port, connected(port) as connection:
        async with asyncio.timeout(12):  # sooner than by a ping without an answer
            assert reason in (await connection.closed).lower()
        with pytest.raises(BusError):
            await connection.request("talosccm.v1.x", seconds=HANG_SECONDS)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_was_said_in_plain_text_behind_the_greeting_does_not_count_as_said_in_tls(
    new_loop: NewLoop, tmp_path: Path
):
    """An attacker between us and NATS can add to the greeting, but not to what TLS protects."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_connect_past_a_forged_error(tmp_path))


async def _connect_past_a_forged_error(tmp_path: Path) -> None:
    authority = CertificateAuthority.make(common_name="nats")
    pair = authority.issue_server(["127.0.0.1"])
    for name, content in (("ca", authority.pem), ("cert", pair.certificate), ("key", pair.key)):
        (tmp_path / f"{name}.pem").write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_GREETING % b',"tls_required":true' + b"-ERR 'forged'\r\n")
        await writer.start_tls(context)
        while line := await reader.readline():
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")

    async with serve_tcp(serve) as port, connected(port, ca_file=tmp_path / "ca.pem") as connection:
        await connection.round_trip(HANG_SECONDS)
        assert connection.server_certificate_not_after is not None


_NONCE = b'{"auth_required":true,"nonce":"of-another"}'


@pytest.mark.parametrize(
    "greeting",
    [
        b"INFO " + _NONCE,
        b" INFO " + _NONCE,
        b"+OK INFO " + _NONCE,
        b'INFO {"tls_required":true}INFO ' + _NONCE,
        b'INFO {"tls_required":true,"tls_required":false,"nonce":"of-another"}',
        b"INFO nonsense",
        b"PONG",
    ],
)
@pytest.mark.parametrize("required_by", ["scheme", "ca"])
async def test_no_greeting_makes_us_say_anything_in_plain_text_where_tls_is_required(
    greeting: bytes, required_by: str, tmp_path: Path
):
    """A signed nonce lets the one between us be us."""
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(CertificateAuthority.make(common_name="nats").pem)
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting + b"\r\n")
        received.append(await reader.read())

    async with serve_tcp(serve) as port:
        url = f"{'tls' if required_by == 'scheme' else 'nats'}://127.0.0.1:{port}"
        access = NatsAccess(
            servers=(url,), service="watcher", tls_ca_file=None if required_by == "scheme" else ca_file
        )
        with pytest.raises(BusError):
            await Connection.open(access, url, seconds=HANG_SECONDS, on_violation=lambda text: None)
        await wait_until(lambda: bool(received))
    assert received == [b""]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_ends_with_messages_not_sent_yet_is_lost_at_once(new_loop: NewLoop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_lose_with_unsent_messages())


async def _lose_with_unsent_messages() -> None:
    async with scripted(b"") as port, connected(port) as connection:
        while not connection.closed.done():
            with contextlib.suppress(BusError):
                await connection.send("any", bytes(100_000))
            await asyncio.sleep(0)
        assert connection.closed.result()
        async with asyncio.timeout(HANG_SECONDS):
            await connection.abort("the end")


@pytest.mark.parametrize(
    ("subject", "headers", "reason"),
    [
        *((subject, None, "invalid subject") for subject in ("", "a b", "a\r\nPUB b 0", "a\tb", "a\nb")),
        *(("subject", {name: "c"}, "header") for name in ("a\r\nb", "a\nb", "a:b")),
    ],
)
async def test_what_would_be_another_command_or_header_is_rejected(
    subject: str, headers: dict[str, str] | None, reason: str
):
    async with NatsRecorder.start() as recorder, connected(recorder.port) as connection:
        with pytest.raises(BusError, match=reason):
            await connection.send(subject, headers=headers)


@pytest.mark.parametrize("value", ["b\r\nc: d", "b\nc: d"])
async def test_the_value_of_a_header_stays_one_header(value: str):
    async with NatsRecorder.start() as recorder, connected(recorder.port) as connection:
        await connection.send("subject", headers={"a": value})
        await connection.round_trip(HANG_SECONDS)
        lines = filter(None, recorder.sent["subject"])
        assert [line.partition(":")[0] for line in lines] == ["NATS/1.0", "a"]


async def test_nothing_is_sent_after_the_end():
    async with NatsRecorder.start() as recorder, connected(recorder.port) as connection:
        await connection.abort("the end")
        with pytest.raises(BusError, match="connection closed"):
            await connection.send("subject")


async def test_the_end_of_the_connection_ends_a_wait_for_an_answer_to_a_ping():
    async with scripted() as port, connected(port) as connection:
        waiting = asyncio.create_task(connection.round_trip(10 * HANG_SECONDS))
        await asyncio.sleep(0)
        await connection.abort("the end")
        with pytest.raises(BusError, match="ping"):
            async with asyncio.timeout(HANG_SECONDS):
                await waiting
