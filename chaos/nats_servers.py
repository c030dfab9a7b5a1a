"""The nats-servers of a run: one without keys, or three with the keys of the bootstrap."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import nats
import nats.errors

from libs.common.contract.services import READER_USER
from libs.common.contract.subjects import STREAM
from libs.testbed.nats_installation import NatsInstallation, NatsKeys
from libs.testbed.nats_server import NatsServer

_REPLY_SECONDS: Final = 5.0


class NoLeader(TimeoutError):
    """The stream has no leader, or no server answers."""


class NatsServers(NamedTuple):
    """Equal servers on one port; `keys` if they require a key and TLS."""

    servers: Sequence[NatsServer]
    keys: NatsKeys | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, *, is_cluster: bool) -> AsyncIterator[NatsServers]:
        """Start one server, or a cluster of three."""
        if is_cluster:
            async with NatsInstallation.start(run_dir) as installation:
                yield cls(installation.servers, installation.keys)
        else:
            async with NatsServer.start(run_dir) as server:
                yield cls([server])

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
            yield from server.store.rglob("*.blk")

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
            server.pause()

    def resume(self) -> None:
        """Resume paused servers."""
        for server in self.servers:
            server.resume()

    async def call_jetstream(self, what: str) -> dict[str, Any]:
        """Send a request of the JetStream API as the read-only user, and return the response.

        Raises nats.errors.Error or OSError.
        """
        urls = [f"{self.scheme}://{server.host}:{server.port}" for server in self.servers]
        identity: dict[str, Any] = {}
        if self.keys is not None:
            access = self.keys.get_access(READER_USER, urls)
            identity = {"nkeys_seed_str": access.read_seed(), "tls": access.tls_context()}
        client = await nats.connect(
            urls,
            connect_timeout=int(_REPLY_SECONDS),
            allow_reconnect=False,
            inbox_prefix=f"_INBOX_{READER_USER}",
            **identity,
        )
        try:
            reply = await client.request(f"$JS.API.{what}", timeout=_REPLY_SECONDS)
        finally:
            await client.close()
        response: dict[str, Any] = msgspec.json.decode(reply.data)
        return response

    async def find_leader(self) -> NatsServer:
        """The server that leads the stream. Raises NoLeader."""
        try:
            response = await self.call_jetstream(f"STREAM.INFO.{STREAM}")
        except (nats.errors.Error, OSError) as error:
            raise NoLeader(f"{STREAM}: {error!r}") from error
        leader = response.get("cluster", {}).get("leader")
        found = [server for server in self.servers if server.run_dir.name == leader]
        if not found:
            raise NoLeader(f"{STREAM}: the leader is {leader!r}: {response.get('error')}")
        return found[0]
