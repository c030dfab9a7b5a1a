"""One connection to NATS: requests and inboxes. It never reconnects; the supervisor opens a new one."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Coroutine
from datetime import datetime
from itertools import count
from secrets import token_hex
from typing import Any, Final, Self

import nats.errors
from nats.aio.subscription import Subscription

from libs.common.bus.nats.client import Client, ConnectionTransport, WireMessage
from libs.common.bus.nats.nats_access import NatsAccess, without_password
from libs.common.bus.protocol import BusError

NO_RESPONDERS: Final = "503"
_PING_SECONDS: Final = 15
_CLOSE_SECONDS: Final = 2.0
_AT_ONCE: Final = 64  # messages that a subscription receives before other tasks run
_UNLIMITED: Final = 0
_HEADER_ROOM: Final = 64 * 1024  # bytes: our headers are always shorter
_NEVER: Final = 10**9  # seconds

MessageCallback = Callable[[WireMessage], None]


class NoResponders(BusError):
    """No server or service answers on the subject: the stream, the consumer or JetStream is missing."""


class Connection:
    """Sends to and receives from one server. Every method ends by its deadline; failures are BusErrors."""

    def __init__(self, access: NatsAccess, server: str, on_violation: Callable[[str], None]) -> None:
        self._where = f"NATS at {without_password(server)}"
        self._server = server
        self._on_violation = on_violation
        self._transport = ConnectionTransport(encrypted=access.requires_tls(server))
        self._client = Client(self._transport)
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._waiting: dict[str, tuple[asyncio.Future[WireMessage], str]] = {}
        self._tokens = count()
        self._inboxes = f"_INBOX_{access.service}.{token_hex(8)}"
        self._last_error = ""
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, access: NatsAccess, server: str, *, seconds: float, on_violation: Callable[[str], None]
    ) -> Self:
        """Connect once. Raises BusError with the reason."""
        connection = cls(access, server, on_violation)
        try:
            async with asyncio.timeout(seconds):
                await connection._connect(access, seconds)
        except Exception as error:
            # The library, the resolver and TLS raise many types: all mean that there is no connection.
            await connection._end()
            reported = connection._last_error  # nats-py passes the cause to its callback only
            silent = isinstance(error, TimeoutError | nats.errors.NoServersError)
            reason = reported if silent and reported else describe_error(error, seconds)
            raise BusError(f"{connection._where}: {reason}") from error
        except asyncio.CancelledError:
            await connection._end()
            raise
        return connection

    async def _connect(self, access: NatsAccess, seconds: float) -> None:
        tls = access.tls_context()
        await self._client.connect(
            self._server,
            name=access.service,
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=seconds,  # type: ignore[arg-type]  # annotated int, handed to wait_for
            ping_interval=_PING_SECONDS,
            pending_size=0,  # publish never waits for the socket; callers limit unacknowledged publishes
            inbox_prefix=f"_INBOX_{access.service}",
            nkeys_seed_str=access.read_seed(),
            tls=tls,
        )
        await self._subscribe(f"{self._inboxes}.r.*", self._on_reply)

    async def send(
        self, subject: str, payload: bytes = b"", *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Queue a message without waiting; there is no acknowledgement."""
        try:
            if _is_too_large(payload, headers, self._client.max_payload):
                raise nats.errors.MaxPayloadError
            await self._client.publish(subject, payload, reply, headers or None)
        except nats.errors.Error as error:
            raise BusError(f"{self._where}: {subject}: {describe_error(error)}") from error

    async def _subscribe(self, subject: str, callback: MessageCallback) -> Subscription:
        """Subscribe; `callback` receives each message, in the context of the caller."""
        received = count(1)

        async def receive(message: WireMessage) -> None:
            callback(message)
            if next(received) % _AT_ONCE == 0:
                await asyncio.sleep(0)

        return await self._client.subscribe(
            subject,
            cb=receive,  # type: ignore[arg-type]  # our client makes the messages
            pending_msgs_limit=_UNLIMITED,  # nats-py would drop messages above its limits
            pending_bytes_limit=_UNLIMITED,
        )

    async def request(
        self, subject: str, payload: bytes = b"", *, seconds: float, headers: dict[str, str] | None = None
    ) -> WireMessage:
        """Send a request and return its response. Raises NoResponders or BusError."""
        loop = asyncio.get_running_loop()
        token = str(next(self._tokens))
        future: asyncio.Future[WireMessage] = loop.create_future()
        self._waiting[token] = (future, subject)
        timer = loop.call_later(seconds, self._give_up, future, subject, seconds)
        try:
            await self.send(subject, payload, reply=f"{self._inboxes}.r.{token}", headers=headers)
            answer = await future
        finally:
            timer.cancel()
            del self._waiting[token]
        if answer.status == NO_RESPONDERS:
            raise NoResponders(f"{self._where}: {subject}: no responders")
        return answer

    async def open_inbox(self, callback: MessageCallback) -> Subscription:
        """Subscribe to a new reply subject; `callback` receives each message and must not raise."""
        subject = f"{self._inboxes}.s.{next(self._tokens)}"
        try:
            return await self._subscribe(subject, callback)
        except nats.errors.Error as error:
            raise BusError(f"{self._where}: {subject}: {describe_error(error)}") from error

    async def drain(self, inbox: Subscription) -> None:
        """Unsubscribe, and receive what the server had already sent."""
        # If the connection has ended or is stuck, no more messages arrive.
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            await self.finish(inbox.drain(), _CLOSE_SECONDS)  # type: ignore[no-untyped-call]

    async def unsubscribe(self, inbox: Subscription) -> None:
        """Unsubscribe, and drop what the server had already sent."""
        with contextlib.suppress(nats.errors.Error):  # the connection has ended, and with it the subscription
            await inbox.unsubscribe()

    async def round_trip(self, seconds: float) -> None:
        """Return when the server has received all sent messages. Raises BusError on timeout."""
        try:
            await self.finish(self._client.rtt(_NEVER), seconds)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise BusError(f"{self._where}: no answer to a ping within {seconds:g} s") from error

    async def finish(self, work: Coroutine[Any, Any, object], seconds: float) -> None:
        """Wait for `work`. Raises TimeoutError after `seconds`; the work continues until the connection ends.

        A PONG that arrives for a cancelled ping of nats-py ends its reading task.
        """
        task = asyncio.create_task(work)
        self._unfinished.add(task)
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            raise TimeoutError
        self._unfinished.discard(task)
        if task.cancelled():
            raise nats.errors.ConnectionClosedError
        task.result()

    @property
    def server_id(self) -> str:
        """The ID of the connected server, as the system account uses it."""
        return self._transport.server_id

    @property
    def server_certificate_not_after(self) -> datetime | None:
        """The expiry of the server's certificate, None without TLS."""
        return self._transport.certificate_not_after

    @property
    def closed(self) -> "asyncio.Future[str]":
        """Done with the reason when the connection has ended; never cancel it."""
        return self._lost

    async def abort(self, reason: str) -> None:
        """End the connection at once; pending requests get a BusError."""
        self._lose(reason)
        await self._end()

    async def _end(self) -> None:
        if self._client.is_connected:
            await self._client.close()
        self._transport.close()  # nats-py closes none before it is connected
        for task in self._unfinished:
            task.cancel()
        await asyncio.gather(*self._unfinished, return_exceptions=True)

    def _give_up(self, future: "asyncio.Future[WireMessage]", subject: str, seconds: float) -> None:
        if not future.done():
            future.set_exception(BusError(f"{self._where}: {subject}: no answer within {seconds:g} s"))

    def _on_reply(self, message: WireMessage) -> None:
        future, _ = self._waiting.get(message.subject.rpartition(".")[2], (None, ""))
        if future is not None and not future.done():
            future.set_result(message)

    async def _on_error(self, error: Exception) -> None:
        text = describe_error(error)
        if "permissions violation" not in text:
            self._last_error = text
            return
        self._on_violation(text)
        for future, subject in self._waiting.values():  # nats-py passes the text in lower case
            if f'"{subject.lower()}"' in text and not future.done():
                future.set_exception(BusError(f"{self._where}: {text}"))

    async def _on_closed(self) -> None:
        error = self._client.last_error
        self._lose(self._last_error or (describe_error(error) if error else "connection closed"))

    def _lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)
        for future, subject in self._waiting.values():
            if not future.done():
                future.set_exception(BusError(f"{self._where}: {subject}: {reason}"))


def _is_too_large(payload: bytes, headers: dict[str, str] | None, limit: int) -> bool:
    """Whether the server would end the connection: it counts the headers, too, unlike nats-py."""
    room = limit - len(payload)
    if room > _HEADER_ROOM or not headers:
        return room < 0
    lines = [f"{key}: {value}\r\n".encode() for key, value in headers.items()]
    return room < len(b"NATS/1.0\r\n\r\n") + sum(map(len, lines))


def describe_error(error: BaseException, seconds: float = 0.0) -> str:
    """Return the error in words that an operator knows."""
    if isinstance(error, nats.errors.UnexpectedEOF):
        return "the server closed the connection"
    if isinstance(error, TimeoutError | nats.errors.TimeoutError):
        return f"no answer within {seconds:g} s" if seconds else "no answer in time"
    if isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error).removeprefix("nats: ").strip("'") or type(error).__name__
