"""The unread data of one stream, in place of grpclib's buffer."""

import asyncio
from collections.abc import Callable

from libs.talos.proto.strict import InvalidResponse


class StreamBuffer:
    """Flow control limits the bytes. grpclib's queue of frames needs 3 kB per idle watch, and 200 bytes for a
    frame of one byte. It takes an empty frame for the end.
    """

    __slots__ = ("_acknowledge", "_data", "_has_ended", "_read_bytes", "arrived")

    def __init__(self, acknowledge: Callable[[int], None]) -> None:
        self._acknowledge = acknowledge
        self.arrived = WaiterEvent()  # one task may wait for several streams: they share its event
        self._data = bytearray()
        self._read_bytes = 0  # not acknowledged yet
        self._has_ended = False

    def add(self, data: bytes, ack_size: int) -> None:
        """Add the data of a frame; `ack_size` includes its padding."""
        self._data += data
        if padding := ack_size - len(data):
            self._acknowledge(padding)
        self.arrived.set()

    def eof(self) -> None:
        """No more data follow."""
        self._has_ended = True
        self.arrived.set()

    @property
    def is_readable(self) -> bool:
        """Whether there is unread data, or the end."""
        return bool(self._data) or self._has_ended

    async def read(self, size: int) -> bytes:
        """Return that many bytes, or none at the end. Raises InvalidResponse."""
        while len(self._data) < size and not self._has_ended:
            self._acknowledge_read()  # the server may wait for room
            self.arrived.clear()
            await self.arrived.wait()
        if len(self._data) < size and self._data:
            raise InvalidResponse("an answer that is not gRPC: it ends within a message")
        found = bytes(self._data[:size])
        del self._data[:size]
        self._read_bytes += len(found)
        if not self._data:  # once for the prefixes and messages that arrived together
            self._acknowledge_read()
        return found

    def unacked_size(self) -> int:
        """Return the number of bytes that the caller acknowledges now, and forget them."""
        unacknowledged = self._read_bytes + len(self._data)
        self._read_bytes, self._data = 0, bytearray()
        return unacknowledged

    def _acknowledge_read(self) -> None:
        self._acknowledge(self._read_bytes)
        self._read_bytes = 0


class WaiterEvent:
    """An event with at most one waiter."""

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Set the event and wake the waiter."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    async def wait(self) -> None:
        """Return when the event is set."""
        if self._is_set:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
