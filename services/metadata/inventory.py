"""Which parts of a machine's inventory a look asks for, and what becomes of the answers.

Only what rules name, or ipam needs, is asked for. It changes with a reboot at most (gateways: hardly ever),
so it is kept while the machine stays within reach, and asked for again twice an hour. A part that is not
told holds a Node up for a few looks, never for ever, and costs nobody the facts that there are.
"""

from collections.abc import Set as AbstractSet
from typing import Any, Final

import msgspec

from libs.common.machine import FaultKind, Inventory, MachineFacts, MachineFault
from services.metadata import schedule
from services.metadata.known import LONG_AGO, Known
from services.metadata.schedule import Pace
from services.metadata.talos_api.inventory_reading import InventoryAnswer
from services.metadata.talos_api.resources import Part

PATIENCE_LOOKS: Final = 3  # how often a Node without facts waits for a part that fails
_HOLDS: Final[dict[Part, str]] = {
    "Version": "talos_version",
    "MachineType": "machine_type",
    "ExtensionStatus": "extensions",
    "Processor": "processors",
    "MemoryModule": "memory_mib",
    "RouteStatus": "gateways",
}
# What goes away by itself. Anything else (our role, bytes that no Talos sends) is asked again twice an hour.
_PASSING: Final[frozenset[FaultKind]] = frozenset(
    {"refused", "timeout", "certificate", "no_endpoint", "wrong_machine"}
)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was needed when a look ended, what it had asked for, and what came."""

    needed: frozenset[Part] = frozenset()
    parts: frozenset[Part] = frozenset()
    answer: InventoryAnswer = InventoryAnswer()


NOTHING_ASKED: Final = Asked()


def parts_to_ask(known: Known, needed: AbstractSet[Part], *, now: float, pace: Pace) -> frozenset[Part]:
    """With the next look: everything, or what is still missing."""
    oldest = schedule.after_success(pace, watched=True, jitter=0.0)
    if known.facts is None or now - known.inventory_asked >= oldest:
        return frozenset(needed)
    return frozenset(part for part in needed - _refused(known) if told(known.facts.inventory, part) is None)


def told(inventory: Inventory | None, part: Part) -> object:
    """What an inventory holds of that part, None if nothing."""
    return None if inventory is None else getattr(inventory, _HOLDS[part])


def fault_to_wait_for(known: Known, asked: Asked) -> MachineFault | None:
    """Why this look should count as failed: a rule may want to be judged before the Node takes pods."""
    if known.facts is not None:
        return None
    for part in sorted(asked.needed & asked.answer.faults.keys()):
        fault = asked.answer.faults[part]
        if fault.kind in _PASSING and schedule.attempt(known.failures, fault) < PATIENCE_LOOKS:
            return fault
    return None


def with_inventory(known: Known, facts: MachineFacts, asked: Asked) -> MachineFacts:
    """These facts with all that is needed and known of the inventory, and nothing that is not needed."""
    if not asked.needed:
        return facts
    held: dict[str, Any] = {}
    for part in asked.needed:
        value, fault = told(asked.answer.inventory, part), asked.answer.faults.get(part)
        if value is None and known.facts is not None and (fault is None or fault.kind in _PASSING):
            value = told(known.facts.inventory, part)
        held[_HOLDS[part]] = value
    return msgspec.structs.replace(facts, inventory=Inventory(**held))


def after_look(known: Known, asked: Asked, *, began: float, now: float, pace: Pace, jitter: float) -> Known:
    """After a good look: when the inventory is asked for again."""
    untold = {part: fault for part, fault in known.untold.items() if part in asked.needed - asked.parts}
    untold |= {part: fault for part, fault in asked.answer.faults.items() if part in asked.needed}
    passing = any(fault.kind in _PASSING for fault in untold.values())
    is_whole = asked.parts >= asked.needed and not passing
    known = msgspec.structs.replace(
        known, untold=untold, inventory_asked=began if is_whole else known.inventory_asked
    )
    if not passing and not parts_to_ask(known, asked.needed, now=now, pace=pace):
        return msgspec.structs.replace(known, untold_looks=0) if known.untold_looks else known
    looks = known.untold_looks + 1
    wait = schedule.after_incomplete(looks, jitter)
    return msgspec.structs.replace(known, untold_looks=looks, due=min(known.due, now + wait))


def doubted(known: Known) -> Known:
    """The machine may have been started anew meanwhile: the next look asks for everything."""
    return msgspec.structs.replace(known, inventory_asked=LONG_AGO)


def _refused(known: Known) -> frozenset[Part]:
    return frozenset(part for part, fault in known.untold.items() if fault.kind not in _PASSING)
