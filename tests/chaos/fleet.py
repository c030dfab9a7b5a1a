"""The machines of a run, and the list of members that discovery reports."""

import asyncio

import msgspec

from libs.testbed.machine_fleet import MachineFleet, Member, SimMachineFacts
from tests.chaos.workload import CONTROL_PLANE


class Fleet:
    """Starts and stops machines. The control plane machine knows all that have started and not left."""

    def __init__(self, machines: MachineFleet) -> None:
        self._machines = machines
        self._running: dict[str, SimMachineFacts] = {}
        self._members: set[str] = set()
        self._lock = asyncio.Lock()  # workload and faults change machines at the same time

    def is_running(self, name: str) -> bool:
        """Whether the machine runs."""
        return name in self._running

    def get(self, name: str) -> SimMachineFacts:
        """The facts of a running machine. Raises KeyError."""
        return self._running[name]

    async def start(self, machine: SimMachineFacts) -> None:
        """Start the machine, or replace its facts; it takes over addresses of others."""
        async with self._lock:
            self._running[machine.name] = machine
            self._members.add(machine.name)
            await self._put(machine)

    async def silence(self, name: str) -> None:
        """Stop a machine that discovery still knows."""
        async with self._lock:
            self._running.pop(name, None)
            await self._machines.delete_machines(name)

    async def remove(self, name: str) -> None:
        """Stop a machine for good, or until it starts again: discovery forgets it."""
        async with self._lock:
            self._members.discard(name)
            if self._running.pop(name, None):
                await self._machines.delete_machines(name)
            await self._put(self._running[CONTROL_PLANE])

    async def run_unknown(self, machine: SimMachineFacts) -> None:
        """Start a machine that is no member of this cluster."""
        async with self._lock:
            await self._machines.put_machines(machine)

    async def stop_unknown(self, machine: SimMachineFacts, original: str) -> None:
        """Stop it, and give its address back to the original machine if that still runs."""
        async with self._lock:
            await self._machines.delete_machines(machine.id)
            if original in self._running:
                await self._put(self._running[original])

    async def _put(self, machine: SimMachineFacts) -> None:
        """Put the machine, and the control plane machine with the present members once that runs."""
        changed = {machine.id: machine}
        if CONTROL_PLANE in self._running:
            members = tuple(Member(name=name) for name in sorted(self._members))
            head = msgspec.structs.replace(self._running[CONTROL_PLANE], members=members)
            self._running[CONTROL_PLANE] = changed[CONTROL_PLANE] = head
        await self._machines.put_machines(*changed.values())
