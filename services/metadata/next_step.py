"""What follows from what is known of a Node: say it, look at its machine, wait, or be done with it."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.events import (
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.machine import MachineFacts
from services.metadata import schedule
from services.metadata.known import NEVER, Known, same_but_for_pod_cidrs


class Say(msgspec.Struct, frozen=True):
    """Publish this."""

    event: EnrichedNode


class Look(msgspec.Struct, frozen=True):
    """Ask the machine at these addresses, in turn."""

    addresses: tuple[str, ...]


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do before then (monotonic seconds), unless something new is heard."""

    until: float


class Done(msgspec.Struct, frozen=True):
    """The Node is gone and everybody was told: forget it."""


Step = Say | Look | Wait | Done

_WAIT_FOR_NEWS: Final = Wait(NEVER)


def next_step(known: Known, *, now: float, at: datetime) -> Step:
    """`now` is monotonic, `at` the same moment as a time of day."""
    if known.void:
        return _WAIT_FOR_NEWS
    event = None if known.look_first else wanted(known, now=now, at=at)
    worth_saying = event is not None and _is_news(known, event, now)
    if event is not None and worth_saying and now >= known.say_after:
        return Say(event)
    if isinstance(known.observed, NodeGone):
        return Wait(known.say_after) if worth_saying else Done()
    if not known.addresses:
        return Wait(known.say_after if worth_saying else known.repeat_due if event else NEVER)
    if now >= known.due:
        return Look(known.addresses)
    speak = known.say_after if worth_saying else known.repeat_due if event else NEVER
    return Wait(min(known.due, speak))


def wanted(known: Known, *, now: float, at: datetime) -> EnrichedNode | None:
    """What the stream should say of this Node, None while we do not know or it is none of ours."""
    observed = known.observed
    if isinstance(observed, NodeGone):
        return EnrichedNodeGone(
            incarnation=observed.incarnation,
            observed_sequence=known.sequence,
            name=observed.name,
            uid=observed.uid,
        )
    if known.facts is not None and known.recognized is not None:
        return _enriched(known, observed, known.facts, known.recognized.by, at)
    return _unreachable(known, observed, now, at) if known.fault is not None else None


def says_the_same(one: EnrichedNode, other: EnrichedNode) -> bool:
    """Whether two messages tell consumers the same: times, order, counts and podCIDRs apart."""
    match one, other:
        case NodeEnriched(), NodeEnriched():
            same = one.recognized_by == other.recognized_by and same_facts(one.facts, other.facts)
            return same and same_but_for_pod_cidrs(one.node, other.node)
        case NodeUnreachable(), NodeUnreachable():
            same = (one.fault.kind, one.fault.step) == (other.fault.kind, other.fault.step)
            same = same and one.answered_by == other.answered_by  # each look that others answered is news
            return (
                same
                and same_facts(one.last_known, other.last_known)
                and same_but_for_pod_cidrs(one.node, other.node)
            )
        case EnrichedNodeGone(), EnrichedNodeGone():
            return one.uid == other.uid
        case _:
            return False


def same_facts(one: MachineFacts | None, other: MachineFacts | None) -> bool:
    """Whether two looks saw the same, whenever they began."""
    if one is None or other is None:
        return one is other
    return msgspec.structs.replace(one, looked_at=other.looked_at) == other


def _is_news(known: Known, event: EnrichedNode, now: float) -> bool:
    if known.said is None or not says_the_same(known.said, event):
        return True
    return now >= known.repeat_due and not isinstance(event, EnrichedNodeGone)


def _enriched(
    known: Known, observed: NodeObserved, facts: MachineFacts, recognized_by: str, at: datetime
) -> NodeEnriched:
    return NodeEnriched(
        incarnation=observed.incarnation,
        observed_sequence=known.sequence,
        node=observed.node,
        facts=facts,
        recognized_by=recognized_by,
        observed_at=observed.observed_at,
        enriched_at=at,
    )


def _unreachable(known: Known, observed: NodeObserved, now: float, at: datetime) -> NodeUnreachable:
    assert known.fault is not None
    retry = known.due if known.due < NEVER else known.repeat_due if known.repeat_due < NEVER else now
    return NodeUnreachable(
        incarnation=observed.incarnation,
        observed_sequence=known.sequence,
        node=observed.node,
        fault=known.fault,
        last_known=known.last_known,
        attempt=max(1, schedule.attempt(known.failures, known.fault)),
        retry_at=at + timedelta(seconds=max(0.0, retry - now)),
        answered_by=known.answered_by,
        observed_at=observed.observed_at,
        enriched_at=at,
    )
