"""The client of the Talos machines that `control_plane/machines`, or `sim_machines`, serves."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from libs.testbed.children import Child, free_port
from libs.testbed.control_plane.build import MACHINES, built
from libs.testbed.conversation import Conversation, Reply
from libs.testbed.machine_facts import (
    Address,
    Extension,
    Machine,
    Member,
    MemoryModule,
    Platform,
    Processor,
    Route,
    SystemInformation,
    a_machine,
    member_of,
)
from libs.testbed.talos_pki import TalosPki, write_private

__all__ = [
    "Address",
    "Call",
    "Extension",
    "Machine",
    "Machines",
    "Member",
    "MemoryModule",
    "Platform",
    "Processor",
    "Route",
    "SystemInformation",
    "a_machine",
    "member_of",
]


class Call(NamedTuple):
    """What is counted together."""

    node: str  # the value of the `node` header, "" without one
    method: str  # Get, List, Watch or Version
    type: str  # the resource type, "" for Version


class Machines:
    """A process that is any number of Talos machines behind one or more endpoints."""

    def __init__(self, child: Child, pki: TalosPki, run_dir: Path, ports: Sequence[int]) -> None:
        self.child = child
        self.pki = pki
        self.endpoints = tuple(f"127.0.0.1:{port}" for port in ports)
        self._run_dir = run_dir
        self._put: dict[str, Machine] = {}
        self._conversation = Conversation(child, Reply)

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, run_dir: Path, *, endpoints: int = 1) -> AsyncIterator[Machines]:
        """Start the process with its certificates in `run_dir`. It ends with the context, and with us."""
        program = await built(MACHINES)
        apid = {"GRPC_ENFORCE_ALPN_ENABLED": "false"}  # as apid runs
        async with cls.served_by([program], run_dir, endpoints=endpoints, env=apid) as machines:
            yield machines

    @classmethod
    @contextlib.asynccontextmanager
    async def served_by(
        cls,
        program: Sequence[str | Path],
        run_dir: Path,
        *,
        endpoints: int = 1,
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Machines]:
        """Start any program that takes the flags and the commands of `control_plane/machines`."""
        pki = TalosPki(run_dir / "pki", ["127.0.0.1", "localhost"])
        ports = [free_port() for _ in range(endpoints)]
        argv = [*program, "-pki", pki.directory, "-listen", ",".join(map(str, ports))]
        child = Child.start("machines", argv, run_dir, env=env, pipes=True)
        machines = cls(child, pki, run_dir, ports)
        try:
            await machines._conversation.begin()
            yield machines
        finally:
            await machines._conversation.end()

    def talosconfig(
        self,
        path: Path | None = None,
        *,
        endpoints: Sequence[str] | None = None,
        roles: Sequence[str] = ("os:reader",),
        lifetime: timedelta = timedelta(hours=6),
        issued_at: datetime | None = None,
    ) -> Path:
        """Write a talosconfig with a new client certificate; `issued_at` in the past gives an expired one."""
        path = path or self._run_dir / "talosconfig"
        text = self.pki.talosconfig(
            endpoints or self.endpoints, roles=roles, lifetime=lifetime, issued_at=issued_at
        )
        write_private(path, text.encode())
        return path

    def machine(self, machine_id: str) -> Machine:
        """What was put last under this id."""
        return self._put[machine_id]

    async def put(self, *machines: Machine) -> None:
        """Create or replace machines. Watches fire for the resources that differ, and for no other."""
        await self._conversation.ask("put", machines=list(machines))
        self._put.update((machine.id, machine) for machine in machines)

    async def change(self, machine_id: str, **fields: Any) -> Machine:
        """Replace some fields of a machine and put it."""
        machine = msgspec.structs.replace(self._put[machine_id], **fields)
        await self.put(machine)
        return machine

    async def delete(self, *machine_ids: str) -> None:
        """Machines that are gone: their streams break, and nobody answers at their addresses."""
        await self._conversation.ask("delete", names=list(machine_ids))
        for machine_id in machine_ids:
            del self._put[machine_id]

    async def fault(
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
        """Set everything that is wrong with a machine; without any argument it is healthy again.

        A machine that hangs answers, and sends its watch events, once it is healed. `not_found` names types
        whose resources do not exist meanwhile: watches see them destroyed, and created when they are back.
        `unsupported` names types that this Talos does not know, `forbidden` ones that our role may not read,
        and questions about `slow` ones are answered once the machine is healed.
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
        await self._conversation.ask("fault", names=[machine_id], faults=faults)

    async def mute_watches(self, machine_id: str) -> None:
        """Leave the watches that are open now open for ever, silent, as if the connection had died."""
        await self._conversation.ask("mute", names=[machine_id])

    async def cut(self, endpoint: int) -> None:
        """Close an endpoint and reset every connection through it."""
        await self._conversation.ask("cut", endpoint=endpoint)

    async def restore(self, endpoint: int) -> None:
        """Open a cut endpoint again, on the same port."""
        await self._conversation.ask("restore", endpoint=endpoint)

    async def calls(self) -> Counter[Call]:
        """How often what was called since the start or the last reset; calls that failed are among them."""
        answer = await self._conversation.ask("calls")
        return Counter({Call(each.node, each.method, each.type): each.count for each in answer.calls})

    async def reset_calls(self) -> None:
        """Count from zero."""
        await self._conversation.ask("reset_calls")
