"""Talos machines behind Talos's own API server, built from its source: `control_plane/talos_front`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from libs.testbed.child_process import ChildProcess
from libs.testbed.command_channel import CommandChannel, Reply, open_channel
from libs.testbed.control_plane.build import TALOS_FRONT, build_program
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.namespaces import find_namespace
from libs.testbed.ports import allocate_port
from libs.testbed.talos_pki import TalosPki


class TalosFront:
    """Machines with an apid each, in a network namespace; clients connect to endpoints on the loopback."""

    def __init__(self, machines: MachineFleet, channel: CommandChannel[Reply]) -> None:
        self.machines = machines
        self._channel = channel

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, *, endpoints: int = 1) -> AsyncIterator[TalosFront]:
        """Start it in `run_dir`; it ends with the context or this process.

        An endpoint leads to the first control plane machine. Without one it leads to a gateway, which only
        forwards calls. Raises NamespaceError, or BuildError if the program cannot be built.
        """
        namespace = await find_namespace("net", "the real Talos API")  # before the build, which takes minutes
        program = await build_program(TALOS_FRONT)
        pki = TalosPki(run_dir / "pki", ["127.0.0.1", "localhost"], writes_ca_key=True)
        ports = [allocate_port() for _ in range(endpoints)]
        with _open_sockets(ports) as sockets:
            descriptors = [each.fileno() for each in sockets]
            argv: list[str | Path] = [*namespace, program, "-pki", pki.directory.resolve()]
            argv += ["-listen-fds", ",".join(map(str, descriptors))]
            child = ChildProcess.start("talos_front", argv, run_dir, pipes=True, inherited=descriptors)
        async with open_channel(child, Reply) as channel:
            yield cls(MachineFleet(child, channel, pki, run_dir, ports), channel)

    async def renew_certificates(self, *machine_ids: str) -> None:
        """Replace the certificates of machines by ones of the same CA, as Talos does every 12 hours."""
        await self._channel.send_command("renew", names=list(machine_ids))

    async def issue_without_addresses(self, *machine_ids: str) -> None:
        """Give machines certificates without their addresses, until their facts are put again."""
        await self._channel.send_command("misname", names=list(machine_ids))

    async def lead_endpoints_to(self, machine_id: str) -> None:
        """Lead new connections to a machine, as a talosconfig does whose endpoint is a worker."""
        await self._channel.send_command("enter", names=[machine_id])

    async def restart_apid(self, *machine_ids: str) -> None:
        """Kill the API servers of machines, start them again, and wait until they serve."""
        await self._channel.send_command("restart", names=list(machine_ids))


@contextlib.asynccontextmanager
async def start_machines(run_dir: Path, *, endpoints: int = 1) -> AsyncIterator[MachineFleet]:
    """Start the machines alone, with the same client as for `control_plane/machines`."""
    async with TalosFront.start(run_dir, endpoints=endpoints) as front:
        yield front.machines


@contextlib.contextmanager
def _open_sockets(ports: Sequence[int]) -> Iterator[list[socket.socket]]:
    """Bind the endpoints here: the program is in another network namespace."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", port))) for port in ports]
