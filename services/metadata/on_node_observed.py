"""Reconciles one Node until it is gone: polls its machine, publishes the result, waits for changes."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError, Message
from libs.common.contract.events import EnrichedNode, EnrichedNodeGone, EventError, NodeGone, NodeObserved
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.observability.telemetry import Span, SpanKind, log_fields, outgoing_headers, span
from libs.talos.machine_events import WatchSnapshot
from libs.talos.resources import Part
from libs.talos.waiter_event import WaiterEvent
from services.metadata import node_state, poll_transitions, publish_transitions
from services.metadata.identity import verify
from services.metadata.inventory_polls import InventoryPoll, select_parts
from services.metadata.latency import LatencyRecorder, TraceContext
from services.metadata.node_state import NEVER, NodeState
from services.metadata.node_step import (
    ForgetObject,
    PollMachine,
    PublishNode,
    Wait,
    decide_next_step,
    is_equivalent,
)
from services.metadata.poll_schedule import PollIntervals
from services.metadata.query_machine import (
    QueryFailure,
    QueryResult,
    QuerySlots,
    TalosClient,
    query_in_turn_with_rejected,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NodeCollaborators:
    """The objects that the reconcilers of all Nodes share."""

    talos: TalosClient
    publisher: OrderedPublisher
    slots: QuerySlots
    intervals: PollIntervals
    get_prefer_ipv6: Callable[[], bool]
    get_needed_parts: Callable[[], frozenset[Part]]  # the inventory that rules or ipam need
    query_timeout_seconds: float
    monotonic: Callable[[], float]
    now: Callable[[], datetime]
    random: random.Random
    list_all_nodes: Callable[[], Iterable[Node] | None]  # None while not all Nodes are known
    # the message in the stream about a Node, None if our last one is newer
    get_stored: Callable[[str], EnrichedNode | None]
    on_published: Callable[[str, EnrichedNode], None]  # the stream has this message of ours about the Node
    # the machines that replace the Node's machine, given the facts of those that answered at its addresses
    detect_replacements: Callable[[Node, tuple[MachineFacts, ...]], Awaitable[tuple[ForeignMachine, ...]]]
    record_sighting: Callable[[MachineFacts], None]  # a machine answered, but it is not the Node's machine
    on_polled: Callable[[str, MachineFault | None, float], None]  # name, fault, monotonic start of the poll
    on_state_change: Callable[[str], None]  # the state of that Node changed
    watch_machine: Callable[[str, str], None]  # name, address of the machine to watch ("" = none)
    on_finished: Callable[[str], None]  # the Node of that name is gone and this is published


class NodeReconciler:
    """Owns the state of one Node and takes its steps one by one: never two polls at once."""

    def __init__(self, name: str, state: NodeState, collaborators: NodeCollaborators) -> None:
        self.state = state
        self._name = name
        self._shared = collaborators
        self._wakeup = WaiterEvent()
        self.latency = LatencyRecorder(collaborators.now)
        self._trace = TraceContext()
        self._discarded_polls = 0  # in a row; the uid or dial targets changed during each
        self._poll_began: float | None = None  # start of the poll whose result is not published yet

    def on_observed(self, message: Message, observed: NodeObserved | NodeGone) -> None:
        """Apply a newer observation of the watcher."""
        self._trace.observe(self.state)
        self._set_state(
            node_state.apply_observation(
                self.state,
                message,
                observed,
                all_nodes=self._shared.list_all_nodes(),
                now=self._shared.monotonic(),
                intervals=self._shared.intervals,
                prefer_ipv6=self._shared.get_prefer_ipv6(),
            )
        )

    def on_stream_replaced(self) -> None:
        """Forget the published message, which is lost, and wait until the new stream has the Node."""
        self._set_state(node_state.mark_stale(self.state))

    def on_bus_reconnect(self) -> None:
        """Publish within a second what the bus rejected before."""
        now, jitter = self._shared.monotonic(), self._shared.random.random()
        self._set_state(publish_transitions.apply_bus_reconnect(self.state, now=now, jitter=jitter))

    def expedite_poll(self, within_seconds: float) -> None:
        """Poll within that time."""
        self._set_state(
            poll_transitions.expedite_poll(self.state, now=self._shared.monotonic(), within=within_seconds)
        )

    def on_rules_changed(self, within_seconds: float) -> None:
        """Apply changed rules: poll within that time if a part or the address family is now another."""
        now = self._shared.monotonic()
        state = node_state.apply_address_family(
            self.state, prefer_ipv6=self._shared.get_prefer_ipv6(), now=now, within=within_seconds
        )
        needed, intervals = self._shared.get_needed_parts(), self._shared.intervals
        self._set_state(
            poll_transitions.apply_needed_parts(
                state, needed, now=now, within=within_seconds, intervals=intervals
            )
        )

    def on_unreachable(self) -> None:
        """Handle a NodeUnreachable in the stream, which may contradict the facts of this replica."""
        self._set_state(
            poll_transitions.apply_contradiction(
                self.state, now=self._shared.monotonic(), intervals=self._shared.intervals
            )
        )

    def on_watch_opened(self, snapshot: WatchSnapshot) -> None:
        """Apply the snapshot with which a machine watch opened."""
        self._set_state(
            poll_transitions.apply_watch_opened(
                self.state, snapshot, now=self._shared.monotonic(), intervals=self._shared.intervals
            )
        )

    def on_machine_changed(self) -> None:
        """Handle a change that a live watch reported."""
        self._set_state(
            poll_transitions.apply_machine_change(
                self.state, now=self._shared.monotonic(), intervals=self._shared.intervals
            )
        )

    def on_watch_ended(self, within_seconds: float) -> None:
        """Handle the end of the watch: poll within that time."""
        self._set_state(
            poll_transitions.apply_watch_ended(
                self.state, now=self._shared.monotonic(), within=within_seconds
            )
        )

    async def run(self) -> None:
        """Run until the Node is gone and EnrichedNodeGone is published."""
        with log_fields(node=self._name):
            while True:
                self._wakeup.clear()
                match decide_next_step(
                    self.state, now=self._shared.monotonic(), wall_time=self._shared.now()
                ):
                    case PublishNode(event=event):
                        await self._publish(event)
                    case PollMachine(addresses=addresses):
                        await self._poll(addresses)
                    case Wait(until=until):
                        self.latency.record_started()  # the observation needs no other step
                        await self._wait(until)
                    case ForgetObject():
                        self._shared.on_finished(self._name)
                        return

    def _set_state(self, state: NodeState) -> None:
        if state is self.state:
            return
        if state.watch_address != self.state.watch_address:
            self._shared.watch_machine(self._name, state.watch_address)
            state = poll_transitions.mark_unwatched(state)
        self.state = state
        self._wakeup.set()
        self._shared.on_state_change(self._name)

    async def _wait(self, until: float) -> None:
        seconds = None if until == NEVER else max(0.0, until - self._shared.monotonic())
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            return

    async def _poll(self, addresses: tuple[str, ...]) -> None:
        uid = self.state.uid
        async with self._shared.slots.acquire():
            began = self._poll_began = self._shared.monotonic()
            parts = select_parts(
                self.state, self._shared.get_needed_parts(), now=began, intervals=self._shared.intervals
            )
            with self._span("look at machine", kind="client"):
                self.latency.record_started()
                found = await query_in_turn_with_rejected(
                    self._shared.talos,
                    addresses,
                    parts=parts,
                    deadline_seconds=self._shared.query_timeout_seconds,
                    reject=self._reject,
                )
                answered_by = await self._detect_replacements(found)
        if self.state.dial_targets != addresses or self.state.uid != uid:
            self._discarded_polls += 1  # the observation that caused the poll is outdated
            self._set_state(poll_transitions.apply_discarded_poll(self.state, self._discarded_polls))
            return
        self._discarded_polls = 0
        before, after = self.state, self._apply_poll(found, parts, answered_by, began)
        _log_outcome(before, after)
        self._set_state(after)
        self._shared.on_polled(self._name, after.fault, began)

    def _apply_poll(
        self,
        found: QueryResult | QueryFailure,
        parts: frozenset[Part],
        foreign_machines: tuple[ForeignMachine, ...],
        began: float,
    ) -> NodeState:
        now, jitter = self._shared.monotonic(), self._shared.random.random()
        if isinstance(found, QueryFailure):
            return poll_transitions.apply_poll_failure(
                self.state,
                found.fault,
                began=began,
                now=now,
                jitter=jitter,
                foreign_machines=foreign_machines,
            )
        return poll_transitions.apply_poll_success(
            self.state,
            found.facts,
            self._shared.get_stored(self._name),
            all_nodes=self._shared.list_all_nodes(),
            began=began,
            now=now,
            intervals=self._shared.intervals,
            jitter=jitter,
            inventory_poll=InventoryPoll(
                needed_parts=self._shared.get_needed_parts(), requested_parts=parts, answer=found.inventory
            ),
        )

    async def _detect_replacements(self, found: QueryResult | QueryFailure) -> tuple[ForeignMachine, ...]:
        node = self.state.node
        if isinstance(found, QueryResult) or not found.rejected or node is None:
            return ()
        answered_by = await self._shared.detect_replacements(node, found.rejected)
        # The queried addresses are those of the old status: with another status, the result proves nothing.
        is_the_same = self.state.node is not None and self.state.node.status == node.status
        return answered_by if is_the_same else ()

    def _reject(self, facts: MachineFacts) -> MachineFault | None:
        node = self.state.node
        identity = verify(node, facts, self._shared.list_all_nodes()) if node else None
        if not isinstance(identity, MachineFault):
            return None
        self._shared.record_sighting(facts)
        return identity

    async def _publish(self, event: EnrichedNode) -> None:
        with self._publish_span(event):
            self.latency.record_started()
            outcome: PublishOutcome | Exception
            try:
                outcome = await self._shared.publisher.publish(event, headers=outgoing_headers())
            except (BusError, TemporaryError, EventError) as error:
                outcome = error
        state, now, jitter = self.state, self._shared.monotonic(), self._shared.random.random()
        if state.is_stale or state.observation.stream_id != event.stream_id:
            return  # it was published to a stream that no longer exists
        self._log_published(event, outcome, now)
        match outcome:
            case EventError() if isinstance(event, EnrichedNodeGone):
                self._shared.on_finished(self._name)
            case EventError():
                self._set_state(
                    publish_transitions.apply_oversized_message(state, str(outcome), now=now, jitter=jitter)
                )
            case Exception():
                self._set_state(publish_transitions.apply_publish_failure(state, now=now, jitter=jitter))
            case PublishOutcome.TIED if state.dial_targets:
                self._set_state(publish_transitions.apply_publish_conflict(state, event, now=now))
            case _:
                self._set_state(
                    publish_transitions.apply_published(
                        state, event, now=now, intervals=self._shared.intervals, jitter=jitter
                    )
                )
                self._shared.on_published(self._name, event)

    def _log_published(self, event: EnrichedNode, outcome: PublishOutcome | Exception, now: float) -> None:
        """Log one line per published message, at DEBUG if it failed or repeats the last one."""
        state, began = self.state, now if self._poll_began is None else self._poll_began
        self._poll_began = None
        failed = isinstance(outcome, Exception)
        fields = {
            "event": type(event).__name__,
            "attempt": 1 + state.publish_failures,
            "outcome": "refused" if isinstance(outcome, Exception) else outcome.value,
            "reason": str(outcome) if failed else _publish_reason(state),
            "seconds": round(now - began, 4),
        }
        is_repeated = failed or (state.published is not None and is_equivalent(state.published, event))
        log.log(logging.DEBUG if is_repeated else logging.INFO, "handled", extra=fields)

    def _span(self, name: str, *, kind: SpanKind) -> AbstractContextManager[Span]:
        """Start a span in the trace of the newest observation, or linked to it once that is answered."""
        parent, links = self._trace.parent_and_links(self.state)
        attributes = {"k8s.node.name": self._name, "k8s.node.uid": self.state.uid}
        return span(name, kind=kind, parent_headers=parent, links=links, attributes=attributes)

    def _publish_span(self, event: EnrichedNode) -> AbstractContextManager[Span]:
        parent, links = self._trace.parent_and_links(self.state)
        return self._shared.publisher.publish_span(event, parent_headers=parent, links=links)


def _publish_reason(state: NodeState) -> str:
    if state.fault is not None:
        return state.fault.message
    return state.identity.reason if state.identity is not None else "the Node is gone"


def _log_outcome(before: NodeState, after: NodeState) -> None:
    """Log the poll result; at DEBUG if it repeats the last one."""
    if after.fault is not None:
        is_repeated = before.fault is not None and (before.fault.kind, before.fault.step) == (
            after.fault.kind,
            after.fault.step,
        )
        level = logging.DEBUG if is_repeated else logging.WARNING
        fields = {"fault": after.fault.kind, "step": after.fault.step, "reason": after.fault.message}
        log.log(level, "the machine gives no facts", extra=fields)
        if after.foreign_machines and not before.foreign_machines:
            answered_by = {each.address: each.node_name for each in after.foreign_machines}
            log.warning("other machines answer where the Node's should", extra={"answered_by": answered_by})
    elif after.identity is not None:
        level = logging.INFO if before.identity != after.identity else logging.DEBUG
        log.log(level, "the machine says what it is", extra={"reason": after.identity.reason})
        for part in after.missing_parts.keys() - before.missing_parts.keys():
            fault = after.missing_parts[part]
            fields = {"fault": fault.kind, "step": fault.step, "reason": fault.message}
            log.warning(
                "the machine does not tell what rules or ipam need; what needs it is not judged",
                extra=fields,
            )
