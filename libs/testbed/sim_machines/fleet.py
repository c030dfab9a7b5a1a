"""Every machine, by its id and by where the network finds it; and how often each was called."""

from __future__ import annotations

from collections import Counter

from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.machine_fleet import CallKey
from libs.testbed.sim_machines.call_rejected import CallRejected, StatusCode
from libs.testbed.sim_machines.routing import check_target, make_dial_error
from libs.testbed.sim_machines.sim_machine import SimMachine


class SimFleet:
    """The machines in the order in which they came."""

    def __init__(self) -> None:
        self.calls: Counter[CallKey] = Counter()
        self._machines: dict[str, SimMachine] = {}
        self._addresses: dict[str, SimMachine] = {}

    def put(self, facts: SimMachineFacts, now: int) -> None:
        """Create or replace a machine; an address that another one had is taken over. Raises ValueError."""
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
        """Break the machine's calls; nobody answers at its addresses any more. Raises ValueError."""
        machine = self.get_machine(machine_id)
        machine.go_down()
        self._remove_addresses(machine, machine.facts)
        del self._machines[machine_id]

    def get_machine(self, machine_id: str) -> SimMachine:
        """By its id. Raises ValueError."""
        if machine_id not in self._machines:
            raise ValueError(f'there is no machine "{machine_id}"')
        return self._machines[machine_id]

    def find_machine(self, node: str | None) -> SimMachine:
        """Where that header leads; without one to the first control plane. Raises Refused."""
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
