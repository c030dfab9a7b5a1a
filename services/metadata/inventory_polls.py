"""Selects the parts of a machine's inventory that a poll requests, and applies the response.

metadata requests only the parts that rules name or ipam needs. They change only with a reboot (gateways:
rarely), so they are kept while the machine is reachable, and polled again twice an hour. A missing part
delays a Node for a few polls only, and does not affect the other facts.
"""

from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from libs.common.contract.machine import FaultKind, Inventory, MachineFacts, MachineFault
from libs.talos.inventory_reading import InventoryResponse
from libs.talos.resources import INVENTORY, Part
from services.metadata import poll_schedule
from services.metadata.node_state import LONG_AGO, NodeState
from services.metadata.poll_schedule import PollIntervals

MAX_BLOCKING_POLLS: Final = 3  # polls for which a Node without facts waits for a failing part
# Faults that may pass. After others (missing role, invalid response) the part is polled twice an hour.
_TRANSIENT_KINDS: Final[frozenset[FaultKind]] = frozenset(
    {"refused", "timeout", "certificate", "no_endpoint", "wrong_machine"}
)


class InventoryPoll(msgspec.Struct, frozen=True, kw_only=True):
    """The parts needed when a poll ended, the parts that it requested, and the response."""

    needed_parts: frozenset[Part] = frozenset()
    requested_parts: frozenset[Part] = frozenset()
    answer: InventoryResponse = InventoryResponse()


NO_INVENTORY_POLL: Final = InventoryPoll()


def select_parts(
    state: NodeState, needed_parts: AbstractSet[Part], *, now: float, intervals: PollIntervals
) -> frozenset[Part]:
    """Return the parts for the next poll: all of them if they are old, else those still missing."""
    oldest = poll_schedule.delay_after_success(intervals, is_watched=True, jitter=0.0)
    if state.facts is None or now - state.inventory_polled_at >= oldest:
        return frozenset(needed_parts)
    return frozenset(
        part
        for part in needed_parts - _rejected_parts(state)
        if get_part(state.facts.inventory, part) is None
    )


def get_part(inventory: Inventory | None, part: Part) -> object:
    """Return the value of that part, None if the inventory has none."""
    return None if inventory is None else getattr(inventory, INVENTORY[part].inventory_field)


def find_blocking_fault(state: NodeState, poll: InventoryPoll) -> MachineFault | None:
    """Return the fault that fails this poll: rules may need the part before the Node accepts pods."""
    if state.facts is not None:
        return None
    for part in sorted(poll.needed_parts & poll.answer.faults.keys()):
        fault = poll.answer.faults[part]
        if (
            fault.kind in _TRANSIENT_KINDS
            and poll_schedule.count_attempts(state.failures, fault) < MAX_BLOCKING_POLLS
        ):
            return fault
    return None


def merge_inventory(state: NodeState, facts: MachineFacts, poll: InventoryPoll) -> MachineFacts:
    """Return the facts with exactly the needed inventory parts, as far as they are known."""
    if not poll.needed_parts:
        return facts
    fields: dict[str, Any] = {}
    for part in poll.needed_parts:
        value, fault = get_part(poll.answer.inventory, part), poll.answer.faults.get(part)
        if value is None and state.facts is not None and (fault is None or fault.kind in _TRANSIENT_KINDS):
            value = get_part(state.facts.inventory, part)
        fields[INVENTORY[part].inventory_field] = value
    return msgspec.structs.replace(facts, inventory=Inventory(**fields))


def apply_inventory_poll(
    state: NodeState,
    poll: InventoryPoll,
    *,
    began: float,
    now: float,
    intervals: PollIntervals,
    jitter: float,
) -> NodeState:
    """Return the state after a successful poll, with the missing parts and the time of the next attempt."""
    missing = {
        part: fault
        for part, fault in state.missing_parts.items()
        if part in poll.needed_parts - poll.requested_parts
    }
    missing |= {part: fault for part, fault in poll.answer.faults.items() if part in poll.needed_parts}
    has_transient = any(fault.kind in _TRANSIENT_KINDS for fault in missing.values())
    is_whole = poll.requested_parts >= poll.needed_parts and not has_transient
    state = msgspec.structs.replace(
        state, missing_parts=missing, inventory_polled_at=began if is_whole else state.inventory_polled_at
    )
    if not has_transient and not select_parts(state, poll.needed_parts, now=now, intervals=intervals):
        return (
            msgspec.structs.replace(state, incomplete_inventory_polls=0)
            if state.incomplete_inventory_polls
            else state
        )
    polls = state.incomplete_inventory_polls + 1
    wait = poll_schedule.delay_after_incomplete(polls, jitter)
    return msgspec.structs.replace(
        state, incomplete_inventory_polls=polls, next_poll_at=min(state.next_poll_at, now + wait)
    )


def mark_inventory_doubtful(state: NodeState) -> NodeState:
    """Request the whole inventory with the next poll: the machine may have rebooted since the last one."""
    return msgspec.structs.replace(state, inventory_polled_at=LONG_AGO)


def _rejected_parts(state: NodeState) -> frozenset[Part]:
    return frozenset(
        part for part, fault in state.missing_parts.items() if fault.kind not in _TRANSIENT_KINDS
    )
