"""The client of simulated Talos machines: in Go, alone or behind an apid each, or in Python."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from libs.testbed.child_process import ChildProcess
from libs.testbed.command_channel import CommandChannel, open_channel
from libs.testbed.control_plane.build import MACHINES, TALOS_FRONT, build_program
from libs.testbed.machine_facts import (
    Address,
    Extension,
    Member,
    MemoryModule,
    Processor,
    Route,
    SimMachineFacts,
    SystemInformation,
    make_machine,
    make_member,
)
from libs.testbed.namespaces import find_namespace
from libs.testbed.pki import TalosPki, write_private
from libs.testbed.ports import allocate_port

__all__ = [
    "Address",
    "CallKey",
    "Extension",
    "MachineFleet",
    "Member",
    "MemoryModule",
    "Processor",
    "Route",
    "SimMachineFacts",
    "SystemInformation",
    "make_machine",
    "make_member",
]


_NAMES: Final = ("127.0.0.1", "localhost")  # of the endpoints


class CallKey(NamedTuple):
    """The key of a call count."""

    node: str  # the value of the `node` header, "" without one
    method: str  # Get, List, Watch or Version
    type: str  # the resource type, "" for Version


class MachineFleet:
    """A process that simulates any number of Talos machines behind one or more endpoints."""

    def __init__(
        self,
        child: ChildProcess,
        channel: CommandChannel,
        pki: TalosPki,
        run_dir: Path,
        ports: Sequence[int],
    ) -> None:
        self.child = child
        self.pki = pki
        self.endpoints = tuple(f"127.0.0.1:{port}" for port in ports)
        self._run_dir = run_dir
        self._put: dict[str, SimMachineFacts] = {}
        self._channel = channel

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, *, endpoints: int = 1) -> AsyncIterator[MachineFleet]:
        """Start the process with its certificates in `run_dir`; it ends with the context or this process."""
        program = await build_program(MACHINES)
        apid = {"GRPC_ENFORCE_ALPN_ENABLED": "false"}  # as apid runs
        async with cls._start_program([program], run_dir, endpoints=endpoints, env=apid) as machines:
            yield machines

    @classmethod
    @contextlib.asynccontextmanager
    async def start_simulated(cls, run_dir: Path) -> AsyncIterator[MachineFleet]:
        """Start `sim_machines`, which needs no Go, as `start` does."""
        program = [sys.executable, "-m", "libs.testbed.sim_machines"]
        async with cls._start_program(program, run_dir) as machines:
            yield machines

    @classmethod
    @contextlib.asynccontextmanager
    async def start_behind_apid(cls, run_dir: Path) -> AsyncIterator[MachineFleet]:
        """Start machines behind Talos's own API server (`control_plane/talos_front`), as `start` does.

        Each machine has an apid, in a network namespace. The endpoint on the loopback leads to the first
        control plane machine. Without one it leads to a gateway, which only forwards calls.

        Raises NamespaceError, or BuildError if the program cannot be built.
        """
        namespace = await find_namespace("net", "the real Talos API")  # before the build, which takes minutes
        program = await build_program(TALOS_FRONT)
        pki = TalosPki(run_dir / "pki", _NAMES, writes_ca_key=True)
        port = allocate_port()
        # Bind the endpoint here: the program is in another network namespace.
        with socket.create_server(("127.0.0.1", port)) as endpoint:
            descriptor = endpoint.fileno()
            argv: list[str | Path] = [*namespace, program, "-pki", pki.directory.resolve()]
            argv += ["-listen-fds", str(descriptor)]
            child = ChildProcess.start("talos_front", argv, run_dir, pipes=True, inherited=[descriptor])
        async with open_channel(child) as channel:
            yield cls(child, channel, pki, run_dir, [port])

    @classmethod
    @contextlib.asynccontextmanager
    async def _start_program(
        cls,
        program: Sequence[str | Path],
        run_dir: Path,
        *,
        endpoints: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[MachineFleet]:
        """Start a program with the flags and the commands of `control_plane/machines`."""
        pki = TalosPki(run_dir / "pki", _NAMES)
        ports = [allocate_port() for _ in range(endpoints)]
        argv = [*program, "-pki", pki.directory, "-listen", ",".join(map(str, ports))]
        child = ChildProcess.start("machines", argv, run_dir, env=env, pipes=True)
        async with open_channel(child) as channel:
            yield cls(child, channel, pki, run_dir, ports)

    def write_talosconfig(
        self,
        path: Path | None = None,
        *,
        endpoints: Sequence[str] | None = None,
        roles: Sequence[str] = ("os:reader",),
        lifetime: timedelta = timedelta(hours=6),
        issued_at: datetime | None = None,
    ) -> Path:
        """Write a talosconfig with a new client certificate; `issued_at` in the past makes it expired."""
        path = path or self._run_dir / "talosconfig"
        text = self.pki.talosconfig(
            endpoints or self.endpoints, roles=roles, lifetime=lifetime, issued_at=issued_at
        )
        write_private(path, text.encode())
        return path

    def get_machine(self, machine_id: str) -> SimMachineFacts:
        """Return the facts that were last put under this ID."""
        return self._put[machine_id]

    async def put_machines(self, *machines: SimMachineFacts) -> None:
        """Create or replace machines. Watches fire only for the resources that differ."""
        await self._channel.send_command("put", machines=list(machines))
        self._put.update((machine.id, machine) for machine in machines)

    async def change_machine(self, machine_id: str, **fields: Any) -> SimMachineFacts:
        """Replace some fields of a machine and put it."""
        machine = msgspec.structs.replace(self._put[machine_id], **fields)
        await self.put_machines(machine)
        return machine

    async def delete_machines(self, *machine_ids: str) -> None:
        """Delete machines: their streams break, and their addresses do not answer."""
        await self._channel.send_command("delete", names=list(machine_ids))
        for machine_id in machine_ids:
            del self._put[machine_id]

    async def set_faults(
        self,
        machine_id: str,
        *,
        unavailable: bool = False,
        hang: bool = False,
        delay_ms: int = 0,
        permission_denied: bool = False,
        not_found: Sequence[str] = (),
        unsupported: Sequence[str] = (),
        forbidden: Sequence[str] = (),
        slow: Sequence[str] = (),
    ) -> None:
        """Set all faults of a machine; without arguments it is healthy again.

        A machine that hangs answers, and sends its watch events, once it is healthy again. `not_found` names
        types whose resources do not exist: watches see them destroyed, and created when they are back.
        `unsupported` names types that this Talos does not know, `forbidden` those that our role may not read.
        Queries of `slow` types are answered once the machine is healthy again.
        """
        faults = {
            "unavailable": unavailable,
            "hang": hang,
            "delay_ms": delay_ms,
            "permission_denied": permission_denied,
            "not_found": list(not_found),
            "unsupported": list(unsupported),
            "forbidden": list(forbidden),
            "slow": list(slow),
        }
        await self._channel.send_command("fault", names=[machine_id], faults=faults)

    async def mute_watches(self, machine_id: str) -> None:
        """Keep the open watches open without any event, as if the connection had died."""
        await self._channel.send_command("mute", names=[machine_id])

    async def cut_endpoint(self, endpoint: int) -> None:
        """Close an endpoint and reset every connection through it."""
        await self._channel.send_command("cut", endpoint=endpoint)

    async def restore_endpoint(self, endpoint: int) -> None:
        """Open a cut endpoint again, on the same port."""
        await self._channel.send_command("restore", endpoint=endpoint)

    async def count_calls(self) -> Counter[CallKey]:
        """Return the number of calls since the start or the last reset, including failed ones."""
        answer = await self._channel.send_command("calls")
        return Counter({CallKey(each.node, each.method, each.type): each.count for each in answer.calls})

    async def reset_calls(self) -> None:
        """Reset the counts to zero."""
        await self._channel.send_command("reset_calls")

    # ---- only behind an apid

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
