"""A TCP proxy between two parts that can cut, delay, throttle or block the connections through it."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Final, Literal

import msgspec

from libs.testbed.ports import allocate_port

Direction = Literal["to-server", "to-client"]

_CHUNK_BYTES: Final = 2**16
_SLICES_PER_SECOND: Final = 10  # a throttled connection carries this many slices
_MAX_CONNECTIONS: Final = 512


class LinkState(msgspec.Struct, frozen=True, kw_only=True):
    """What the proxy does with connections and bytes; the default passes everything."""

    is_cut: bool = False  # ends every connection, and each new one at once
    blocked: tuple[Direction, ...] = ()  # bytes wait, as those of a lost network do; nothing is closed
    delay_seconds: float = 0.0  # added to each chunk, which has at most 64 KiB
    bytes_per_second: float = 0.0  # per connection and direction; 0: no limit


HEALTHY: Final = LinkState()
CUT: Final = LinkState(is_cut=True)
BLACK_HOLE: Final = LinkState(blocked=("to-server", "to-client"))


class FaultProxy:
    """One listener on the loopback whose connections continue to one server, or to several in turn."""

    def __init__(self, port: int, target_port: int, hosts: Sequence[str], source: str) -> None:
        self.port = port
        self._target_port = target_port
        self._hosts = itertools.cycle(hosts)
        self._source = source
        self._state = HEALTHY
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, target_port: int, *, hosts: Sequence[str] = ("127.0.0.1",), source: str = "127.0.0.1"
    ) -> AsyncIterator["FaultProxy"]:
        """Listen during the block. A server sees connections from the address `source` of the loopback.

        Each connection goes to the next of `hosts`, as to the endpoints of a Service; none is left out.
        """
        proxy = cls(allocate_port(), target_port, hosts, source)
        server = await asyncio.start_server(proxy._accept, "127.0.0.1", proxy.port)
        try:
            yield proxy
        finally:
            server.close()
            proxy.set_state(CUT)
            for task in proxy._connections:
                task.cancel()
            await asyncio.gather(*proxy._connections, return_exceptions=True)

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def set_state(self, state: LinkState) -> None:
        """Apply the state to open and new connections. Blocked bytes continue when nothing blocks them."""
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()
        if state.is_cut:
            for writer in self._writers:
                writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._state.is_cut or len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._wait_while_blocked("to-server")  # a lost network carries no handshake either
            far_reader, far_writer = await asyncio.open_connection(
                next(self._hosts), self._target_port, local_addr=(self._source, 0)
            )
        except OSError:  # the server is down
            self._close(writer)
            return
        except asyncio.CancelledError:
            self._close(writer)
            raise
        self._writers.add(far_writer)
        try:
            if not self._state.is_cut:
                await self._carry_both((reader, writer), (far_reader, far_writer))
        finally:
            self._close(writer)
            self._close(far_writer)

    async def _carry_both(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        to_server = asyncio.create_task(self._carry(near[0], far[1], "to-server"))
        to_client = asyncio.create_task(self._carry(far[0], near[1], "to-client"))
        try:
            await asyncio.gather(to_server, to_client)
        except OSError:  # one side has reset its connection: the other one ends too
            pass
        finally:
            to_server.cancel()
            to_client.cancel()
            await asyncio.gather(to_server, to_client, return_exceptions=True)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        while True:
            rate = self._state.bytes_per_second
            size = max(1, int(rate / _SLICES_PER_SECOND)) if rate else _CHUNK_BYTES
            data = await reader.read(min(size, _CHUNK_BYTES))
            await self._wait_while_blocked(direction)
            await asyncio.sleep(self._state.delay_seconds + (len(data) / rate if rate else 0.0))
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async def _wait_while_blocked(self, direction: Direction) -> None:
        while direction in self._state.blocked:
            await self._changed.wait()

    def _close(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.close()
