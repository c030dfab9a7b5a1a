"""Calls and streams over one HTTP/2 connection to one Talos endpoint."""

import asyncio
from collections.abc import Mapping

from libs.talos.connection import CallListener, Connection
from libs.talos.credentials import Credentials
from libs.talos.grpc_response import MAX_MESSAGES, MAX_RESPONSE_BYTES, CallEnded
from libs.talos.http2 import Stream, StreamLost
from libs.talos.machine_events import WatchErrored
from libs.talos.talosconfig import Endpoint
from libs.talos.validation import InvalidResponse

__all__ = ["CallEnded", "StreamLost", "TalosChannel"]


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
        answers = _MessageCollector()
        timed = {"grpc-timeout": _format_timeout(deadline_seconds), **headers}
        call = self.start_stream(path, request, timed, answers)
        try:
            async with asyncio.timeout(deadline_seconds):
                error = await answers.ended
        finally:
            call.cancel()
        if error is not None:
            raise error
        return answers.messages

    def start_stream(
        self, path: str, request: bytes, headers: Mapping[str, str], listener: CallListener
    ) -> "ActiveCall":
        """Start a call; pass each message to the listener until the end.

        It ends without an error, or with CallEnded, StreamLost, InvalidResponse or WatchErrored.
        """
        self._calls += 1
        call = ActiveCall(self, listener)
        call.stream = self._connection.start(path, request, headers, call)
        return call

    def on_call_ended(self) -> None:
        """Handle the end or cancellation of a call."""
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


class ActiveCall:
    """Connects a stream with its listener."""

    __slots__ = ("_channel", "_listener", "stream")

    def __init__(self, channel: TalosChannel, listener: CallListener) -> None:
        self._channel: TalosChannel | None = channel
        self._listener = listener
        self.stream: Stream | None = None

    def on_message(self, message: bytes) -> bool:
        """See `CallListener`."""
        return self._listener.on_message(message)

    def on_end(self, error: Exception | None) -> None:
        """See `CallListener`."""
        self._listener.on_end(_translate_error(error))
        self._detach()

    def cancel(self) -> None:
        """Cancel the call. It has no effect after the end or a second time."""
        if self.stream is not None:
            self.stream.cancel()
        self._detach()

    def _detach(self) -> None:
        channel, self._channel, self.stream = self._channel, None, None
        if channel is not None:
            channel.on_call_ended()


class _MessageCollector:
    """All messages of one call."""

    __slots__ = ("_size", "ended", "messages")

    def __init__(self) -> None:
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.messages: list[bytes] = []
        self._size = 0

    def on_message(self, message: bytes) -> bool:
        self._size += len(message)
        if self._size > MAX_RESPONSE_BYTES or len(self.messages) >= MAX_MESSAGES:
            raise InvalidResponse(f"more than {MAX_RESPONSE_BYTES} bytes or {MAX_MESSAGES} messages")
        self.messages.append(message)
        return False

    def on_end(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


def _format_timeout(seconds: float) -> str:
    """Return the timeout in gRPC's format, with at most 8 digits."""
    return f"{min(99_999_999, max(1, int(seconds * 1000)))}m"


def _translate_error(error: Exception | None) -> Exception | None:
    if error is None or isinstance(error, CallEnded | StreamLost | InvalidResponse | WatchErrored):
        return error
    # Hostile frames and headers may lead to any other error.
    return InvalidResponse(f"an answer that is not gRPC: {type(error).__name__}: {error}")
