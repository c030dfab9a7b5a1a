"""One HTTP/2 connection to one Talos endpoint: bytes in, bytes out."""

import asyncio
from collections.abc import Mapping

from services.metadata.talos_api.answer import LARGEST_ANSWER_BYTES, MOST_MESSAGES, CallEnded
from services.metadata.talos_api.checked import Unreadable
from services.metadata.talos_api.connection import Call, Connection
from services.metadata.talos_api.credentials import Credentials
from services.metadata.talos_api.http2 import Stream, StreamLost
from services.metadata.talos_api.machine_events import WatchErrored
from services.metadata.talos_api.talosconfig import Endpoint

__all__ = ["CallEnded", "StreamLost", "TalosChannel"]


class TalosChannel:
    """Connects when `connected` is awaited, and anew after a loss. Close it, or retire it once it is idle."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials, *, connect_seconds: float) -> None:
        self.endpoint = endpoint
        self._connection = Connection(endpoint, credentials, connect_seconds)
        self._dialling: asyncio.Task[None] | None = None
        self._calls = 0
        self._retired = False
        self._closed = False

    async def connected(self) -> None:
        """Return once there is a connection; everybody who waits shares one attempt. Raises OSError."""
        if self._connection.is_connected:
            return
        if self._closed:
            raise ConnectionAbortedError("the Talos API was closed on our side")
        if self._dialling is None:
            self._dialling = asyncio.create_task(self._connection.connect(), name=f"dial {self.endpoint}")
            self._dialling.add_done_callback(self._dialled)
        await asyncio.shield(self._dialling)

    @property
    def is_connected(self) -> bool:
        """There is a connection, as far as we know."""
        return self._connection.is_connected

    @property
    def is_dialling(self) -> bool:
        """An attempt is under way."""
        return self._dialling is not None

    @property
    def is_busy(self) -> bool:
        """A call or an attempt to connect is under way."""
        return bool(self._calls) or self.is_dialling

    async def collect(
        self, path: str, request: bytes, headers: Mapping[str, str], *, deadline_seconds: float
    ) -> list[bytes]:
        """All messages of the answer. Raises CallEnded, StreamLost, TimeoutError, Unreadable."""
        answers = _Answers()
        timed = {"grpc-timeout": _timeout(deadline_seconds), **headers}
        call = self.follow(path, request, timed, answers)
        try:
            async with asyncio.timeout(deadline_seconds):
                error = await answers.ended
        finally:
            call.cancel()
        if error is not None:
            raise error
        return answers.messages

    def follow(self, path: str, request: bytes, headers: Mapping[str, str], listener: Call) -> "CallUnderWay":
        """Hand over each message until the server ends it, with CallEnded, StreamLost, Unreadable,
        WatchErrored, or without an error.
        """
        self._calls += 1
        call = CallUnderWay(self, listener)
        call.stream = self._connection.start(path, request, headers, call)
        return call

    def left(self) -> None:
        """A call has ended or was cancelled."""
        self._calls -= 1
        if self._retired and not self._calls:
            self._connection.close()

    def retire(self) -> None:
        """Close as soon as the last call has ended: other credentials are in use by now."""
        self._retired = True
        if not self._calls:
            self._connection.close()

    async def close(self) -> None:
        """Close now, for good; calls under way end with StreamLost."""
        self._closed = True
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait({self._dialling})
        await self._connection.shut()

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling = None
        if not task.cancelled():
            task.exception()  # those who wait have it; with nobody waiting it is nobody's
        if self._retired and not self._calls:
            self._connection.close()


class CallUnderWay:
    """Stands between a stream and who listens to it."""

    __slots__ = ("_channel", "_listener", "stream")

    def __init__(self, channel: TalosChannel, listener: Call) -> None:
        self._channel: TalosChannel | None = channel
        self._listener = listener
        self.stream: Stream | None = None

    def hear(self, message: bytes) -> bool:
        """As `connection.Call`."""
        return self._listener.hear(message)

    def end(self, error: Exception | None) -> None:
        """As `connection.Call`."""
        self._listener.end(_translated(error))
        self._leave()

    def cancel(self) -> None:
        """Nobody listens any more. More than once, or after the end, it does nothing."""
        if self.stream is not None:
            self.stream.cancel()
        self._leave()

    def _leave(self) -> None:
        channel, self._channel, self.stream = self._channel, None, None
        if channel is not None:
            channel.left()


class _Answers:
    """All messages of one call."""

    __slots__ = ("_size", "ended", "messages")

    def __init__(self) -> None:
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.messages: list[bytes] = []
        self._size = 0

    def hear(self, message: bytes) -> bool:
        self._size += len(message)
        if self._size > LARGEST_ANSWER_BYTES or len(self.messages) >= MOST_MESSAGES:
            raise Unreadable(f"more than {LARGEST_ANSWER_BYTES} bytes or {MOST_MESSAGES} messages")
        self.messages.append(message)
        return False

    def end(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


def _timeout(seconds: float) -> str:
    """As gRPC writes it: at most 8 digits."""
    return f"{min(99_999_999, max(1, int(seconds * 1000)))}m"


def _translated(error: Exception | None) -> Exception | None:
    if error is None or isinstance(error, CallEnded | StreamLost | Unreadable | WatchErrored):
        return error
    # Whatever else hostile frames and headers lead to.
    return Unreadable(f"an answer that is not gRPC: {type(error).__name__}: {error}")
