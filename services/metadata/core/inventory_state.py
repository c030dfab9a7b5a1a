"""The inventory of one machine: which parts a poll requests, and what the response changes.

metadata requests only the parts that rules name or ipam needs. They change only with a reboot (gateways:
rarely), so they are kept while the machine is reachable, and polled again twice an hour. A missing part
delays a Node for a few polls only, and does not affect the other facts.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from libs.common.contract.machine import FAULT_KINDS, Inventory, MachineFacts, MachineFault
from libs.talos.inventory_reading import InventoryResponse
from libs.talos.resources import INVENTORY, Part
from services.metadata.core.object_state import (
    LONG_AGO,
    NEVER,
    Failures,
    PollIntervals,
    Timing,
    count_attempts,
)

MAX_BLOCKING_POLLS: Final = 3  # polls for which a Node without facts waits for a failing part


class InventoryPoll(msgspec.Struct, frozen=True, kw_only=True):
    """The parts needed when a poll ended, the parts that it requested, and the response."""

    needed_parts: frozenset[Part] = frozenset()
    requested_parts: frozenset[Part] = frozenset()
    answer: InventoryResponse = InventoryResponse()

    def find_blocking_fault(self, facts: MachineFacts | None, failures: Failures) -> MachineFault | None:
        """Return the fault that fails this poll: rules may need the part before the Node accepts pods.

        `facts` and `failures` are those before the poll. A Node with facts keeps them.
        """
        if facts is not None:
            return None
        for part in sorted(self.needed_parts & self.answer.faults.keys()):
            fault = self.answer.faults[part]
            if is_transient(fault) and count_attempts(failures, fault) < MAX_BLOCKING_POLLS:
                return fault
        return None

    def merge(self, before: MachineFacts | None, facts: MachineFacts) -> MachineFacts:
        """Return the polled facts with exactly the needed inventory parts, as far as they are known."""
        if not self.needed_parts:
            return facts
        fields: dict[str, Any] = {}
        for part in self.needed_parts:
            value, fault = get_part(self.answer.inventory, part), self.answer.faults.get(part)
            if value is None and before is not None and (fault is None or is_transient(fault)):
                value = get_part(before.inventory, part)
            fields[INVENTORY[part].inventory_field] = value
        return msgspec.structs.replace(facts, inventory=Inventory(**fields))


NO_INVENTORY_POLL: Final = InventoryPoll()


class InventoryState(msgspec.Struct, frozen=True, kw_only=True):
    """The success of the inventory polls of one machine. Its facts contain the inventory itself."""

    missing_parts: Mapping[Part, MachineFault] = {}  # parts that the machine did not give, and why
    incomplete_polls: int = 0  # in a row, each with parts still to be requested
    polled_at: float = LONG_AGO  # start of the last complete poll

    def select_parts(
        self, facts: MachineFacts | None, needed: AbstractSet[Part], *, now: float, intervals: PollIntervals
    ) -> frozenset[Part]:
        """Return the parts for the next poll: all of them if they are old, else those still missing."""
        if facts is None or now - self.polled_at >= intervals.inventory:
            return frozenset(needed)
        rejected = {part for part, fault in self.missing_parts.items() if not is_transient(fault)}
        return frozenset(part for part in needed - rejected if get_part(facts.inventory, part) is None)

    def polled(
        self, facts: MachineFacts, poll: InventoryPoll, *, began: float, timing: Timing
    ) -> tuple["InventoryState", float]:
        """Return the state after a successful poll with these facts, and when to request missing parts."""
        needed, kept = poll.needed_parts, self.missing_parts.keys() - poll.requested_parts
        faults = {**{part: self.missing_parts[part] for part in kept}, **poll.answer.faults}
        missing = {part: fault for part, fault in faults.items() if part in needed}
        has_transient = any(map(is_transient, missing.values()))
        is_whole = poll.requested_parts >= needed and not has_transient
        state = InventoryState(missing_parts=missing, polled_at=began if is_whole else self.polled_at)
        now, intervals = timing.now, timing.intervals
        if not has_transient and not state.select_parts(facts, needed, now=now, intervals=intervals):
            return state, NEVER
        polls = self.incomplete_polls + 1
        return msgspec.structs.replace(state, incomplete_polls=polls), now + timing.after_incomplete(polls)

    def doubtful(self) -> "InventoryState":
        """Request the whole inventory with the next poll: the machine may have rebooted meanwhile."""
        return msgspec.structs.replace(self, polled_at=LONG_AGO)


def get_part(inventory: Inventory | None, part: Part) -> object:
    """Return the value of that part, None if the inventory has none."""
    return None if inventory is None else getattr(inventory, INVENTORY[part].inventory_field)


def is_transient(fault: MachineFault) -> bool:
    """Return whether the fault of a part may pass: the part's own machine has not answered.

    After other faults (missing role, invalid response) the part is polled twice an hour.
    """
    return FAULT_KINDS[fault.kind].is_unreachable or fault.kind == "wrong_machine"
