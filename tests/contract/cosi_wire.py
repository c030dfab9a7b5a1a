"""COSI over plain grpclib, down to the bytes: independent of the machines under test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from grpclib.client import Channel, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError

from libs.talos.proto.strict import fields
from libs.testbed.pki import KeyPair, TalosPki
from tests.bus_actors import wait_until

Fields = dict[int, list[Any]]  # field number -> its values: int or bytes

CREATED, UPDATED, DESTROYED, BOOTSTRAPPED, ERRORED, NOOP = range(6)


class _Raw(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> Any:
        return bytes(data)


def encode(*pairs: tuple[int, int | str | bytes]) -> bytes:
    """A message of numbers, texts and encoded messages, by field number."""
    out = b""
    for number, value in pairs:
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return out


def _varint(value: int) -> bytes:
    rest = value >> 7
    return bytes([value & 0x7F | 0x80]) + _varint(rest) if rest else bytes([value])


def decode(data: bytes) -> Fields:
    """The fields of a message; libs.talos reads it, which is no code of the simulated machines."""
    found: Fields = {}
    for number, value in fields(data):
        found.setdefault(number, []).append(value)
    return found


def resource_id(resource: bytes) -> str:
    return str(decode(decode(resource)[1][0]).get(3, [b""])[0].decode())


def spec(resource: bytes) -> bytes:
    return bytes(decode(decode(resource)[2][0]).get(1, [b""])[0])


def text(fields: Fields, number: int) -> str:
    return str(fields.get(number, [b""])[0].decode())


class Cosi:
    """Calls of one client at one endpoint. Errors are grpclib's."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def call(self, path: str, request: bytes, node: str | None, **headers: str) -> bytes:
        metadata = headers if node is None else {"node": node, **headers}
        method = UnaryUnaryMethod[bytes, bytes](self.channel, path, bytes, bytes)
        return await method(request, metadata=metadata, timeout=30)

    async def get(self, node: str | None, namespace: str, kind: str, name: str) -> bytes:
        method = UnaryUnaryMethod[bytes, bytes](self.channel, "/cosi.resource.State/Get", bytes, bytes)
        metadata = {} if node is None else {"node": node}
        request = encode((1, namespace), (2, kind), (3, name), (4, b""))
        answer = await method(request, metadata=metadata, timeout=30)
        return bytes(decode(answer)[1][0])

    async def wait_until_reachable(self, node: str) -> None:
        """Return when the machine answers: after a failed dial, an endpoint waits a second or more."""

        async def answers() -> bool:
            try:
                await self.call("/machine.MachineService/Version", b"", node)
            except GRPCError as error:
                if error.status is Status.UNAVAILABLE:
                    return False
                raise
            return True

        await wait_until(answers, f"{node} answers")

    async def list(self, node: str, namespace: str, kind: str, options: bytes = b"") -> Sequence[bytes]:
        method = UnaryStreamMethod[bytes, bytes](self.channel, "/cosi.resource.State/List", bytes, bytes)
        request = encode((1, namespace), (2, kind), (3, options))
        answers = await method(request, metadata={"node": node}, timeout=30)
        return [decode(answer)[1][0] for answer in answers]

    @contextlib.asynccontextmanager
    async def watch(
        self, node: str, namespace: str, kind: str, *, name: str | None = None
    ) -> AsyncIterator[Watch]:
        """An open watch whose readiness message has come; without `name` of the kind, with its contents."""
        request = encode((1, namespace), (2, kind), *([] if name is None else [(3, name)]))
        request += encode((4, b"\x08\x01" if name is None else b""), (5, 1))
        method = UnaryStreamMethod[bytes, bytes](self.channel, "/cosi.resource.State/Watch", bytes, bytes)
        async with method.open(metadata={"node": node}) as stream:
            await stream.send_message(request, end=True)
            watch = Watch(stream)
            assert await watch.message() == b"", "the first message of a watch is empty"
            yield watch
            await stream.cancel()


class Watch:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def message(self) -> bytes:
        """The next message. Raises what ended the stream, if it was an error; a good end fails the test."""
        async with asyncio.timeout(30):
            message = await self._stream.recv_message()
            if message is None:
                await self._stream.recv_trailing_metadata()
        assert message is not None, "the stream ended"
        return bytes(message)

    async def event(self) -> tuple[int, bytes, bytes]:
        """Type, resource and old resource of the next event; one event in each message, as asked."""
        message = await self.message()
        (event,) = decode(message)[1]
        fields = decode(event)
        return fields.get(2, [CREATED])[0], fields.get(1, [b""])[0], fields.get(3, [b""])[0]


@contextlib.asynccontextmanager
async def connected(
    endpoint: str, pki: TalosPki, client: KeyPair | None = None, *, roles: Sequence[str] = ("os:reader",)
) -> AsyncIterator[Cosi]:
    """A client with a certificate of these roles, or with the one given."""
    pair = client or pki.client(roles, lifetime=timedelta(hours=1))
    host, _, port = endpoint.rpartition(":")
    channel = Channel(host, int(port), ssl=context_for(pki, pair), codec=_Raw())
    try:
        yield Cosi(channel)
    finally:
        channel.close()


def context_for(pki: TalosPki, pair: KeyPair | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=pki.authority.pem.decode())
    if pair is not None:
        with _as_file(pair) as path:
            context.load_cert_chain(path)
    return context


@contextlib.contextmanager
def _as_file(pair: KeyPair) -> Iterator[Path]:
    # OpenSSL does not know Talos's label; the content is PKCS#8
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(pair.certificate + pair.key.replace(b"ED25519 PRIVATE KEY", b"PRIVATE KEY"))
        file.flush()
        yield Path(file.name)
