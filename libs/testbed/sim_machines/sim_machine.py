"""Simulated machines at run time: resources, faults and open calls of one, and all by ID and address."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.machine_fleet import CallKey
from libs.testbed.sim_machines.call_rejected import (
    CallRejected,
    StatusCode,
    check_readable,
    check_target,
    make_dial_error,
    make_not_authorized,
    make_reset_error,
    make_unsupported_error,
)
from libs.testbed.sim_machines.requests import WatchRequest
from libs.testbed.sim_machines.resource_state import (
    CosiEvent,
    Key,
    StoredResource,
    make_overrun_event,
    matches_watch,
    reconcile,
)
from libs.testbed.sim_machines.resources import build_resources

_HISTORY = 1024  # events that machined keeps for a slow watch


class MachineFaults(msgspec.Struct, frozen=True):
    """The faults of a machine; by default it is healthy."""

    unavailable: bool = False  # rejects connections; open streams break
    hang: bool = False  # accepts calls, and answers once it is healthy
    delay_ms: int = 0
    permission_denied: bool = False
    not_found: tuple[str, ...] = ()  # types whose resources do not exist for now
    unsupported: tuple[str, ...] = ()  # types that this Talos does not know
    forbidden: tuple[str, ...] = ()  # types that the client's role may not read
    slow: tuple[str, ...] = ()  # types whose queries are answered once the machine is healthy


class SimMachine:
    """A machine; each change of its state wakes all waiting calls."""

    def __init__(self, facts: SimMachineFacts, now: int) -> None:
        self.facts = facts
        self.faults = MachineFaults()
        self.state: dict[Key, StoredResource] = {}
        self._calls: set[MachineCall] = set()
        self.put(facts, now)

    def put(self, facts: SimMachineFacts, now: int) -> None:
        """Replace the facts. Raises ValueError, without any change, for invalid facts."""
        self._reconcile(facts, self.faults, now)
        self.facts = facts

    def set_faults(self, faults: MachineFaults, now: int) -> None:
        """Replace all faults."""
        self._reconcile(self.facts, faults, now)
        self.faults = faults
        if faults.unavailable:
            self.go_down()
        self._wake()

    def go_down(self) -> None:
        """Break every open call."""
        for call in self._calls:
            call.is_down = True
        self._wake()

    def mute_watches(self) -> None:
        """Keep the present watches open, without any further event."""
        for call in self._calls:
            call.is_muted = True

    @contextlib.asynccontextmanager
    async def open_call(self, address: str) -> AsyncIterator[MachineCall]:
        """Open a call on this machine after applying its faults. Raises CallRejected."""
        faults = self.faults
        if faults.unavailable:
            raise make_dial_error(address)
        call = MachineCall(self, address)
        self._calls.add(call)
        try:
            await call.wait_delay(faults.delay_ms / 1000)
            await call.wait_until_responsive()
            if faults.permission_denied:
                raise make_not_authorized()
            yield call
        finally:
            self._calls.discard(call)

    def _reconcile(self, facts: SimMachineFacts, faults: MachineFaults, now: int) -> None:
        wanted = [each for each in build_resources(facts) if each.type not in faults.not_found]
        self.state, events = reconcile(self.state, wanted, now)
        for call in self._calls:
            call.queue_events(events)

    def _wake(self) -> None:
        for call in self._calls:
            call.wake()


class MachineCall:
    """One open call."""

    def __init__(self, machine: SimMachine, address: str) -> None:
        self.machine = machine
        self.is_down = False
        self.is_muted = False
        self._address = address
        self._watching: WatchRequest | None = None
        self._backlog: deque[CosiEvent] = deque()
        self._is_overrun = False
        self._is_delay_over = False
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Let the call check the machine's state again."""
        self._woken.set()

    def watch(self, request: WatchRequest, opening: Sequence[CosiEvent]) -> None:
        """Start to queue the events that the request selects."""
        self._watching = request
        self._backlog.extend(opening)

    def queue_events(self, events: Sequence[CosiEvent]) -> None:
        """Queue the events that this call watches."""
        if self._watching is None or self._is_overrun:
            return
        for event in events:
            if not matches_watch(event, self._watching):
                continue
            self._backlog.append(event)
            if len(self._backlog) > _HISTORY:
                self._is_overrun = True
                self._backlog.clear()
                if self._watching.sends_bootstrapped:
                    self._backlog.append(make_overrun_event(self._watching, _HISTORY))
                break
        self.wake()

    async def next_event(self) -> CosiEvent:
        """Wait for the next event, and until the machine does not hang. Raises CallRejected."""
        await self._wait_until(lambda: bool(self._backlog) and not self.machine.faults.hang)
        return self._backlog.popleft()

    async def wait_until_allowed(self, namespace: str, kind: str) -> None:
        """Wait until the machine answers queries of that type. Raises CallRejected."""
        await self._wait_until(lambda: kind not in self.machine.faults.slow)
        if kind in self.machine.faults.unsupported:
            raise make_unsupported_error(kind)
        if kind in self.machine.faults.forbidden:
            raise make_not_authorized()
        check_readable(namespace, kind)

    async def wait_until_responsive(self) -> None:
        """Wait until the machine does not hang. Raises CallRejected if it goes down."""
        await self._wait_until(lambda: not self.machine.faults.hang)

    async def wait_delay(self, seconds: float) -> None:
        """Wait that long, once per call. Raises CallRejected if the machine goes down meanwhile."""
        if not seconds:
            return
        timer = asyncio.get_running_loop().call_later(seconds, self._end_delay)
        try:
            await self._wait_until(lambda: self._is_delay_over)
        finally:
            timer.cancel()

    def _end_delay(self) -> None:
        self._is_delay_over = True
        self.wake()

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        while True:
            self._woken.clear()
            if self.is_down:
                raise make_reset_error(self._address)
            if reached():
                return
            await self._woken.wait()


class SimFleet:
    """The machines in order of their creation."""

    def __init__(self) -> None:
        self.calls: Counter[CallKey] = Counter()
        self._machines: dict[str, SimMachine] = {}
        self._addresses: dict[str, SimMachine] = {}

    def put(self, facts: SimMachineFacts, now: int) -> None:
        """Create or replace a machine; it takes over addresses of others. Raises ValueError."""
        if not facts.id:
            raise ValueError("a machine needs an id")
        machine = self._machines.get(facts.id)
        if machine is None:
            machine = self._machines[facts.id] = SimMachine(facts, now)
        else:
            before = machine.facts
            machine.put(facts, now)
            self._remove_addresses(machine, before)
        self._addresses.update(dict.fromkeys(facts.reachable_at, machine))

    def delete(self, machine_id: str) -> None:
        """Break the machine's calls and remove its addresses. Raises ValueError."""
        machine = self.get_machine(machine_id)
        machine.go_down()
        self._remove_addresses(machine, machine.facts)
        del self._machines[machine_id]

    def get_machine(self, machine_id: str) -> SimMachine:
        """Return the machine with this ID. Raises ValueError."""
        if machine_id not in self._machines:
            raise ValueError(f'there is no machine "{machine_id}"')
        return self._machines[machine_id]

    def find_machine(self, node: str | None) -> SimMachine:
        """Return the machine of a `node` header; without one the first control plane. Raises CallRejected."""
        if node is None:
            for machine in self._machines.values():
                if machine.facts.control_plane:
                    return machine
            raise CallRejected(StatusCode.UNAVAILABLE, "no control plane machine is up")
        check_target(node)
        if node not in self._addresses:
            raise make_dial_error(node)
        return self._addresses[node]

    def _remove_addresses(self, machine: SimMachine, facts: SimMachineFacts) -> None:
        for address in facts.reachable_at:
            if self._addresses.get(address) is machine:
                del self._addresses[address]
