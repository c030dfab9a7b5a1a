"""nats-py's client: its greeting, its encryption and its parser are used, its queues are passed by."""

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

_AT_ONCE: Final = 64  # messages that are heard before others get their turn
_CLOSE_SECONDS: Final = 2.0
_VERSION: Final = "NATS/1.0"
_BREAKS: Final = re.compile(r"\s")  # in a subject it would begin another command
_LINE_BREAKS: Final = re.compile(r"[\r\n]")


class WireMessage(msgspec.Struct, frozen=True):
    """A message as it came. `status` is the server's own word instead of a message, "" in every other."""

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] = {}
    status: str = ""
    description: str = ""


MessageCallback = Callable[[WireMessage], None]


class Client(NatsPyClient):
    """One connection, without nats-py's reconnection, which can hang behind a publish backlog (nats.py#671).

    In nats-py each message to us costs a queue and the turn of a task, each one from us another queue, a
    future and the turn of a second task. Here who hears is called by the parser, and what is sent in one turn
    of the loop is written in one piece.
    """

    def __init__(self, *, encrypted: bool) -> None:
        super().__init__()
        self._encrypted = encrypted
        self._heard: dict[int, MessageCallback] = {}
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
        """Subscribe; `heard` gets each message as it arrives, in the context of who calls this."""
        context = copy_context()
        self._sid += 1
        self._heard[self._sid] = lambda message: context.run(callback, message)
        self._put(f"SUB {subject}  {self._sid}\r\n".encode())
        return self._sid

    def unsubscribe(self, sid: int) -> None:
        """Tell the server to send no more; what it has already sent is still heard."""
        self._put(f"UNSUB {sid} \r\n".encode())

    def drop_subscription(self, sid: int) -> None:
        """What still comes is dropped."""
        self._heard.pop(sid, None)

    async def ping(self, seconds: int) -> None:
        """A round trip behind all that was sent so far; nats-py's PING alone would overtake what waits."""
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

    # ---- hearing

    async def _process_pong(self) -> None:
        # nats-py sets the result even of a future whose waiter has given up, which would end the reading.
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        heard = self._heard.get(sid)
        if heard is None:
            return
        heard(parse_message(subject, reply, data, headers or b""))
        self._in_a_row += 1
        if self._in_a_row % _AT_ONCE == 0:
            await asyncio.sleep(0)

    # ---- beginning and end

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # The greeting comes before TLS, so anybody on the way can have written it. nats-py would answer one
        # without TLS in the clear, with the nonce signed: whoever relayed that nonce would then be us.
        if self._encrypted and initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.Error("the server does not offer TLS, but a CA file or tls:// demands it")
            info["tls_required"] = True  # nats-py takes up no TLS that is merely available
        await super()._process_info(info, initial_connection)

    @property
    def server_id(self) -> str:
        """Of the server that we are connected to."""
        return str(self._server_info.get("server_id", ""))

    @property
    def server_certificate_not_after(self) -> datetime | None:
        """The end of the certificate that the server showed, None without TLS."""
        writer = getattr(self._transport, "_io_writer", None)
        shown = writer.get_extra_info("peercert") if writer is not None else None
        until = shown.get("notAfter") if shown else None
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(until), UTC) if until else None

    def reading(self) -> "asyncio.Task[None]":
        """Done as soon as the connection is over."""
        assert self._reading_task is not None
        return self._reading_task

    async def abort(self) -> None:
        """Abort the transport and end every task: `close()` would wait for a peer that reads no more."""
        self._status = NatsPyClient.CLOSED
        self._heard.clear()
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
    """A message of the wire. Whoever may publish can have written it: nothing in it raises."""
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
