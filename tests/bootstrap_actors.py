"""A nats-server with exactly the configuration that the bootstrap makes, and everybody's key to it."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.common.nats_bus.nats_access import NatsAccess
from libs.testbed.children import Child, free_port
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import eventually

ROOT = Path(__file__).parents[1]
PREFIX = "ccm"


class Bootstrapped:
    """The server, the bootstrap's files beside it, and the folder in which it keeps keys."""

    def __init__(self, server: NatsServer, flags: Sequence[str] = ()) -> None:
        """`flags` are the bootstrap's own."""
        self._flags = flags
        self.server = server
        self.out = server.run_dir
        self.keys = server.run_dir / "keys"
        self.health_port = free_port()

    @property
    def url(self) -> str:
        """Where clients go."""
        return f"tls://127.0.0.1:{self.server.port}"

    @property
    def ca_file(self) -> Path:
        """What clients trust, as the ConfigMap has it."""
        return self.keys / "ca.crt"

    def folder(self, name: str) -> Path:
        """What stands for a Secret."""
        return self.keys / f"{PREFIX}-nats-{name}"

    def seed_file(self, user: str) -> Path:
        """A user's key; the bootstrap's own is not shared."""
        return self.out / "system.nk" if user == "system" else self.folder(user) / "seed.nk"

    def options(self, user: str) -> dict[str, Any]:
        """What `connect_bus` is to be told for that user."""
        return {
            "servers": (self.url,),
            "nkey_seed_file": self.seed_file(user),
            "tls_ca_file": self.ca_file,
        }

    def access(self, user: str) -> NatsAccess:
        """The same for a connection alone."""
        return NatsAccess(
            servers=(self.url,),
            service=user,
            nkey_seed_file=self.seed_file(user),
            tls_ca_file=self.ca_file,
        )

    def flags(self, user: str) -> list[str]:
        """What a process of that service is told of NATS, besides the address."""
        return [f"--nats-nkey-file={self.seed_file(user)}", f"--nats-ca-file={self.ca_file}"]

    def bootstrap(self, *more: str) -> Child:
        """`python -m services.bootstrap`, started."""
        return start_bootstrap(
            self.out,
            [
                f"--prefix={PREFIX}",
                f"--out={self.out}",
                f"--files={self.keys}",
                f"--store-dir={self.server.store}",
                f"--client-port={self.server.port}",
                "--listen-address=127.0.0.1",
                "--monitor-port=0",
                *self._flags,
                *more,
            ],
        )

    @asynccontextmanager
    async def kept(self, *more: str) -> AsyncIterator[Child]:
        """The sidecar, once it has looked; ended in order."""
        health = ["--secure-serving=false", "--bind-address=127.0.0.1", f"--secure-port={self.health_port}"]
        child = self.bootstrap("--keep", "--look-every=100ms", *health, *more)

        def has_read() -> bool:
            assert child.running, child.tail(50)
            return "the server has read" in child.log.read_text()

        try:
            await eventually(has_read, "the server has read the files")
            yield child
        finally:
            await child.stop()


def start_bootstrap(run_dir: Path, arguments: Sequence[str]) -> Child:
    """Its log is `bootstrap.log` of that directory."""
    clean = {"KUBECONFIG": "", "POD_NAME": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "services.bootstrap", *arguments]
    return Child.start("bootstrap", command, run_dir, env={**os.environ, **clean})


@asynccontextmanager
async def bootstrapped(run_dir: Path, *, flags: Sequence[str] = ()) -> AsyncIterator[Bootstrapped]:
    """Made once, as by the init container; then the server starts on it. `flags` are the bootstrap's."""
    made = Bootstrapped(NatsServer(run_dir, ""), flags)
    init = made.bootstrap()
    assert await init.wait() == 0, init.tail(50)
    try:
        await made.server.restart()
        yield made
    finally:
        await made.server.kill()
