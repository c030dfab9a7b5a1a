"""What follows from what is known of a Node: say it, look at its machine, wait, or be done with it."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import (
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.contract.machine import MachineFacts
from services.metadata import poll_schedule
from services.metadata.node_state import NEVER, NodeState, differs_only_in_pod_cidrs


class PublishNode(msgspec.Struct, frozen=True):
    """Publish this."""

    event: EnrichedNode


class PollMachine(msgspec.Struct, frozen=True):
    """Ask the machine at these addresses, in turn."""

    addresses: tuple[str, ...]


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do before then (monotonic seconds), unless something new is heard."""

    until: float


class Done(msgspec.Struct, frozen=True):
    """The Node is gone and everybody was told: forget it."""


Step = PublishNode | PollMachine | Wait | Done

_WAIT_FOR_EVENT: Final = Wait(NEVER)


def decide_next_step(state: NodeState, *, now: float, wall_time: datetime) -> Step:
    """`now` is monotonic, `at` the same moment as a time of day."""
    if state.is_stale:
        return _WAIT_FOR_EVENT
    event = None if state.must_poll_first else build_event(state, now=now, wall_time=wall_time)
    worth_saying = event is not None and _needs_publishing(state, event, now)
    if event is not None and worth_saying and now >= state.publish_after:
        return PublishNode(event)
    if isinstance(state.observation, NodeGone):
        return Wait(state.publish_after) if worth_saying else Done()
    if not state.dial_targets:
        return Wait(state.publish_after if worth_saying else state.republish_at if event else NEVER)
    if now >= state.next_poll_at:
        return PollMachine(state.dial_targets)
    speak = state.publish_after if worth_saying else state.republish_at if event else NEVER
    return Wait(min(state.next_poll_at, speak))


def build_event(state: NodeState, *, now: float, wall_time: datetime) -> EnrichedNode | None:
    """What the stream should say of this Node, None while we do not know or it is none of ours."""
    observed = state.observation
    if isinstance(observed, NodeGone):
        return EnrichedNodeGone(
            stream_id=observed.stream_id,
            observed_sequence=state.observed_sequence,
            name=observed.name,
            uid=observed.uid,
        )
    if state.facts is not None and state.identity is not None:
        return _build_enriched(state, observed, state.facts, state.identity.method, wall_time)
    return _build_unreachable(state, observed, now, wall_time) if state.fault is not None else None


def is_equivalent(one: EnrichedNode, other: EnrichedNode) -> bool:
    """Whether two messages tell consumers the same: times, order, counts and podCIDRs apart."""
    match one, other:
        case NodeEnriched(), NodeEnriched():
            same = one.verified_by == other.verified_by and has_same_facts(one.facts, other.facts)
            return same and differs_only_in_pod_cidrs(one.node, other.node)
        case NodeUnreachable(), NodeUnreachable():
            same = (one.fault.kind, one.fault.step) == (other.fault.kind, other.fault.step)
            same = (
                same and one.foreign_machines == other.foreign_machines
            )  # each look that others answered is news
            return (
                same
                and has_same_facts(one.last_known, other.last_known)
                and differs_only_in_pod_cidrs(one.node, other.node)
            )
        case EnrichedNodeGone(), EnrichedNodeGone():
            return one.uid == other.uid
        case _:
            return False


def has_same_facts(one: MachineFacts | None, other: MachineFacts | None) -> bool:
    """Whether two looks saw the same, whenever they began."""
    if one is None or other is None:
        return one is other
    return msgspec.structs.replace(one, queried_at=other.queried_at) == other


def _needs_publishing(state: NodeState, event: EnrichedNode, now: float) -> bool:
    if state.published is None or not is_equivalent(state.published, event):
        return True
    return now >= state.republish_at and not isinstance(event, EnrichedNodeGone)


def _build_enriched(
    state: NodeState, observed: NodeObserved, facts: MachineFacts, recognized_by: str, wall_time: datetime
) -> NodeEnriched:
    return NodeEnriched(
        stream_id=observed.stream_id,
        observed_sequence=state.observed_sequence,
        node=observed.node,
        facts=facts,
        verified_by=recognized_by,
        observed_at=observed.observed_at,
        enriched_at=wall_time,
    )


def _build_unreachable(
    state: NodeState, observed: NodeObserved, now: float, wall_time: datetime
) -> NodeUnreachable:
    assert state.fault is not None
    retry = (
        state.next_poll_at
        if state.next_poll_at < NEVER
        else state.republish_at
        if state.republish_at < NEVER
        else now
    )
    return NodeUnreachable(
        stream_id=observed.stream_id,
        observed_sequence=state.observed_sequence,
        node=observed.node,
        fault=state.fault,
        last_known=state.last_known,
        attempt=max(1, poll_schedule.count_attempts(state.failures, state.fault)),
        retry_at=wall_time + timedelta(seconds=max(0.0, retry - now)),
        foreign_machines=state.foreign_machines,
        observed_at=observed.observed_at,
        enriched_at=wall_time,
    )
