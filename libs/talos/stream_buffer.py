"""The unread data of one stream, in place of grpclib's buffer."""

from collections.abc import Callable

from libs.talos.validation import InvalidResponse
from libs.talos.waiter_event import WaiterEvent


class StreamBuffer:
    """Flow control limits the bytes. grpclib's queue of frames needs 3 kB per idle watch, and 200 bytes for a
    frame of one byte. It takes an empty frame for the end.
    """

    __slots__ = ("_acknowledge", "_data", "_has_ended", "arrived")

    def __init__(self, acknowledge: Callable[[int], None]) -> None:
        self._acknowledge = acknowledge
        self.arrived = WaiterEvent()  # one task may wait for several streams: they share its event
        self._data = bytearray()
        self._has_ended = False

    def add(self, data: bytes, ack_size: int) -> None:
        """Add the data of a frame; `ack_size` includes its padding."""
        self._data += data
        self._acknowledge(ack_size - len(data))
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
            self.arrived.clear()
            await self.arrived.wait()
        if len(self._data) < size and self._data:
            raise InvalidResponse("an answer that is not gRPC: it ends within a message")
        found = bytes(self._data[:size])
        del self._data[:size]
        self._acknowledge(len(found))
        return found

    def unacked_size(self) -> int:
        """Return the number of unread bytes, which the caller acknowledges, and forget them."""
        unread = len(self._data)
        self._data = bytearray()
        return unread
