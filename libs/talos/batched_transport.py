"""A transport that writes the frames of one iteration of the event loop together."""

import asyncio
from collections.abc import Callable
from typing import Final

# Calls wait for room, but each PING, SETTINGS and reset of the server leads to a response frame.
_MAX_UNREAD_BYTES: Final = 1024 * 1024


class BatchedTransport(asyncio.Transport):
    """grpclib writes each frame by itself, and each write costs a TLS record and a system call.

    A server that sends without reading our responses loses its connection at 1 MiB.
    """

    def __init__(self, transport: asyncio.Transport, close: Callable[[str], None]) -> None:
        super().__init__()
        self._transport: asyncio.Transport | None = transport
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._frames: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write the data at the end of this iteration of the event loop."""
        if not self._frames:
            self._loop.call_soon(self._flush)
        self._frames.append(bytes(data))

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Write what is left, and close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def release(self) -> None:
        """Drop the closed transport and its protocol, because both refer to this object.

        In such a cycle, 0.2 MB of TLS state would stay until a garbage collection.
        """
        self._transport = None
        self._close = _ignore

    def _flush(self) -> None:
        data, self._frames = b"".join(self._frames), []
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self._close("the server sends and does not read")


def _ignore(_reason: str) -> None:
    """Do nothing: the transport has closed."""
