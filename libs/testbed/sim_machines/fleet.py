"""Every machine, by its id and by where the network finds it; and how often each was called."""

from __future__ import annotations

from collections import Counter

from libs.testbed.machine_facts import Machine
from libs.testbed.machines import Call
from libs.testbed.sim_machines.machine import SimMachine
from libs.testbed.sim_machines.refusal import Code, Refused
from libs.testbed.sim_machines.routing import check_target, refused_dial


class Fleet:
    """The machines in the order in which they came."""

    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        self._machines: dict[str, SimMachine] = {}
        self._addresses: dict[str, SimMachine] = {}

    def put(self, facts: Machine, now: int) -> None:
        """Create or replace a machine; an address that another one had is taken over. Raises ValueError."""
        if not facts.id:
            raise ValueError("a machine needs an id")
        machine = self._machines.get(facts.id)
        if machine is None:
            machine = self._machines[facts.id] = SimMachine(facts, now)
        else:
            before = machine.facts
            machine.put(facts, now)
            self._forget(machine, before)
        self._addresses.update(dict.fromkeys(facts.reachable_at, machine))

    def delete(self, machine_id: str) -> None:
        """Break the machine's calls; nobody answers at its addresses any more. Raises ValueError."""
        machine = self.machine(machine_id)
        machine.go_down()
        self._forget(machine, machine.facts)
        del self._machines[machine_id]

    def machine(self, machine_id: str) -> SimMachine:
        """By its id. Raises ValueError."""
        if machine_id not in self._machines:
            raise ValueError(f'there is no machine "{machine_id}"')
        return self._machines[machine_id]

    def at(self, node: str | None) -> SimMachine:
        """Where that header leads; without one to the first control plane. Raises Refused."""
        if node is None:
            for machine in self._machines.values():
                if machine.facts.control_plane:
                    return machine
            raise Refused(Code.UNAVAILABLE, "no control plane machine is up")
        check_target(node)
        if node not in self._addresses:
            raise refused_dial(node)
        return self._addresses[node]

    def _forget(self, machine: SimMachine, facts: Machine) -> None:
        for address in facts.reachable_at:
            if self._addresses.get(address) is machine:
                del self._addresses[address]
