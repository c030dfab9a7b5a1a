"""A nats-py client that uses its handshake, TLS and parser, and bypasses its queues."""

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from contextvars import copy_context
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client as NatsPyClient

_AT_ONCE: Final = 64  # messages that are processed before other tasks run
_CLOSE_SECONDS: Final = 2.0
_VERSION: Final = "NATS/1.0"
_BREAKS: Final = re.compile(r"\s")  # whitespace in a subject would start another command
_LINE_BREAKS: Final = re.compile(r"[\r\n]")


class WireMessage(msgspec.Struct, frozen=True):
    """A received message. `status` is set in status messages of the server, otherwise ""."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] = {}
    status: str = ""
    description: str = ""


MessageCallback = Callable[[WireMessage], None]


class Client(NatsPyClient):
    """One connection, without nats-py's reconnection, which can hang behind a publish backlog (nats.py#671).

    In nats-py each received message costs a queue and a task switch, and each sent message another queue, a
    future and a second task switch. Here the parser calls the receiver. Messages sent in one iteration of
    the event loop are written together.
    """

    def __init__(self, *, encrypted: bool) -> None:
        super().__init__()
        self._encrypted = encrypted
        self._callbacks: dict[int, MessageCallback] = {}
        self._in_a_row = 0
        self._write_is_due = False

    # ---- sending

    def send(self, subject: str, payload: bytes, reply: str, headers: Mapping[str, str] | None) -> None:
        """Queue for the socket. Raises nats.errors.Error."""
        if _BREAKS.search(subject) or not subject:
            raise nats.errors.BadSubjectError
        block = _block_of(headers) if headers else b""
        size = len(block) + len(payload)
        if size > self._max_payload:
            raise nats.errors.MaxPayloadError
        sizes = f"{len(block)} {size}" if block else f"{size}"
        command = f"{'HPUB' if block else 'PUB'} {subject} {reply} {sizes}\r\n"
        self._put(b"%b%b%b\r\n" % (command.encode(), block, payload))

    def subscribe_callback(self, subject: str, callback: MessageCallback) -> int:
        """Subscribe; `callback` receives each message at once, in the context of the caller."""
        context = copy_context()
        self._sid += 1
        self._callbacks[self._sid] = lambda message: context.run(callback, message)
        self._put(f"SUB {subject}  {self._sid}\r\n".encode())
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        """Ask the server to stop; messages that it has already sent are still received."""
        self._put(f"UNSUB {sid} \r\n".encode())

    def drop_subscription(self, sid: int) -> None:
        """Drop the messages that still arrive."""
        self._callbacks.pop(sid, None)

    async def ping(self, seconds: int) -> None:
        """Wait for a round trip behind all sent messages; nats-py's PING alone would overtake queued ones."""
        self._write()
        await self.rtt(timeout=seconds)

    def _put(self, command: bytes) -> None:
        if not self.is_connected:
            raise nats.errors.ConnectionClosedError
        self._pending.append(command)
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._write_is_due:
            self._write_is_due = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        self._write_is_due = False
        if self._pending and self._transport and self.is_connected:
            self._transport.writelines(self._pending)
            self._pending, self._pending_data_size = [], 0

    async def _flush_pending(self, force_flush: bool = False) -> None:
        self._write_soon()

    # ---- receiving

    async def _process_pong(self) -> None:
        # nats-py also sets the result of a cancelled future, which would end the reading task.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        callback = self._callbacks.get(sid)
        if callback is None:
            return
        callback(parse_message(subject, reply, data, headers or b""))
        self._in_a_row += 1
        if self._in_a_row % _AT_ONCE == 0:
            await asyncio.sleep(0)

    # ---- start and end

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # INFO arrives before TLS, so an attacker in between can forge it. nats-py would answer a forged one
        # in plain text, with the signed nonce, and the attacker could relay it as this client's identity.
        if self._encrypted and initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.Error("the server does not offer TLS, but a CA file or tls:// requires it")
            info["tls_required"] = True  # nats-py ignores TLS that is only available
        await super()._process_info(info, initial_connection)

    @property
    def server_id(self) -> str:
        """The ID of the connected server."""
        return str(self._server_info.get("server_id", ""))

    @property
    def server_certificate_not_after(self) -> datetime | None:
        """The expiry of the server's certificate, None without TLS."""
        writer = getattr(self._transport, "_io_writer", None)
        shown = writer.get_extra_info("peercert") if writer is not None else None
        until = shown.get("notAfter") if shown else None
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(until), UTC) if until else None

    def reading(self) -> "asyncio.Task[None]":
        """The task that reads; it is done when the connection has ended."""
        assert self._reading_task is not None
        return self._reading_task

    async def abort(self) -> None:
        """Abort the transport and end all tasks; `close()` would wait for a peer that does not read."""
        self._status = NatsPyClient.CLOSED
        self._callbacks.clear()
        background = [self._reading_task, self._ping_interval_task, self._flusher_task]
        tasks = [task for task in background if task is not None]
        for task in tasks:
            task.cancel()
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)


def parse_message(subject: bytes, reply: bytes, data: bytes, block: bytes) -> WireMessage:
    """Parse a received message. Any publisher may have written it, so nothing in it raises."""
    if not block:
        return WireMessage(subject.decode(errors="replace"), reply.decode(errors="replace"), data)
    first, *lines = block.decode(errors="replace").split("\r\n")
    status, _, description = first.removeprefix(_VERSION).strip().partition(" ")
    headers = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            headers[key.strip()] = value.strip()
    return WireMessage(
        subject.decode(errors="replace"), reply.decode(errors="replace"), data, headers, status, description
    )


def _block_of(headers: Mapping[str, str]) -> bytes:
    lines = [f"{key}: {value}" for key, value in headers.items()]
    if any(map(_LINE_BREAKS.search, lines)):
        raise nats.errors.BadHeaderError("a header has a line break")
    return "\r\n".join([_VERSION, *lines, "\r\n"]).encode()
