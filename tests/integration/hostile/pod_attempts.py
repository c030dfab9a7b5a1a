"""What a pod without a key does to NATS: raw connections to its port."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import nkeys  # type: ignore[import-untyped]
import pytest

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import BusError
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.pki import CertificateAuthority
from tests.bootstrap_actors import BootstrapInstallation
from tests.integration.hostile.attempts import Attempt

CarryOut = Callable[[BootstrapInstallation], Awaitable[None]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CONNECTIONS: Final = 2_000
CLOSE_SECONDS: Final = 30.0  # far more than the deadlines of the server
REFUSED: Final = "the server refuses the connection"
CLOSED: Final = "the server closes them after some seconds; services connect meanwhile"
HELLO: Final = b'CONNECT {"verbose":false,"lang":"c","version":"1"}\r\nPING\r\n'


async def open_plain(nats: BootstrapInstallation) -> Streams:
    """A TCP connection that has received the greeting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", nats.server.port)
    assert (await reader.readline()).startswith(b"INFO ")
    return reader, writer


async def open_tls(nats: BootstrapInstallation) -> Streams:
    """The same in TLS, without a key."""
    reader, writer = await open_plain(nats)
    await writer.start_tls(ssl._create_unverified_context())
    return reader, writer


async def is_closed(streams: Streams) -> bytes:
    """What the server sends before it closes the connection, within its deadlines."""
    reader, writer = streams
    async with asyncio.timeout(CLOSE_SECONDS):
        try:
            return await reader.read()
        except (ConnectionError, ssl.SSLError):
            return b""
        finally:
            writer.transport.abort()


def says(sent: bytes, *, tls: bool) -> CarryOut:
    """A connection that sends these bytes is closed."""

    async def carry_out(nats: BootstrapInstallation) -> None:
        streams = await (open_tls if tls else open_plain)(nats)
        with contextlib.suppress(ConnectionError):
            streams[1].write(sent)
            await streams[1].drain()
        assert b"PONG" not in await is_closed(streams)

    return carry_out


async def authenticate_with_new_key(nats: BootstrapInstallation) -> None:
    path = nats.out / "stranger.nk"
    path.write_bytes(nkeys.encode_seed(bytes(range(3, 35)), nkeys.PREFIX_BYTE_USER))
    await _cannot_open(nats, "authorization violation", seed=path, ca=nats.ca_file)


async def authenticate_without_key(nats: BootstrapInstallation) -> None:
    await _cannot_open(nats, "authorization violation", seed=None, ca=nats.ca_file)


async def trust_another_authority(nats: BootstrapInstallation) -> None:
    """A service does not talk to a server that another authority has certified: it signs nothing."""
    ca = nats.out / "another.crt"
    ca.write_bytes(CertificateAuthority.make(common_name="another").pem)
    await _cannot_open(nats, "certificate verify failed", seed=nats.seed_file("watcher"), ca=ca)


async def _cannot_open(nats: BootstrapInstallation, why: str, *, seed: Path | None, ca: Path) -> None:
    access = NatsAccess(servers=(nats.url,), service="watcher", nkey_seed_file=seed, tls_ca_file=ca)
    with pytest.raises(BusError, match=f"(?i){why}"):
        await Connection.open(access, nats.url, seconds=HANG_SECONDS, on_violation=lambda text: None)


@asynccontextmanager
async def half_open(
    nats: BootstrapInstallation, count: int, connect: Callable[[BootstrapInstallation], Awaitable[Streams]]
) -> AsyncIterator[list[Streams]]:
    """That many connections without a further byte."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            streams = await connect(nats)
            stack.callback(streams[1].transport.abort)
            found.append(streams)
        yield found


def stays_silent(count: int, connect: Callable[[BootstrapInstallation], Awaitable[Streams]]) -> CarryOut:
    """Many connections; a service connects beside them, and the server closes them."""

    async def carry_out(nats: BootstrapInstallation) -> None:
        async with half_open(nats, count, connect) as connections:
            await connect_service(nats)
            await asyncio.gather(*map(is_closed, connections))

    return carry_out


async def shake_hands_slowly(nats: BootstrapInstallation) -> None:
    """One byte of a TLS record after the other: the deadline is for the whole handshake."""
    streams = await open_plain(nats)
    closed = asyncio.create_task(is_closed(streams))
    for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500):
        streams[1].write(bytes([byte]))
        done, _ = await asyncio.wait({closed}, timeout=0.3)
        if done:
            break
    await connect_service(nats)
    await closed


async def connect_service(nats: BootstrapInstallation) -> None:
    """A service with its key connects within seconds, and the server answers it."""
    access = nats.nats_access("labeler")
    client = await Connection.open(
        access, access.servers[0], seconds=HANG_SECONDS, on_violation=lambda text: None
    )
    await client.round_trip(HANG_SECONDS)
    await client.abort("done")


POD_ATTEMPTS: tuple[Attempt[BootstrapInstallation], ...] = (
    Attempt("connects to NATS without a key", REFUSED, authenticate_without_key),
    Attempt("connects to NATS with a key of its own", REFUSED, authenticate_with_new_key),
    Attempt("connects to NATS without TLS", REFUSED, says(HELLO, tls=False)),
    Attempt(
        "connects to NATS with TLS and a password",
        REFUSED,
        says(b'CONNECT {"user":"watcher","pass":"x"}\r\nPING\r\n', tls=True),
    ),
    Attempt(
        "publishes to NATS before it authenticates",
        REFUSED,
        says(b"PUB talosccm.v1.flow.leading 2\r\n{}\r\nPING\r\n", tls=True),
    ),
    Attempt(
        "sends a cluster's route protocol to the client port of NATS",
        REFUSED,
        says(b"RS+ $G talosccm.>\r\nRMSG $G a 2\r\n{}\r\n", tls=True),
    ),
    Attempt("sends garbage to NATS in place of TLS", REFUSED, says(bytes(range(256)) * 40, tls=False)),
    Attempt("sends NATS a line of 10 MB", REFUSED, says(b"CONNECT " + b"x" * 10_000_000, tls=True)),
    Attempt(
        "poses as NATS with a certificate of another authority",
        "services do not sign its nonce",
        trust_another_authority,
    ),
    Attempt(
        f"opens {CONNECTIONS} connections to NATS without TLS and keeps them",
        CLOSED,
        stays_silent(CONNECTIONS, open_plain),
    ),
    Attempt("opens 50 connections to NATS with TLS and keeps them", CLOSED, stays_silent(50, open_tls)),
    Attempt(
        "sends NATS a TLS handshake byte by byte",
        "the server closes the connection after some seconds",
        shake_hands_slowly,
    ),
)
