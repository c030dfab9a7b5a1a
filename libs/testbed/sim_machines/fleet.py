"""All machines by ID and by network address, and the counts of their calls."""

from __future__ import annotations

from collections import Counter

from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.machine_fleet import CallKey
from libs.testbed.sim_machines.call_rejected import CallRejected, StatusCode, check_target, make_dial_error
from libs.testbed.sim_machines.sim_machine import SimMachine


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
