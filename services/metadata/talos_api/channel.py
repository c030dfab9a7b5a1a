"""One HTTP/2 connection to one Talos endpoint: bytes in, bytes out."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from services.metadata.talos_api.answer import CallEnded
from services.metadata.talos_api.connection import Connection
from services.metadata.talos_api.credentials import Credentials
from services.metadata.talos_api.http2 import StreamLost
from services.metadata.talos_api.machine_events import WatchErrored
from services.metadata.talos_api.machine_reading import Unreadable
from services.metadata.talos_api.talosconfig import Endpoint

__all__ = ["CallEnded", "StreamLost", "TalosChannel"]

LARGEST_ANSWER_BYTES: Final = 512 * 1024  # all messages of one call
MOST_MESSAGES: Final = 2048

OnEnd = Callable[[Exception | None], None]


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
        ended = asyncio.get_running_loop().create_future()
        answers: list[bytes] = []
        size = 0

        def keep(message: bytes) -> bool:
            nonlocal size
            size += len(message)
            if size > LARGEST_ANSWER_BYTES or len(answers) >= MOST_MESSAGES:
                raise Unreadable(f"more than {LARGEST_ANSWER_BYTES} bytes or {MOST_MESSAGES} messages")
            answers.append(message)
            return False

        def end(error: Exception | None) -> None:
            if not ended.done():
                ended.set_result(error)

        timed = {"grpc-timeout": _timeout(deadline_seconds), **headers}
        cancel = self._start(path, request, timed, keep, end)
        try:
            async with asyncio.timeout(deadline_seconds):
                error = await ended
        finally:
            cancel()
        if error is not None:
            raise error
        return answers

    def follow(
        self,
        path: str,
        request: bytes,
        headers: Mapping[str, str],
        on_message: Callable[[bytes], bool],
        on_end: OnEnd,
    ) -> Callable[[], None]:
        """Hand over each message until the server ends it; the next one waits a little if `on_message` says
        so. `on_end` has CallEnded, StreamLost, Unreadable, WatchErrored, or None if the server ended it
        without an error. What is returned cancels it.
        """
        return self._start(path, request, headers, on_message, on_end)

    def _start(
        self,
        path: str,
        request: bytes,
        headers: Mapping[str, str],
        on_message: Callable[[bytes], bool],
        on_end: OnEnd,
    ) -> Callable[[], None]:
        is_counted = True

        def leave() -> None:
            nonlocal is_counted
            if is_counted:
                is_counted = False
                self._calls -= 1
                if self._retired and not self._calls:
                    self._connection.close()

        def end(error: Exception | None) -> None:
            on_end(_translated(error))
            leave()

        def stop() -> None:
            cancel()
            leave()

        self._calls += 1
        cancel = self._connection.start(path, request, headers, on_message, end)
        return stop

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


def _timeout(seconds: float) -> str:
    """As gRPC writes it: at most 8 digits."""
    return f"{min(99_999_999, max(1, int(seconds * 1000)))}m"


def _translated(error: Exception | None) -> Exception | None:
    if error is None or isinstance(error, CallEnded | StreamLost | Unreadable | WatchErrored):
        return error
    # Whatever else hostile frames and headers lead to.
    return Unreadable(f"an answer that is not gRPC: {type(error).__name__}: {error}")
