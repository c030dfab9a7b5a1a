"""Calls and streams over one HTTP/2 connection to one Talos endpoint."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from grpclib.client import Stream
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from libs.talos.connection import Connection
from libs.talos.credentials import Credentials
from libs.talos.faults import Status
from libs.talos.proto.strict import InvalidResponse
from libs.talos.stream_buffer import WaiterEvent
from libs.talos.talosconfig import Endpoint
from libs.talos.validation import MAX_MESSAGES, MAX_RESPONSE_BYTES


class CallEnded(Exception):
    """The server ended the call with a status other than OK."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.code, status.message)
        self.status = status


class StreamLost(Exception):
    """The call ended with its connection (GOAWAY, reset, closed) without a response; it may be retried."""


class TalosChannel:
    """Connects in `wait_connected`, also again after a loss. Close it, or retire it to close it when idle."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials, *, connect_seconds: float) -> None:
        self.endpoint = endpoint
        self._connection = Connection(endpoint, credentials, connect_seconds)
        self._connect_task: asyncio.Task[None] | None = None
        self._calls = 0
        self._is_retired = False
        self._is_closed = False

    async def wait_connected(self) -> None:
        """Return when there is a connection; all callers share one attempt. Raises OSError."""
        if self._connection.is_connected:
            return
        if self._is_closed:
            raise ConnectionAbortedError("the Talos client is closed")
        if self._connect_task is None:
            self._connect_task = asyncio.create_task(self._connection.connect(), name=f"dial {self.endpoint}")
            self._connect_task.add_done_callback(self._on_connected)
        await asyncio.shield(self._connect_task)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection."""
        return self._connection.is_connected

    @property
    def is_connecting(self) -> bool:
        """Whether an attempt to connect is running."""
        return self._connect_task is not None

    @property
    def is_busy(self) -> bool:
        """Whether a call or an attempt to connect is running."""
        return bool(self._calls) or self.is_connecting

    async def collect(
        self, path: str, request: bytes, headers: Mapping[str, str], *, deadline_seconds: float
    ) -> list[bytes]:
        """Return all messages. Raises CallEnded, StreamLost, TimeoutError, InvalidResponse."""
        messages: list[bytes] = []
        size = 0
        with self._count_call(), _translate_errors():
            async with self._connection.open_stream(path, headers, timeout=deadline_seconds) as stream:
                await stream.send_message(request, end=True)
                async for message in stream:
                    size += len(message)
                    if size > MAX_RESPONSE_BYTES or len(messages) >= MAX_MESSAGES:
                        raise InvalidResponse(
                            f"more than {MAX_RESPONSE_BYTES} bytes or {MAX_MESSAGES} messages"
                        )
                    messages.append(message)
        return messages

    async def follow(
        self, path: str, request: bytes, headers: Mapping[str, str], arrived: WaiterEvent
    ) -> "MessageStream":
        """Send a call without a deadline. `arrived` is set whenever the stream is readable.

        Raises CallEnded, StreamLost, InvalidResponse.
        """
        call = self._connection.open_stream(path, headers, timeout=None)
        stream = MessageStream(call, arrived, on_end=self._end_call)
        self._calls += 1
        with _translate_errors():
            await stream.send(request, self._connection)
        return stream

    @contextmanager
    def _count_call(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._end_call()

    def _end_call(self) -> None:
        self._calls -= 1
        if self._is_retired and not self._calls:
            self._connection.close()

    def retire(self) -> None:
        """Close after the last call, because other credentials are in use now."""
        self._is_retired = True
        if not self._calls:
            self._connection.close()

    async def close(self) -> None:
        """Close now and stay closed; running calls end with StreamLost."""
        self._is_closed = True
        if self._connect_task is not None:
            self._connect_task.cancel()
            await asyncio.wait({self._connect_task})
        await self._connection.close_and_wait()

    def _on_connected(self, task: asyncio.Task[None]) -> None:
        self._connect_task = None
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the callers have it, if there are any
        if self._is_retired and not self._calls:
            self._connection.close()


class MessageStream:
    """The messages of one call. Close it, unless a method has raised or `receive` has returned None.

    The caller reads when it is readable, so no coroutine waits in an idle stream. Thousands exist at a time.
    """

    __slots__ = ("_arrived", "_call", "_is_open", "_on_end", "_unread")

    def __init__(
        self, call: Stream[bytes, bytes], arrived: WaiterEvent, *, on_end: Callable[[], None]
    ) -> None:
        self._call = call
        self._arrived = arrived
        self._on_end = on_end
        self._is_open = True

    @property
    def is_readable(self) -> bool:
        """Whether `receive` has something to return or to raise, or at least the beginning of a message."""
        return self._unread.is_readable

    async def send(self, request: bytes, connection: Connection) -> None:
        """Send the only message of the caller."""
        await self._call.__aenter__()
        try:
            await self._call.send_request()
            self._unread = connection.newest_stream()
            self._unread.report_to(self._arrived)
            await self._call.send_message(request, end=True)
            self._call.peer = None
        except BaseException as error:
            await self._end(error)
            raise

    async def receive(self) -> bytes | None:
        """Return the next message, None at the end. Raises CallEnded, StreamLost, InvalidResponse."""
        with _translate_errors():
            try:
                message = await self._call.recv_message()
            except BaseException as error:
                await self._end(error)
                raise
            self._call.initial_metadata = self._unread.headers = None  # checked, and read no more
            if message is None:
                await self._end(None)
            return message

    async def close(self) -> None:
        """End the call, if it has not ended."""
        if self._is_open:
            await self._end(asyncio.CancelledError())

    async def _end(self, error: BaseException | None) -> None:
        """End the call. Raises the server's error in place of a lost stream, as `async with` does."""
        self._is_open = False
        try:
            await self._call.__aexit__(type(error) if error is not None else None, error, None)
        finally:
            self._on_end()


@contextmanager
def _translate_errors() -> Iterator[None]:
    task = asyncio.current_task()
    assert task is not None
    cancelled_before = task.cancelling()
    try:
        yield
    except Exception as error:
        # grpclib wakes the task of a lost call by cancelling it, and a second time at the deadline. Left
        # counted, this would make an `asyncio.timeout` around the call raise CancelledError.
        for _ in range(2 if isinstance(error, TimeoutError) else 1):
            if task.cancelling() > cancelled_before:
                task.uncancel()
        if task.cancelling() > cancelled_before:  # the caller cancelled the call at the same moment
            raise asyncio.CancelledError from error
        # The call keeps its error, whose frames would keep the call alive until a garbage collection.
        raise _translate_error(error) from error.with_traceback(None)


def _translate_error(error: Exception) -> Exception:
    match error:
        case GRPCError():
            return CallEnded(Status(error.status.name, error.message or ""))
        case StreamTerminatedError() | ProtocolError() | ConnectionError():
            return StreamLost(str(error))
        case TimeoutError() | InvalidResponse():
            return error
        case _:  # hostile frames and headers may lead to any other error
            return InvalidResponse(f"an answer that is not gRPC: {type(error).__name__}: {error}")
