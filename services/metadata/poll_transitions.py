"""How looks and watches change what is known of a Node."""

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
    """A machine answered. `heard` is what the stream holds, whoever said it: it may need correction."""
    node = state.node
    if node is None:
        return state
    recognized = verify(node, facts, all_nodes)
    if isinstance(recognized, MachineFault):
        return apply_poll_failure(state, recognized, began=began, now=now, jitter=jitter)
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
        identity=recognized,
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
    """No facts, and why. The last known ones stay known as such. `answered_by`: who answers in its place."""
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
    """`count` looks in a row were discarded: the Node's uid or addresses changed meanwhile.

    If nothing was published on the Node, these changes become its fault. The next look stays due.
    """
    said = state.published
    is_reported = isinstance(said, NodeEnriched | NodeUnreachable) and said.node.uid == state.uid
    if count < _MAX_DISCARDED_POLLS or is_reported or not state.dial_targets:
        return state
    return msgspec.structs.replace(
        state,
        fault=_ADDRESSES_CHANGING,
        failures=poll_schedule.count_failure(state.failures, _ADDRESSES_CHANGING),
    )


def expedite_poll(state: NodeState, *, now: float, within: float) -> NodeState:
    """Look within that many seconds, if not sooner (a cause of many failures has gone away)."""
    return (
        msgspec.structs.replace(state, next_poll_at=min(state.next_poll_at, now + within))
        if state.dial_targets
        else state
    )


def apply_needed_parts(
    state: NodeState, needed: frozenset[Part], *, now: float, within: float, intervals: PollIntervals
) -> NodeState:
    """The rules need another inventory: look within that many seconds, if they need more than is known."""
    if state.facts is None or not select_parts(state, needed, now=now, intervals=intervals):
        return state
    return expedite_poll(state, now=now, within=within)


def apply_contradiction(state: NodeState, *, now: float, intervals: PollIntervals) -> NodeState:
    """The stream says that there are no facts. Have we some, a look is due: if it is good, facts win."""
    if state.facts is None:
        return state
    return msgspec.structs.replace(
        state, next_poll_at=min(state.next_poll_at, max(now, state.polled_at + intervals.min_gap))
    )


def apply_watch_opened(
    state: NodeState, snapshot: WatchSnapshot, *, now: float, intervals: PollIntervals
) -> NodeState:
    """A watch is live. If it began with what the facts say, they hold; else a look is due.

    The look that was due anyway stays due: it reads what is not watched.
    """
    state = msgspec.structs.replace(state, is_watched=True, watch_opened_at=now)
    if state.facts is not None and snapshot.matches(state.facts):
        return state
    return apply_machine_change(state, now=now, intervals=intervals)


def mark_unwatched(state: NodeState) -> NodeState:
    """The watch there was is none on the machine that bears the Node now."""
    return msgspec.structs.replace(state, is_watched=False)


def apply_machine_change(state: NodeState, *, now: float, intervals: PollIntervals) -> NodeState:
    """A live watch is open and something happened: a look is due, once the flock of events has passed."""
    state = msgspec.structs.replace(state, is_watched=True, machine_changed_at=now)
    return msgspec.structs.replace(
        state, next_poll_at=min(state.next_poll_at, _next_poll_after_change(state, intervals))
    )


def apply_watch_ended(state: NodeState, *, now: float, within: float) -> NodeState:
    """Nobody tells of changes any more: look within that many seconds."""
    state = mark_inventory_doubtful(expedite_poll(state, now=now, within=within))
    return msgspec.structs.replace(state, is_watched=False)


def _find_lost_metadata(last_known: MachineFacts | None, facts: MachineFacts) -> MachineFault | None:
    """A rebooting machine says less than it did until its cloud answers: that must not take anything away."""
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
