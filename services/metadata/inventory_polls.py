"""Which parts of a machine's inventory a look asks for, and what becomes of the answers.

Only what rules name, or ipam needs, is asked for. It changes with a reboot at most (gateways: hardly ever),
so it is kept while the machine stays within reach, and asked for again twice an hour. A part that is not
told holds a Node up for a few looks, never for ever, and costs nobody the facts that there are.
"""

from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from libs.common.contract.machine import FaultKind, Inventory, MachineFacts, MachineFault
from libs.talos.inventory_reading import InventoryResponse
from libs.talos.resources import Part
from services.metadata import poll_schedule
from services.metadata.node_state import LONG_AGO, NodeState
from services.metadata.poll_schedule import PollIntervals

MAX_BLOCKING_POLLS: Final = 3  # how often a Node without facts waits for a part that fails
_FIELD_OF_PART: Final[dict[Part, str]] = {
    "Version": "talos_version",
    "MachineType": "machine_type",
    "ExtensionStatus": "extensions",
    "Processor": "processors",
    "MemoryModule": "memory_mib",
    "RouteStatus": "gateways",
}
# What goes away by itself. Anything else (our role, bytes that no Talos sends) is asked again twice an hour.
_TRANSIENT_KINDS: Final[frozenset[FaultKind]] = frozenset(
    {"refused", "timeout", "certificate", "no_endpoint", "wrong_machine"}
)


class InventoryPoll(msgspec.Struct, frozen=True, kw_only=True):
    """What was needed when a look ended, what it had asked for, and what came."""

    needed_parts: frozenset[Part] = frozenset()
    requested_parts: frozenset[Part] = frozenset()
    answer: InventoryResponse = InventoryResponse()


NO_INVENTORY_POLL: Final = InventoryPoll()


def select_parts(
    state: NodeState, needed_parts: AbstractSet[Part], *, now: float, intervals: PollIntervals
) -> frozenset[Part]:
    """With the next look: everything, or what is still missing."""
    oldest = poll_schedule.delay_after_success(intervals, is_watched=True, jitter=0.0)
    if state.facts is None or now - state.inventory_polled_at >= oldest:
        return frozenset(needed_parts)
    return frozenset(
        part
        for part in needed_parts - _rejected_parts(state)
        if get_part(state.facts.inventory, part) is None
    )


def get_part(inventory: Inventory | None, part: Part) -> object:
    """What an inventory holds of that part, None if nothing."""
    return None if inventory is None else getattr(inventory, _FIELD_OF_PART[part])


def find_blocking_fault(state: NodeState, poll: InventoryPoll) -> MachineFault | None:
    """Why this look should count as failed: a rule may want to be judged before the Node takes pods."""
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
    """These facts with all that is needed and known of the inventory, and nothing that is not needed."""
    if not poll.needed_parts:
        return facts
    held: dict[str, Any] = {}
    for part in poll.needed_parts:
        value, fault = get_part(poll.answer.inventory, part), poll.answer.faults.get(part)
        if value is None and state.facts is not None and (fault is None or fault.kind in _TRANSIENT_KINDS):
            value = get_part(state.facts.inventory, part)
        held[_FIELD_OF_PART[part]] = value
    return msgspec.structs.replace(facts, inventory=Inventory(**held))


def apply_inventory_poll(
    state: NodeState,
    poll: InventoryPoll,
    *,
    began: float,
    now: float,
    intervals: PollIntervals,
    jitter: float,
) -> NodeState:
    """After a good look: when the inventory is asked for again."""
    untold = {
        part: fault
        for part, fault in state.missing_parts.items()
        if part in poll.needed_parts - poll.requested_parts
    }
    untold |= {part: fault for part, fault in poll.answer.faults.items() if part in poll.needed_parts}
    passing = any(fault.kind in _TRANSIENT_KINDS for fault in untold.values())
    is_whole = poll.requested_parts >= poll.needed_parts and not passing
    state = msgspec.structs.replace(
        state, missing_parts=untold, inventory_polled_at=began if is_whole else state.inventory_polled_at
    )
    if not passing and not select_parts(state, poll.needed_parts, now=now, intervals=intervals):
        return (
            msgspec.structs.replace(state, incomplete_inventory_polls=0)
            if state.incomplete_inventory_polls
            else state
        )
    looks = state.incomplete_inventory_polls + 1
    wait = poll_schedule.delay_after_incomplete(looks, jitter)
    return msgspec.structs.replace(
        state, incomplete_inventory_polls=looks, next_poll_at=min(state.next_poll_at, now + wait)
    )


def mark_inventory_doubtful(state: NodeState) -> NodeState:
    """The machine may have been started anew meanwhile: the next look asks for everything."""
    return msgspec.structs.replace(state, inventory_polled_at=LONG_AGO)


def _rejected_parts(state: NodeState) -> frozenset[Part]:
    return frozenset(
        part for part, fault in state.missing_parts.items() if fault.kind not in _TRANSIENT_KINDS
    )
