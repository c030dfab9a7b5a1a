"""A nats-server with exactly the configuration of the bootstrap, and the key of each user."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats

from libs.common.bus.nats.nats_access import NatsAccess
from libs.testbed.child_process import ChildProcess
from libs.testbed.nats_installation import PREFIX, NatsKeys, start_bootstrap
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from tests.bus_actors import wait_until


class BootstrapInstallation:
    """The server, the bootstrap's files beside it, and the folder with its keys."""

    def __init__(self, server: NatsServer, flags: Sequence[str] = ()) -> None:
        """`flags` are the bootstrap's own."""
        self._flags = flags
        self.server = server
        self.out = server.run_dir
        self.keys = server.run_dir / "keys"
        self._nats_keys = NatsKeys(self.keys)
        self.health_port = allocate_port()

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"tls://127.0.0.1:{self.server.port}"

    @property
    def ca_file(self) -> Path:
        """The CA file for clients, as in the ConfigMap."""
        return self._nats_keys.ca_file

    async def publish_as(self, user: str, messages: Mapping[str, bytes]) -> None:
        """Publish bytes by subject with that user's key, which may not receive acknowledgements."""
        access = self.nats_access(user)
        client = await nats.connect(
            self.url, nkeys_seed_str=access.read_seed(), tls=access.tls_context(), allow_reconnect=False
        )
        try:
            for subject, payload in messages.items():
                await client.publish(subject, payload)
                await client.flush()
        finally:
            await client.close()

    def folder(self, name: str) -> Path:
        """The folder that replaces a Secret."""
        return self._nats_keys.folder(name)

    def seed_file(self, user: str) -> Path:
        """A user's key; the bootstrap's own is not shared."""
        return self.out / "system.nk" if user == "system" else self._nats_keys.seed_file(user)

    def bus_options(self, user: str) -> dict[str, Any]:
        """The options of `connect_bus` for that user."""
        return {
            "servers": (self.url,),
            "nkey_seed_file": self.seed_file(user),
            "tls_ca_file": self.ca_file,
        }

    def nats_access(self, user: str) -> NatsAccess:
        """The same for a connection alone."""
        return NatsAccess(
            servers=(self.url,),
            service=user,
            nkey_seed_file=self.seed_file(user),
            tls_ca_file=self.ca_file,
        )

    def nats_flags(self, user: str) -> list[str]:
        """The NATS flags of a process of that service, without the address."""
        return [f"--nats-nkey-file={self.seed_file(user)}", f"--nats-ca-file={self.ca_file}"]

    def start_bootstrap_process(self, *more: str) -> ChildProcess:
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
    async def run_sidecar(self, *more: str) -> AsyncIterator[ChildProcess]:
        """The sidecar, once it has looked; ended in order."""
        health = ["--secure-serving=false", "--bind-address=127.0.0.1", f"--secure-port={self.health_port}"]
        child = self.start_bootstrap_process("--keep", "--check-interval=100ms", *health, *more)

        def has_read() -> bool:
            assert child.is_running, child.tail(50)
            return "server configuration reloaded" in child.log.read_text()

        try:
            await wait_until(has_read, "the server has read the files")
            yield child
        finally:
            await child.stop()


@asynccontextmanager
async def install_bootstrap(
    run_dir: Path, *, flags: Sequence[str] = ()
) -> AsyncIterator[BootstrapInstallation]:
    """Made once, as by the init container; then the server starts on it. `flags` are the bootstrap's."""
    made = BootstrapInstallation(NatsServer(run_dir), flags)
    init = made.start_bootstrap_process()
    assert await init.wait() == 0, init.tail(50)
    try:
        await made.server.restart()
        yield made
    finally:
        await made.server.kill()
