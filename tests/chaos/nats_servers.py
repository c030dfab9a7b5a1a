"""The nats-servers of a run: one without keys, or three with the keys of the bootstrap."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from libs.common.bus.nats.connection import Connection
from libs.common.bus.nats.nats_access import NatsAccess
from libs.common.bus.protocol import BusError
from libs.common.contract.services import READER_USER
from libs.common.contract.subjects import STREAM
from libs.testbed.child_process import is_serving, make_directory
from libs.testbed.namespaces import SmallVolume
from libs.testbed.nats_installation import NATS_REPLICAS, NatsInstallation, NatsKeys
from libs.testbed.nats_server import NatsServer

_VOLUME_BYTES: Final = 2**27  # of which a server without a limit of its own uses three quarters
_REPLY_SECONDS: Final = 5.0
_HEALTH_SECONDS: Final = 5.0


class NoLeader(TimeoutError):
    """The stream has no leader, or no server answers."""


class NatsServers(NamedTuple):
    """Equal servers on one port; `keys` if they require a key and TLS, `volumes` if a store can be full."""

    servers: Sequence[NatsServer]
    keys: NatsKeys | None = None
    volumes: Sequence[SmallVolume] = ()

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, *, is_cluster: bool) -> AsyncIterator[NatsServers]:
        """Start one server, or a cluster of three, each with its store on a small volume.

        Raises NamespaceError.
        """
        async with contextlib.AsyncExitStack() as stack:
            volumes = [
                await stack.enter_async_context(
                    SmallVolume.start(make_directory(run_dir / f"volume-{number}"), _VOLUME_BYTES)
                )
                for number in range(NATS_REPLICAS if is_cluster else 1)
            ]
            stores = [volume.path / "jetstream" for volume in volumes]
            if is_cluster:
                installing = NatsInstallation.start(run_dir, stores)
                installation = await stack.enter_async_context(installing)
                yield cls(installation.servers, installation.keys, volumes)
            else:
                server = await stack.enter_async_context(NatsServer.start(run_dir, store=stores[0]))
                yield cls([server], None, volumes)

    @property
    def port(self) -> int:
        """The port of every server."""
        return self.servers[0].port

    @property
    def hosts(self) -> list[str]:
        """The address of each server."""
        return [server.host for server in self.servers]

    @property
    def scheme(self) -> str:
        """The scheme of the URL for clients."""
        return "tls" if self.keys else "nats"

    def list_flags(self, service: str) -> list[str]:
        """The NATS flags of a process of that service, without the address."""
        if self.keys is None:
            return []
        return [*self.keys.list_flags(service), f"--nats-stream-replicas={len(self.servers)}"]

    def list_message_files(self) -> Iterator[Path]:
        """The files of JetStream with messages, also replaced ones."""
        for server in self.servers:
            for folder, _, names in os.walk(server.store):  # continues if a server deletes a folder
                yield from (Path(folder) / name for name in names if name.endswith(".blk"))

    async def kill(self) -> None:
        """Kill all servers."""
        await asyncio.gather(*(server.kill() for server in self.servers))

    async def restart(self) -> None:
        """Start each server that does not run."""
        stopped = [server for server in self.servers if not server.child.is_running]
        await asyncio.gather(*(server.restart() for server in stopped))

    async def wipe(self) -> None:
        """Lose all data of all servers."""
        await self.kill()
        for server in self.servers:
            shutil.rmtree(server.store, ignore_errors=True)
        await self.restart()

    def pause(self) -> None:
        """Pause all servers: connections stay open, without answers."""
        for server in self.servers:
            server.child.pause()

    def resume(self) -> None:
        """Resume paused servers."""
        for server in self.servers:
            server.child.resume()

    def fill(self) -> None:
        """Leave no room on any volume: each write of a server fails."""
        assert self.volumes, "`start` gives each server one"
        for volume in self.volumes:
            volume.fill()

    def make_room(self) -> None:
        """End the effect of `fill`; a server may have disabled its stream until it is restarted."""
        for volume in self.volumes:
            volume.make_room()

    async def restart_unhealthy(self) -> None:
        """Restart each server that has ended, is silent or reports a failure, as the chart's probe does.

        In a cluster `/healthz` also reports failures of the other servers, so JetStream alone counts.
        """
        what = "/healthz?js-enabled-only=true" if len(self.servers) > 1 else "/healthz"
        for server in self.servers:
            url = f"http://{server.host}:{server.monitoring_port}{what}"
            if not await is_serving(url, seconds=_HEALTH_SECONDS):
                await server.restart()

    async def call_jetstream(self, what: str) -> dict[str, Any]:
        """Send a request of the JetStream API as the read-only user, and return the response.

        Raises BusError, also if the response is an error.
        """
        connection = await self._connect_reader()
        try:
            reply = await connection.request(f"$JS.API.{what}", seconds=_REPLY_SECONDS)
        finally:
            await connection.abort("the response was received")
        response: dict[str, Any] = msgspec.json.decode(reply.data)
        if error := response.get("error"):
            raise BusError(f"{what}: {error}")
        return response

    async def _connect_reader(self) -> Connection:
        """Connect to the first server that accepts it. Raises BusError."""
        urls = [f"{self.scheme}://{server.host}:{server.port}" for server in self.servers]
        if self.keys is not None:
            access = self.keys.get_access(READER_USER, urls)
        else:
            access = NatsAccess(servers=tuple(urls), service=READER_USER)
        reasons: list[str] = []
        for url in urls:
            try:
                return await Connection.open(access, url, seconds=_REPLY_SECONDS, on_violation=reasons.append)
            except BusError as error:
                reasons.append(str(error))
        raise BusError("; ".join(reasons))

    async def find_leader(self) -> NatsServer:
        """The server that leads the stream. Raises NoLeader."""
        try:
            response = await self.call_jetstream(f"STREAM.INFO.{STREAM}")
        except BusError as error:
            raise NoLeader(f"{STREAM}: {error!r}") from error
        leader = response.get("cluster", {}).get("leader")
        found = [server for server in self.servers if server.run_dir.name == leader]
        if not found:
            raise NoLeader(f"{STREAM}: the leader is {leader!r}")
        return found[0]
