"""The changes of the node state after a publish result."""

import msgspec

from libs.common.bus.delivery import backoff_seconds
from libs.common.contract.events import EnrichedNode
from libs.common.contract.machine import MachineFault
from services.metadata import poll_schedule
from services.metadata.node_state import LONG_AGO, NodeState
from services.metadata.poll_schedule import PollIntervals
from services.metadata.poll_transitions import apply_poll_failure


def apply_published(
    state: NodeState, event: EnrichedNode, *, now: float, intervals: PollIntervals, jitter: float
) -> NodeState:
    """Set the published event and the time to republish it. The stream has this event or a newer one."""
    return msgspec.structs.replace(
        state,
        published=event,
        republish_at=now + poll_schedule.delay_until_republish(intervals, jitter),
        is_answered=event.observed_sequence >= state.observed_sequence,
        publish_failures=0,
        publish_after=LONG_AGO,
    )


def apply_publish_conflict(state: NodeState, event: EnrichedNode, *, now: float) -> NodeState:
    """Poll before the next publish: another replica published about the same observation."""
    if state.observed_sequence > event.observed_sequence or not state.dial_targets:
        return state
    return msgspec.structs.replace(state, published=None, must_poll_first=True, next_poll_at=now)


def apply_publish_failure(state: NodeState, *, now: float, jitter: float) -> NodeState:
    """Count the failed publish and set the back-off."""
    wait = backoff_seconds(state.publish_failures + 1, jitter)
    return msgspec.structs.replace(
        state, publish_failures=state.publish_failures + 1, publish_after=now + wait
    )


def apply_bus_reconnect(state: NodeState, *, now: float, jitter: float) -> NodeState:
    """End the publish back-off: `jitter` in [0, 1) spreads the retries over a second."""
    return (
        msgspec.structs.replace(state, publish_failures=0, publish_after=now + jitter)
        if state.publish_failures
        else state
    )


def apply_oversized_message(state: NodeState, why: str, *, now: float, jitter: float) -> NodeState:
    """Replace facts that make the message too large by a fault, so that it is published without them."""
    fault = MachineFault(kind="invalid", step="facts", message=why)
    bad = apply_poll_failure(state, fault, began=state.polled_at, now=now, jitter=jitter)
    return msgspec.structs.replace(bad, last_known=None)
