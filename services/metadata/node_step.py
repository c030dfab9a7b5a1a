"""Decides the next step for one Node from its state: publish, poll, wait, or done."""

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
    """Publish this event."""

    event: EnrichedNode


class PollMachine(msgspec.Struct, frozen=True):
    """Poll the machine at these addresses, in this order."""

    addresses: tuple[str, ...]


class Wait(msgspec.Struct, frozen=True):
    """Wait until then (monotonic seconds), or until the state changes."""

    until: float


class ForgetObject(msgspec.Struct, frozen=True):
    """Forget the object: it is gone and published, or it needs no more messages."""


Step = PublishNode | PollMachine | Wait | ForgetObject

_WAIT_FOR_EVENT: Final = Wait(NEVER)


def decide_next_step(state: NodeState, *, now: float, wall_time: datetime) -> Step:
    """Return the next step. `now` is monotonic; `wall_time` is the same moment as wall clock time."""
    if state.is_stale:
        return _WAIT_FOR_EVENT
    event = None if state.must_poll_first else build_event(state, now=now, wall_time=wall_time)
    needs_publishing = event is not None and _needs_publishing(state, event, now)
    if event is not None and needs_publishing and now >= state.publish_after:
        return PublishNode(event)
    if isinstance(state.observation, NodeGone):
        return Wait(state.publish_after) if needs_publishing else ForgetObject()
    if not state.dial_targets:
        return Wait(state.publish_after if needs_publishing else state.republish_at if event else NEVER)
    if now >= state.next_poll_at:
        return PollMachine(state.dial_targets)
    publish_at = state.publish_after if needs_publishing else state.republish_at if event else NEVER
    return Wait(min(state.next_poll_at, publish_at))


def build_event(state: NodeState, *, now: float, wall_time: datetime) -> EnrichedNode | None:
    """Return the event to publish, None if no poll has ended yet or the Node is not ours."""
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
    """Return whether two events mean the same to consumers, apart from times, order, counts and podCIDRs."""
    match one, other:
        case NodeEnriched(), NodeEnriched():
            same = one.verified_by == other.verified_by and has_same_facts(one.facts, other.facts)
            return same and differs_only_in_pod_cidrs(one.node, other.node)
        case NodeUnreachable(), NodeUnreachable():
            same = (one.fault.kind, one.fault.step) == (other.fault.kind, other.fault.step)
            # Each poll in which other machines answered is published: lifecycle counts them.
            same = same and one.foreign_machines == other.foreign_machines
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
    """Return whether two polls returned the same facts, at whatever times."""
    if one is None or other is None:
        return one is other
    return msgspec.structs.replace(one, queried_at=other.queried_at) == other


def _needs_publishing(state: NodeState, event: EnrichedNode, now: float) -> bool:
    if state.published is None or not is_equivalent(state.published, event):
        return True
    return now >= state.republish_at and not isinstance(event, EnrichedNodeGone)


def _build_enriched(
    state: NodeState, observed: NodeObserved, facts: MachineFacts, method: str, wall_time: datetime
) -> NodeEnriched:
    return NodeEnriched(
        stream_id=observed.stream_id,
        observed_sequence=state.observed_sequence,
        node=observed.node,
        facts=facts,
        verified_by=method,
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
