"""The real nats-server, from its wheel, with JetStream on a file store."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sysconfig
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp

from libs.testbed.child_process import HANG_SECONDS, ChildProcess, wait_until
from libs.testbed.ports import allocate_port

_MONITORING_TIMEOUT = aiohttp.ClientTimeout(total=HANG_SECONDS)


class NatsServer:
    """One server; its address and its store stay the same over restarts."""

    def __init__(
        self,
        run_dir: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        store: Path | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """`host` is an address of the loopback; `flags` are added to the command line.

        `store` is the directory of its streams, by default one in `run_dir`.
        """
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self.store = store or run_dir / "jetstream"
        self.host = host
        self.port = port or allocate_port()
        self.monitoring_port = allocate_port()
        self.url = f"nats://{host}:{self.port}"
        self.child: ChildProcess
        self._flags = flags
        self.configure("")

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, *, store: Path | None = None) -> AsyncIterator[NatsServer]:
        """Run a server in `run_dir`, ready for connections."""
        server = cls(run_dir, store=store)
        try:
            await server.restart()
            yield server
        finally:
            await server.kill()

    def configure(self, config: str) -> None:
        """Write the configuration file with this addition; it takes effect at the next start."""
        own = f'jetstream {{ store_dir: "{self.store}" }}\nhttp: "{self.host}:{self.monitoring_port}"\n'
        (self.run_dir / "nats.conf").write_text(own + config)

    async def kill(self) -> None:
        """Kill the server, as in a crash. No effect if it does not run."""
        if hasattr(self, "child"):
            await self.child.kill()

    async def restart(self) -> None:
        """Start the server on its existing store; a running one is killed first."""
        await self.kill()
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        if not program.exists():
            raise FileNotFoundError(f"{program} is missing, though the lock file has it: make clean env")
        argv = [str(program), "-a", self.host, "-p", str(self.port), "-c", "nats.conf", *self._flags]
        self.child = ChildProcess.start("nats-server", argv, self.run_dir)
        await wait_until(self._is_ready, self.child, what="ready", every_seconds=0.003)

    async def wipe(self) -> None:
        """Lose all data: kill, delete the store, start again on the same port."""
        await self.kill()
        shutil.rmtree(self.store, ignore_errors=True)
        await self.restart()

    async def count_kept(self) -> dict[str, int]:
        """Return the numbers of connections, streams, consumers and subjects that the server keeps."""
        base = f"http://{self.host}:{self.monitoring_port}"
        async with aiohttp.ClientSession(timeout=_MONITORING_TIMEOUT, raise_for_status=True) as session:
            async with session.get(f"{base}/jsz?streams=true&consumers=true") as answer:
                accounts = (await answer.json()).get("account_details", [])
            async with session.get(f"{base}/varz") as answer:
                connections = (await answer.json())["connections"]
        streams = [stream for account in accounts for stream in account.get("stream_detail", [])]
        return {
            "NATS connections": connections,
            "NATS streams": len(streams),
            "NATS consumers": sum(stream["state"]["consumer_count"] for stream in streams),
            "NATS subjects": sum(stream["state"].get("num_subjects", 0) for stream in streams),
        }

    async def _is_ready(self) -> bool:
        writer = None
        try:
            async with asyncio.timeout(HANG_SECONDS):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                greeting = await reader.readline()
        except (OSError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.close()
        return greeting.startswith(b"INFO")
