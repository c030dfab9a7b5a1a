"""Simulated machines at run time: resources and open watches of one, and all by ID and address."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.sim_machines.requests import (
    CallRejected,
    StatusCode,
    WatchRequest,
    make_dial_error,
    make_reset_error,
)
from libs.testbed.sim_machines.resource_state import (
    CosiEvent,
    Key,
    StoredResource,
    matches_watch,
    reconcile,
)
from libs.testbed.sim_machines.resources import build_resources


class SimMachine:
    """A machine; each change of its resources goes to the watches that select it."""

    def __init__(self, facts: SimMachineFacts, now: int) -> None:
        self.facts = facts
        self.state: dict[Key, StoredResource] = {}
        self._calls: set[MachineCall] = set()
        self.put(facts, now)

    def put(self, facts: SimMachineFacts, now: int) -> None:
        """Replace the facts."""
        self.state, events = reconcile(self.state, build_resources(facts), now)
        self.facts = facts
        for call in self._calls:
            call.queue_events(events)

    def go_down(self) -> None:
        """Break every open watch."""
        for call in self._calls:
            call.end()

    @contextlib.contextmanager
    def open_call(self, address: str) -> Iterator[MachineCall]:
        """Open a call on this machine."""
        call = MachineCall(self, address)
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)


class MachineCall:
    """One open call."""

    def __init__(self, machine: SimMachine, address: str) -> None:
        self.machine = machine
        self._address = address
        self._watching: WatchRequest | None = None
        self._events: asyncio.Queue[CosiEvent | None] = asyncio.Queue()  # None: the machine is gone

    def watch(self, request: WatchRequest, opening: Sequence[CosiEvent]) -> None:
        """Start to queue the events that the request selects."""
        for event in opening:
            self._events.put_nowait(event)
        self._watching = request

    def queue_events(self, events: Sequence[CosiEvent]) -> None:
        """Queue the events that this call watches."""
        for event in events:
            if self._watching is not None and matches_watch(event, self._watching):
                self._events.put_nowait(event)

    def end(self) -> None:
        """Break the call after the events so far."""
        self._events.put_nowait(None)

    async def next_event(self) -> CosiEvent:
        """Wait for the next event. Raises CallRejected if the machine goes down."""
        event = await self._events.get()
        if event is None:
            raise make_reset_error(self._address)
        return event


class SimFleet:
    """The machines in order of their creation."""

    def __init__(self) -> None:
        self._machines: dict[str, SimMachine] = {}
        self._addresses: dict[str, SimMachine] = {}

    def put(self, facts: SimMachineFacts, now: int) -> None:
        """Create or replace a machine; it takes over addresses of others."""
        machine = self._machines.get(facts.id)
        if machine is None:
            machine = self._machines[facts.id] = SimMachine(facts, now)
        else:
            before = machine.facts
            machine.put(facts, now)
            self._remove_addresses(machine, before)
        self._addresses.update(dict.fromkeys(facts.reachable_at, machine))

    def delete(self, machine_id: str) -> None:
        """Break the machine's calls and remove its addresses. Raises KeyError."""
        machine = self._machines.pop(machine_id)
        machine.go_down()
        self._remove_addresses(machine, machine.facts)

    def find_machine(self, node: str | None) -> SimMachine:
        """Return the machine of a `node` header; without one the first control plane. Raises CallRejected."""
        if node is None:
            for machine in self._machines.values():
                if machine.facts.control_plane:
                    return machine
            raise CallRejected(StatusCode.UNAVAILABLE, "no control plane machine is up")
        if node not in self._addresses:
            raise make_dial_error(node)
        return self._addresses[node]

    def _remove_addresses(self, machine: SimMachine, facts: SimMachineFacts) -> None:
        for address in facts.reachable_at:
            if self._addresses.get(address) is machine:
                del self._addresses[address]
