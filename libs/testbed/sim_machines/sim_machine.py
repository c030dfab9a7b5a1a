"""Simulated machines at run time: resources and open watches of one, and all by ID and address."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

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
    list_opening_events,
    matches_watch,
    reconcile,
)
from libs.testbed.sim_machines.resources import build_resources


class SimMachine:
    """A machine; each change of its resources goes to the watches that select it."""

    def __init__(self, facts: SimMachineFacts, now: int) -> None:
        self.facts = facts
        self.state: dict[Key, StoredResource] = {}
        self._watches: set[MachineWatch] = set()
        self.put(facts, now)

    def put(self, facts: SimMachineFacts, now: int) -> None:
        """Replace the facts."""
        self.state, events = reconcile(self.state, build_resources(facts), now)
        self.facts = facts
        for watch in self._watches:
            watch.queue_events(events)

    def go_down(self) -> None:
        """Break every open watch."""
        for watch in self._watches:
            watch.end()

    @contextlib.contextmanager
    def open_watch(self, request: WatchRequest, address: str, now: int) -> Iterator[MachineWatch]:
        """Watch the machine, which was called at this address."""
        watch = MachineWatch(request, address, list_opening_events(self.state, request, now))
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)


class MachineWatch:
    """The events that an open watch has not sent yet."""

    def __init__(self, request: WatchRequest, address: str, opening: Iterable[CosiEvent]) -> None:
        self._request = request
        self._address = address
        self._events: asyncio.Queue[CosiEvent | None] = asyncio.Queue()  # None: the machine is gone
        for event in opening:
            self._events.put_nowait(event)

    def queue_events(self, events: Iterable[CosiEvent]) -> None:
        """Queue the events that the request selects."""
        for event in events:
            if matches_watch(event, self._request):
                self._events.put_nowait(event)

    def end(self) -> None:
        """Break the watch after the events so far."""
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
