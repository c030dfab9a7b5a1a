"""One simulated machine at run time: what it holds, what is wrong with it, and who is calling."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.sim_machines import access_policy
from libs.testbed.sim_machines.call_rejected import make_not_authorized
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
from libs.testbed.sim_machines.routing import make_dial_error, make_reset_error

_HISTORY = 1024  # events that machined keeps for a watch that lags


class MachineFaults(msgspec.Struct, frozen=True):
    """What is wrong with a machine; the default is a healthy one."""

    unavailable: bool = False  # refuses the dial; open streams break
    hang: bool = False  # accepts, and answers only once it is healed
    delay_ms: int = 0
    permission_denied: bool = False
    not_found: tuple[str, ...] = ()  # types whose resources do not exist for now
    unsupported: tuple[str, ...] = ()  # types that this Talos does not know
    forbidden: tuple[str, ...] = ()  # types that our role may not read
    slow: tuple[str, ...] = ()  # types: questions about them are answered once the machine is healed


class SimMachine:
    """Its state changes at once; everybody who waits at it is woken and looks again."""

    def __init__(self, facts: SimMachineFacts, now: int) -> None:
        self.facts = facts
        self.faults = MachineFaults()
        self.state: dict[Key, StoredResource] = {}
        self._visits: set[MachineCall] = set()
        self.put(facts, now)

    def put(self, facts: SimMachineFacts, now: int) -> None:
        """Hold what the facts say. Raises ValueError, and changes nothing, if they say what cannot be."""
        self._reconcile(facts, self.faults, now)
        self.facts = facts

    def set_faults(self, faults: MachineFaults, now: int) -> None:
        """Replace everything that was wrong before."""
        self._reconcile(self.facts, faults, now)
        self.faults = faults
        if faults.unavailable:
            self.go_down()
        self._wake()

    def go_down(self) -> None:
        """Break every call that is under way."""
        for visit in self._visits:
            visit.is_down = True
        self._wake()

    def mute_watches(self) -> None:
        """Leave the watches that are open now open for ever, and silent."""
        for visit in self._visits:
            visit.is_muted = True

    @contextlib.asynccontextmanager
    async def open_call(self, address: str) -> AsyncIterator[MachineCall]:
        """One call at this machine, after all that is wrong with it has been endured. Raises Refused."""
        faults = self.faults
        if faults.unavailable:
            raise make_dial_error(address)
        visit = MachineCall(self, address)
        self._visits.add(visit)
        try:
            await visit.wait_delay(faults.delay_ms / 1000)
            await visit.wait_until_responsive()
            if faults.permission_denied:
                raise make_not_authorized()
            yield visit
        finally:
            self._visits.discard(visit)

    def _reconcile(self, facts: SimMachineFacts, faults: MachineFaults, now: int) -> None:
        wanted = [each for each in build_resources(facts) if each.type not in faults.not_found]
        self.state, events = reconcile(self.state, wanted, now)
        for visit in self._visits:
            visit.queue_events(events)

    def _wake(self) -> None:
        for visit in self._visits:
            visit.wake()


class MachineCall:
    """One call that is under way."""

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
        """Let the call look at the machine again."""
        self._woken.set()

    def watch(self, request: WatchRequest, opening: Sequence[CosiEvent]) -> None:
        """From now on, note what the request is about."""
        self._watching = request
        self._backlog.extend(opening)

    def queue_events(self, events: Sequence[CosiEvent]) -> None:
        """Note those events that this call watches."""
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
        """The next event, once there is one and the machine does not hang. Raises Refused."""
        await self._wait_until(lambda: bool(self._backlog) and not self.machine.faults.hang)
        return self._backlog.popleft()

    async def wait_until_allowed(self, namespace: str, kind: str) -> None:
        """Return when the machine answers questions about that type. Raises Refused."""
        await self._wait_until(lambda: kind not in self.machine.faults.slow)
        if kind in self.machine.faults.unsupported:
            raise access_policy.make_unsupported_error(kind)
        if kind in self.machine.faults.forbidden:
            raise make_not_authorized()
        access_policy.check_readable(namespace, kind)

    async def wait_until_responsive(self) -> None:
        """Return when the machine does not hang. Raises Refused if it goes down."""
        await self._wait_until(lambda: not self.machine.faults.hang)

    async def wait_delay(self, seconds: float) -> None:
        """Return that much later, once per call. Raises Refused if the machine goes down meanwhile."""
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
