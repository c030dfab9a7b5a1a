"""The changes of the node state after a poll result or a watch event."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.contract.events import EnrichedNode, NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault, why_metadata_incomplete
from libs.common.contract.node import Node
from libs.talos.machine_events import WatchSnapshot
from libs.talos.resources import Part
from services.metadata import announced_addresses, poll_schedule
from services.metadata.identity import verify
from services.metadata.inventory_polls import (
    NO_INVENTORY_POLL,
    InventoryPoll,
    apply_inventory_poll,
    find_blocking_fault,
    mark_inventory_doubtful,
    merge_inventory,
    select_parts,
)
from services.metadata.node_state import NEVER, NodeState
from services.metadata.poll_schedule import PollIntervals

_MAX_DISCARDED_POLLS: Final = 3
_ADDRESSES_CHANGING: Final = MachineFault(
    kind="bad_node_ip",
    step="provided-node-ip",
    message="the Node or its addresses change before the machine answers",
)


def apply_poll_success(
    state: NodeState,
    facts: MachineFacts,
    stored: EnrichedNode | None,
    *,
    all_nodes: Iterable[Node] | None,
    began: float,
    now: float,
    intervals: PollIntervals,
    jitter: float,
    inventory_poll: InventoryPoll = NO_INVENTORY_POLL,
) -> NodeState:
    """Apply the facts of a poll. `stored` is the message in the stream, which may need a correction."""
    node = state.node
    if node is None:
        return state
    identity = verify(node, facts, all_nodes)
    if isinstance(identity, MachineFault):
        return apply_poll_failure(state, identity, began=began, now=now, jitter=jitter)
    fault = _find_lost_metadata(state.last_known, facts) or find_blocking_fault(state, inventory_poll)
    if fault is not None:
        return apply_poll_failure(state, fault, began=began, now=now, jitter=jitter)
    facts = merge_inventory(state, facts, inventory_poll)
    blocked = not node.is_initialized and announced_addresses.must_keep_waiting(facts, state.dial_targets)
    incomplete = state.incomplete_polls + 1 if blocked or why_metadata_incomplete(facts.platform) else 0
    wait = (
        poll_schedule.delay_after_incomplete(incomplete, jitter)
        if incomplete
        else poll_schedule.delay_after_success(intervals, is_watched=state.is_watched, jitter=jitter)
    )
    state = msgspec.structs.replace(
        state,
        facts=facts,
        identity=identity,
        fault=None,
        foreign_machines=(),
        failures={},
        incomplete_polls=incomplete,
        last_known=facts,
        polled_at=began,
        next_poll_at=min(
            now + wait,
            _next_poll_after_change(state, intervals) if _last_change_at(state) >= began else NEVER,
        ),
        must_poll_first=False,
        published=stored if stored is not None else state.published,
    )
    return apply_inventory_poll(
        state, inventory_poll, began=began, now=now, intervals=intervals, jitter=jitter
    )


def apply_poll_failure(
    state: NodeState,
    fault: MachineFault,
    *,
    began: float,
    now: float,
    jitter: float,
    foreign_machines: tuple[ForeignMachine, ...] = (),
) -> NodeState:
    """Replace the facts by a fault and set the next poll with back-off. `last_known` keeps the old facts.

    `foreign_machines`: the machines that answer in place of the Node's machine.
    """
    failures = poll_schedule.count_failure(state.failures, fault)
    return msgspec.structs.replace(
        state,
        facts=None,
        identity=None,
        fault=fault,
        foreign_machines=foreign_machines,
        failures=failures,
        incomplete_polls=0,
        polled_at=began,
        next_poll_at=now + poll_schedule.delay_after_failure(failures, fault, jitter),
        must_poll_first=False,
    )


def apply_discarded_poll(state: NodeState, count: int) -> NodeState:
    """Handle `count` discarded polls in a row: the Node's uid or addresses changed during each.

    If nothing was published about the Node, these changes become its fault. The next poll stays due.
    """
    event = state.published
    is_reported = isinstance(event, NodeEnriched | NodeUnreachable) and event.node.uid == state.uid
    if count < _MAX_DISCARDED_POLLS or is_reported or not state.dial_targets:
        return state
    return msgspec.structs.replace(
        state,
        fault=_ADDRESSES_CHANGING,
        failures=poll_schedule.count_failure(state.failures, _ADDRESSES_CHANGING),
    )


def expedite_poll(state: NodeState, *, now: float, within: float) -> NodeState:
    """Poll in `within` seconds at the latest."""
    return (
        msgspec.structs.replace(state, next_poll_at=min(state.next_poll_at, now + within))
        if state.dial_targets
        else state
    )


def apply_needed_parts(
    state: NodeState, needed: frozenset[Part], *, now: float, within: float, intervals: PollIntervals
) -> NodeState:
    """Poll in `within` seconds at the latest if the state has not all needed inventory parts."""
    if state.facts is None or not select_parts(state, needed, now=now, intervals=intervals):
        return state
    return expedite_poll(state, now=now, within=within)


def apply_contradiction(state: NodeState, *, now: float, intervals: PollIntervals) -> NodeState:
    """Poll if this replica has facts but the stream has none. After a successful poll the facts win."""
    if state.facts is None:
        return state
    return msgspec.structs.replace(
        state, next_poll_at=min(state.next_poll_at, max(now, state.polled_at + intervals.min_gap))
    )


def apply_watch_opened(
    state: NodeState, snapshot: WatchSnapshot, *, now: float, intervals: PollIntervals
) -> NodeState:
    """Mark the machine as watched. Poll if the snapshot differs from the facts.

    The next scheduled poll stays due: it reads resources that are not watched.
    """
    state = msgspec.structs.replace(state, is_watched=True, watch_opened_at=now)
    if state.facts is not None and snapshot.matches(state.facts):
        return state
    return apply_machine_change(state, now=now, intervals=intervals)


def mark_unwatched(state: NodeState) -> NodeState:
    """Mark the machine as unwatched: the previous watch was on another machine or address."""
    return msgspec.structs.replace(state, is_watched=False)


def apply_machine_change(state: NodeState, *, now: float, intervals: PollIntervals) -> NodeState:
    """Poll after a change that a live watch reported. The debounce lets further events of the burst pass."""
    state = msgspec.structs.replace(state, is_watched=True, machine_changed_at=now)
    return msgspec.structs.replace(
        state, next_poll_at=min(state.next_poll_at, _next_poll_after_change(state, intervals))
    )


def apply_watch_ended(state: NodeState, *, now: float, within: float) -> NodeState:
    """Poll in `within` seconds at the latest, and query the whole inventory: changes are not reported now."""
    state = mark_inventory_doubtful(expedite_poll(state, now=now, within=within))
    return msgspec.structs.replace(state, is_watched=False)


def _find_lost_metadata(last_known: MachineFacts | None, facts: MachineFacts) -> MachineFault | None:
    """Return a fault if the cloud metadata is incomplete now, as in a reboot, so that nothing is removed."""
    reason = why_metadata_incomplete(facts.platform)
    if not reason or last_known is None or why_metadata_incomplete(last_known.platform):
        return None
    if facts.platform.platform not in {"", last_known.platform.platform}:
        return None
    return MachineFault(
        kind="not_found",
        step="PlatformMetadata",
        message=f"{reason}, though it had (is the machine at {facts.node_ip} starting?); what it said stands",
    )


def _next_poll_after_change(state: NodeState, intervals: PollIntervals) -> float:
    return max(_last_change_at(state) + intervals.debounce, state.polled_at + intervals.min_gap)


def _last_change_at(state: NodeState) -> float:
    return max(state.machine_changed_at, state.watch_opened_at)
