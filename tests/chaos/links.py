"""The connections of each process to its servers, each through a fault proxy."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from libs.common.contract.services import METADATA
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kube_credentials import build_kubeconfig
from libs.testbed.loopback_site import stop_listening
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.ports import allocate_port

Direction = Literal["to-server", "to-client"]

_CHUNK_BYTES: Final = 2**16
_SLICES_PER_SECOND: Final = 10  # a throttled connection carries this many slices
_MAX_CONNECTIONS: Final = 512
Link = Literal["nats", "api", "talos", "collector"]
PROCESS_LINKS: Final[tuple[Link, ...]] = ("nats", "api", "talos")  # all processes share one to the collector
_LOOPBACK: Final = ("127.0.0.1",)
ACCOUNT_FILE: Final = "kubernetes-token"
TALOSCONFIG: Final = "talosconfig"
_ALL: Final = "all"  # the process of the link to the collector


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
    ) -> AsyncIterator[FaultProxy]:
        """Listen during the block. A server sees connections from the address `source` of the loopback.

        Each connection goes to the next of `hosts`, as to the endpoints of a Service; none is left out.
        """
        proxy = cls(allocate_port(), target_port, hosts, source)
        server = await asyncio.start_server(proxy._accept, "127.0.0.1", proxy.port)
        try:
            yield proxy
        finally:
            await stop_listening(server)
            proxy.set_state(CUT)
            for task in proxy._connections:
                task.cancel()
            await asyncio.gather(*proxy._connections, return_exceptions=True)

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


class LinkTarget(NamedTuple):
    """The server at the far end of a link: one address, or several that take turns."""

    port: int
    hosts: Sequence[str] = _LOOPBACK


class Links(NamedTuple):
    """The fault proxies by link and by the name of the process."""

    proxies: Mapping[Link, Mapping[str, FaultProxy]]

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, names: Sequence[str], targets: Mapping[Link, LinkTarget]) -> AsyncIterator[Links]:
        """Start the proxies of these processes; only those with the Talos credential reach Talos."""
        proxies: dict[Link, dict[str, FaultProxy]] = {link: {} for link in targets}
        async with contextlib.AsyncExitStack() as stack:
            for (number, name), link in itertools.product(enumerate(names, 2), PROCESS_LINKS):
                if link != "talos" or name.startswith((METADATA.service, "all-in-one")):
                    port, hosts = targets[link]
                    proxy = FaultProxy.start(port, hosts=hosts, source=f"127.0.0.{number}")
                    proxies[link][name] = await stack.enter_async_context(proxy)
            collector = FaultProxy.start(targets["collector"].port)
            proxies["collector"][_ALL] = await stack.enter_async_context(collector)
            yield cls(proxies)

    @property
    def collector_port(self) -> int:
        """The port at which all processes reach the collector."""
        return self.proxies["collector"][_ALL].port

    def set_state(self, link: Link, state: LinkState, process: str | None = None) -> None:
        """Set the state of a link of one process, or of all."""
        proxies = self.proxies[link]
        for proxy in [proxies[process]] if process else proxies.values():
            proxy.set_state(state)

    def write_talosconfigs(self, run_dir: Path, machines: MachineFleet) -> None:
        """Write the talosconfig of each process, with a new client certificate."""
        for name, proxy in self.proxies["talos"].items():
            machines.write_talosconfig(run_dir / name / TALOSCONFIG, endpoints=[f"127.0.0.1:{proxy.port}"])


class ProxiedApiServer(NamedTuple):
    """The API server as one process reaches it."""

    control_plane: ControlPlane
    port: int
    directory: Path

    def kubeconfig(self, user: str) -> Path:
        """Write a kubeconfig of that user that leads to the proxy."""
        authority = str(self.control_plane.ca_file)
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": authority}
        identity = {"tokenFile": str(self.directory / ACCOUNT_FILE)}
        path = self.directory / "kubeconfig"
        path.write_bytes(build_kubeconfig(user, cluster, identity))
        return path
