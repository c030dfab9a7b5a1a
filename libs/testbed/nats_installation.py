"""Three nats-servers as the chart installs them: the bootstrap's keys, certificates and permissions."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.bus.nats.nats_access import NatsAccess
from libs.testbed.child_process import ChildProcess
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from libs.testbed.service_start import start_program

PREFIX: Final = "ccm"  # the Secrets begin with it
NATS_REPLICAS: Final = 3
_SIDECAR_FLAGS: Final = ("--keep", "--check-interval=500ms", "--secure-port=0")
_CERTIFICATE_SECONDS: Final = 45  # it is renewed when a third is left
_STORE_BYTES: Final = 2**26  # the least that the bootstrap accepts


class BootstrapError(RuntimeError):
    """The bootstrap failed; the message ends with the last lines of its log."""


class NatsKeys(NamedTuple):
    """The directory with the keys of all users, one folder per Secret."""

    directory: Path

    @property
    def ca_file(self) -> Path:
        """The CA file for clients, as in the ConfigMap."""
        return self.directory / "ca.crt"

    def folder(self, name: str) -> Path:
        """The folder that replaces a Secret."""
        return self.directory / f"{PREFIX}-nats-{name}"

    def seed_file(self, user: str) -> Path:
        """The key of a user."""
        return self.folder(user) / "seed.nk"

    def replace(self, user: str) -> None:
        """Remove the key of a user; the sidecars create another one."""
        removed = self.directory / f".removed-{user}"
        self.folder(user).rename(removed)  # at once: no process may read half a Secret
        shutil.rmtree(removed)

    def get_access(self, user: str, servers: Sequence[str]) -> NatsAccess:
        """The identity of that user for a connection to one of `servers`."""
        return NatsAccess(
            servers=tuple(servers),
            service=user,
            nkey_seed_file=self.seed_file(user),
            tls_ca_file=self.ca_file,
        )

    def list_flags(self, user: str) -> list[str]:
        """The NATS flags of a process of that service, without the address."""
        return [f"--nats-nkey-file={self.seed_file(user)}", f"--nats-ca-file={self.ca_file}"]


class NatsInstallation:
    """A cluster of servers on addresses of the loopback, all on one port, and the keys of its users."""

    def __init__(self, servers: Sequence[NatsServer], keys: NatsKeys, route_port: int) -> None:
        self.servers = servers
        self.keys = keys
        self._route_port = route_port

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, stores: Sequence[Path]) -> AsyncIterator[NatsInstallation]:
        """Write the files of each server, as its init container does; start the servers and their sidecars.

        The sidecars renew a server's certificate every 30 s, and replace a key whose folder is removed.

        `stores` has the directory of each server for its streams.
        """
        port, route_port = allocate_port(), allocate_port()
        hosts = [f"127.0.1.{number}" for number in range(1, NATS_REPLICAS + 1)]
        # The bootstrap writes names of a headless Service, which do not exist here.
        routes = ",".join(f"tls://{host}:{route_port}" for host in hosts)
        servers = [
            NatsServer(
                run_dir / f"nats-{number}", host=host, port=port, store=store, flags=("--routes", routes)
            )
            for number, (host, store) in enumerate(zip(hosts, stores, strict=True))
        ]
        installation = cls(servers, NatsKeys(run_dir / "keys"), route_port)
        try:
            await asyncio.gather(*(installation._initialize(server) for server in servers))
            await asyncio.gather(*(server.restart() for server in servers))
            sidecars = [installation.start_bootstrap(server, *_SIDECAR_FLAGS) for server in servers]
            try:
                yield installation
            finally:
                await asyncio.gather(*(sidecar.stop() for sidecar in sidecars))
        finally:
            await asyncio.gather(*(server.kill() for server in servers))

    def start_bootstrap(self, server: NatsServer, *flags: str) -> ChildProcess:
        """Start the bootstrap of that server; its log is `bootstrap.log` of the server's directory."""
        return start_bootstrap(
            server.run_dir,
            [
                f"--prefix={PREFIX}",
                f"--out={server.run_dir}",
                f"--files={self.keys.directory}",
                f"--store-dir={server.store}",
                f"--store-bytes={_STORE_BYTES}",
                f"--certificate-lifetime={_CERTIFICATE_SECONDS}s",
                f"--server-name={server.run_dir.name}",
                f"--replicas={NATS_REPLICAS}",
                f"--listen-address={server.host}",
                f"--client-port={server.port}",
                f"--route-port={self._route_port}",
                f"--monitor-port={server.monitoring_port}",
                *flags,
            ],
        )

    async def _initialize(self, server: NatsServer) -> None:
        init = self.start_bootstrap(server)
        if await init.wait() != 0:
            raise BootstrapError(init.tail(50))


def start_bootstrap(run_dir: Path, arguments: Sequence[str]) -> ChildProcess:
    """Start the bootstrap without a cluster of its own; its log is `bootstrap.log` of that directory."""
    clean = {"KUBECONFIG": "", "POD_NAME": ""}
    return start_program("bootstrap", "services.bootstrap", arguments, run_dir, clean)
