"""Copies an event for another reader: frozen values are shared, dictionaries are not."""

from typing import TypeVar

from msgspec.structs import replace

from libs.common.contract.events import (
    CsrEnriched,
    CsrObserved,
    Event,
    NodeEnriched,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.contract.machine import MachineFacts
from libs.common.contract.node import ApiObject

ObjectT = TypeVar("ObjectT", bound=ApiObject)


def copy_event(event: Event) -> Event:
    """Return an equal event with dictionaries of its own, so that a change of one shows in no other event."""
    match event:
        case NodeObserved():
            return replace(event, node=_copy_object(event.node))
        case NodeEnriched():
            return replace(event, node=_copy_object(event.node), facts=_copy_facts(event.facts))
        case NodeUnreachable():
            known = event.last_known
            return replace(
                event, node=_copy_object(event.node), last_known=None if known is None else _copy_facts(known)
            )
        case CsrObserved():
            return replace(event, request=_copy_object(event.request))
        case CsrEnriched():
            facts = event.facts
            return replace(
                event,
                request=_copy_object(event.request),
                facts=None if facts is None else _copy_facts(facts),
            )
    return event


def _copy_object(present: ObjectT) -> ObjectT:
    metadata = present.metadata
    return replace(
        present,
        metadata=replace(metadata, labels=metadata.labels.copy(), annotations=metadata.annotations.copy()),
    )


def _copy_facts(facts: MachineFacts) -> MachineFacts:
    platform, inventory = facts.platform, facts.inventory
    if inventory is not None and inventory.extensions is not None:
        inventory = replace(inventory, extensions=inventory.extensions.copy())
    return replace(facts, platform=replace(platform, tags=platform.tags.copy()), inventory=inventory)
