"""One HTTP/2 connection to one Talos endpoint: bytes in, bytes out, through grpclib."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Final

from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.metadata import Deadline
from grpclib.protocol import H2Protocol

from services.metadata.talos_api.connection import Connection
from services.metadata.talos_api.credentials import Credentials
from services.metadata.talos_api.faults import Status
from services.metadata.talos_api.machine_reading import Unreadable
from services.metadata.talos_api.talosconfig import Endpoint

LARGEST_ANSWER_BYTES: Final = 512 * 1024  # all messages of one call
MOST_MESSAGES: Final = 2048
WATCH_PACE_SECONDS: Final = 0.05  # a machine that floods its watch is held back by flow control


class CallEnded(Exception):
    """The server ended the call with a status other than OK."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.code, status.message)
        self.status = status


class StreamLost(Exception):
    """The call died with its connection (GOAWAY, reset, closed) without an answer: may be tried again."""


class TalosChannel:
    """Connects when `connected` is awaited, and anew after a loss. Close it, or retire it once it is idle."""

    def __init__(self, endpoint: Endpoint, credentials: Credentials, *, connect_seconds: float) -> None:
        self.endpoint = endpoint
        self._connection = Connection(endpoint, credentials, connect_seconds)
        self._dialling: asyncio.Task[H2Protocol] | None = None
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
            self._dialling = asyncio.create_task(self._connection.__connect__(), name=f"dial {self.endpoint}")
            self._dialling.add_done_callback(self._dialled)
        await asyncio.shield(self._dialling)

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
        answers: list[bytes] = []
        size = 0
        deadline = Deadline.from_timeout(deadline_seconds)
        async with aclosing(self._messages(path, request, headers, deadline)) as messages:
            async for message in messages:
                size += len(message)
                if size > LARGEST_ANSWER_BYTES or len(answers) >= MOST_MESSAGES:
                    raise Unreadable(f"more than {LARGEST_ANSWER_BYTES} bytes or {MOST_MESSAGES} messages")
                answers.append(message)
        return answers

    async def follow(
        self, path: str, request: bytes, headers: Mapping[str, str], on_message: Callable[[bytes], bool]
    ) -> None:
        """Hand over each message until the server ends it; the next one waits a little if `on_message` says
        so. Raises CallEnded, StreamLost, Unreadable.
        """
        async with aclosing(self._messages(path, request, headers, None)) as messages:
            async for message in messages:
                if on_message(message):
                    await asyncio.sleep(WATCH_PACE_SECONDS)

    async def _messages(
        self, path: str, request: bytes, headers: Mapping[str, str], deadline: Deadline | None
    ) -> AsyncGenerator[bytes, None]:
        self._calls += 1
        try:
            with _translated():
                async with self._connection.stream(path, headers, deadline) as stream:
                    await stream.send_message(request, end=True)
                    async for message in stream:
                        yield message
        finally:
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

    def _dialled(self, task: asyncio.Task[H2Protocol]) -> None:
        self._dialling = None
        if not task.cancelled():
            task.exception()  # those who wait have it; with nobody waiting it is nobody's
        if self._retired and not self._calls:
            self._connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except GRPCError as error:
        raise CallEnded(Status(error.status.value, error.message or "")) from error
    except (StreamTerminatedError, ConnectionError) as error:
        raise StreamLost(str(error)) from error
    except (Unreadable, TimeoutError):
        raise
    except Exception as error:  # grpclib answers hostile frames and headers with whatever they lead to
        raise Unreadable(f"an answer that is not gRPC: {type(error).__name__}: {error}") from error
