"""Decides the next step for one Node from its state: publish, poll, wait, or done."""

from datetime import datetime, timedelta

import msgspec

from libs.common.contract.events import (
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
)
from services.metadata.core.node_state import NodeState
from services.metadata.core.object_state import NEVER, ForgetObject, Publish, Wait, count_attempts


class PollMachine(msgspec.Struct, frozen=True):
    """Poll the machine at these addresses, in this order."""

    addresses: tuple[str, ...]


NodeStep = Publish[EnrichedNode] | PollMachine | Wait | ForgetObject


def decide_node_step(state: NodeState, *, now: float, wall_time: datetime) -> NodeStep:
    """Return the next step. `now` is monotonic; `wall_time` is the same moment as wall clock time."""
    if state.observation.is_stale:
        return Wait(NEVER)
    event = None if state.must_poll_first else build_event(state, now=now, wall_time=wall_time)
    is_due = event is not None and state.publication.is_due(event, now)
    retry_at, republish_at = state.publication.retry_at, state.publication.republish_at
    if event is not None and is_due and now >= retry_at:
        return Publish(event)
    if state.node is None:
        return Wait(retry_at) if is_due else ForgetObject()
    if state.dial_targets and now >= state.next_poll_at:
        return PollMachine(state.dial_targets)
    publish_at = retry_at if is_due else republish_at if event else NEVER
    return Wait(min(state.next_poll_at, publish_at) if state.dial_targets else publish_at)


def build_event(state: NodeState, *, now: float, wall_time: datetime) -> EnrichedNode | None:
    """Return the event to publish, None if no poll has ended yet or the Node is not ours."""
    observed = state.observation.event
    if isinstance(observed, NodeGone):
        return EnrichedNodeGone(
            stream_id=observed.stream_id,
            observed_sequence=state.observation.sequence,
            name=observed.name,
            uid=observed.uid,
        )
    if state.facts is not None and state.identity is not None:
        return NodeEnriched(
            stream_id=observed.stream_id,
            observed_sequence=state.observation.sequence,
            node=observed.node,
            facts=state.facts,
            verified_by=state.identity.method,
            observed_at=observed.observed_at,
            enriched_at=wall_time,
        )
    return _build_unreachable(state, observed, now, wall_time) if state.fault is not None else None


def _build_unreachable(
    state: NodeState, observed: NodeObserved, now: float, wall_time: datetime
) -> NodeUnreachable:
    assert state.fault is not None
    times = (state.next_poll_at, state.publication.republish_at, now)
    retry_at = next(time for time in times if time < NEVER)
    return NodeUnreachable(
        stream_id=observed.stream_id,
        observed_sequence=state.observation.sequence,
        node=observed.node,
        fault=state.fault,
        last_known=state.last_known,
        attempt=max(1, count_attempts(state.failures, state.fault)),
        retry_at=wall_time + timedelta(seconds=max(0.0, retry_at - now)),
        foreign_machines=state.foreign_machines,
        observed_at=observed.observed_at,
        enriched_at=wall_time,
    )
