"""Reconciles one Node until it is gone: polls its machine, publishes the result, waits for changes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from libs.common.bus.ordered_publisher import PublishOutcome
from libs.common.bus.protocol import Message
from libs.common.contract.events import (
    EnrichedNode,
    EnrichedNodeGone,
    EventError,
    NodeUnreachable,
    ObservedNode,
)
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.observability.telemetry import log_fields
from services.metadata.clock import Clock, Wakeup
from services.metadata.core.event_equivalence import is_same_fault
from services.metadata.core.identity import verify
from services.metadata.core.inventory_state import InventoryPoll
from services.metadata.core.node_state import NodeState
from services.metadata.core.node_step import PollMachine, decide_node_step
from services.metadata.core.object_state import ForgetObject, Publish, Timing, Wait
from services.metadata.core.outage_detector import OutageDetector
from services.metadata.core.shown_addresses import ShownAddresses
from services.metadata.enrichment_publisher import EnrichmentPublisher
from services.metadata.machines.machine_watcher import MachineWatcher
from services.metadata.machines.query_machine import QueryFailure, QueryResult, QuerySlots, query_in_turn
from services.metadata.machines.replacement_detector import ReplacementDetector
from services.metadata.machines.talos_client import TalosClient
from services.metadata.node_registry import NodeRegistry
from services.metadata.poll_requirements import PollRequirements

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class NodeReconciler:
    """Owns the state of one Node and takes its steps one by one: never two polls at once."""

    name: str
    state: NodeState
    clock: Clock
    publisher: EnrichmentPublisher[EnrichedNode]
    nodes: NodeRegistry
    outage: OutageDetector
    requirements: PollRequirements
    watcher: MachineWatcher
    talos: TalosClient
    slots: QuerySlots
    deadline_seconds: float  # of each query
    replacements: ReplacementDetector

    def __post_init__(self) -> None:
        self._wakeup = Wakeup(self.clock)
        self._shown_addresses = ShownAddresses()
        self._poll_began: float | None = None  # start of the poll whose result is not published yet

    def on_started(self, *, is_live: bool) -> None:
        """Tell others that there is such a Node. If it appeared live, no machine had its addresses before."""
        self._shown_addresses.is_up_to_date = is_live and self.nodes.is_complete
        self.nodes.notify(self.name)

    def on_observed(self, message: Message, event: ObservedNode, *, is_live: bool) -> None:
        """Apply a newer observation of the watcher. If it is live, another uid is a new Node."""
        uid = self.state.uid
        self._set_state(
            self.state.observed(
                message,
                event,
                all_nodes=self.nodes.list_nodes(),
                prefer_ipv6=self.requirements.prefer_ipv6,
                timing=self.clock.timing(),
            )
        )
        if self.state.uid != uid:
            self._shown_addresses.is_up_to_date = is_live and self.nodes.is_complete

    async def run(self) -> None:
        """Run until the Node is gone and EnrichedNodeGone is published."""
        with log_fields(node=self.name):
            while await self._step():
                pass

    async def _step(self) -> bool:
        self._wakeup.clear()
        match decide_node_step(self.state, now=self.clock.monotonic(), wall_time=self.clock.now()):
            case PollMachine(addresses=addresses):
                await self._poll(addresses)
            case Publish(event=event):
                await self._publish(event)
            case Wait(until=until):
                self.publisher.record_started()  # the observation needs no other step
                self._shown_addresses.is_up_to_date |= self.state.is_published
                await self._wakeup.wait(until)
            case ForgetObject():
                return False
        return True

    async def _poll(self, addresses: tuple[str, ...]) -> None:
        uid = self.state.uid
        attributes = {"k8s.node.name": self.name, "k8s.node.uid": uid}
        async with self.slots.acquire():
            began = self._poll_began = self.clock.monotonic()
            needed, intervals = self.requirements.needed_parts, self.clock.intervals
            state = self.state
            parts = state.inventory.select_parts(state.facts, needed, now=began, intervals=intervals)
            with self.publisher.span("look at machine", self.state.observation, attributes, kind="client"):
                self.publisher.record_started()
                found = await query_in_turn(
                    self.talos,
                    addresses,
                    parts=parts,
                    deadline_seconds=self.deadline_seconds,
                    reject=self._reject,
                    with_system=self.requirements.needs_system,
                )
                foreign_machines = await self._detect_replacements(found)
        if self.state.dial_targets != addresses or self.state.uid != uid:
            # The observation that caused the poll is outdated; the next poll is due.
            log.info("poll discarded, the Node or its addresses have changed")
            return
        before, timing = self.state, self.clock.timing()
        if isinstance(found, QueryFailure):
            after = before.poll_failed(
                found.fault, began=began, timing=timing, foreign_machines=foreign_machines
            )
        else:
            needed = self.requirements.needed_parts
            after = before.polled(
                found.facts,
                self._get_stored(),
                all_nodes=self.nodes.list_nodes(),
                began=began,
                timing=timing,
                inventory_poll=InventoryPoll(
                    needed_parts=needed, requested_parts=parts, answer=found.inventory
                ),
            )
        _log_poll(before, after)
        self._set_state(after)
        for name in self.outage.record_poll(self.name, after.fault, began=began, now=timing.now):
            self.nodes.expedite_poll(name, self.clock.random())  # spread over a second

    def _get_stored(self) -> EnrichedNode | None:
        """Return the event in the stream; None if the last known message is lost, or has not arrived yet."""
        event, sequence = self._shown_addresses.last
        is_last = sequence >= self.publisher.last_sequence
        return event if is_last and not self._shown_addresses.is_lost else None

    def _reject(self, facts: MachineFacts) -> MachineFault | None:
        node = self.state.node
        identity = verify(node, facts, self.nodes.list_nodes()) if node is not None else None
        if not isinstance(identity, MachineFault):
            return None
        self.replacements.record_sighting(facts)
        return identity

    async def _detect_replacements(self, found: QueryResult | QueryFailure) -> tuple[ForeignMachine, ...]:
        node = self.state.node
        if isinstance(found, QueryResult) or not found.rejected or node is None:
            return ()
        foreign_machines = await self.replacements.detect(node, found.rejected)
        after = self.state.node
        # The queried addresses are those of the old status: with another status, the result proves nothing.
        return foreign_machines if after is not None and after.status == node.status else ()

    async def _publish(self, event: EnrichedNode) -> None:
        event = self._shown_addresses.add_history(event)
        outcome = await self.publisher.publish(event, self.state.observation)
        state, timing = self.state, self.clock.timing()
        if not state.observation.is_current(event):
            return  # it was published to a stream that no longer exists
        self._log_published(event, outcome, timing.now)
        match outcome:
            case EventError() if not isinstance(event, EnrichedNodeGone):
                self._set_state(state.message_oversized(str(outcome), timing))
            case Exception() if not isinstance(outcome, EventError):
                self._shown_addresses.is_up_to_date = False
                self._set_state(replace(state, publication=state.publication.failed(timing)))
            case PublishOutcome.TIED if state.dial_targets:
                self._set_state(state.publish_conflicted(event, now=timing.now))
            case _:
                self._set_state(state.published(event, timing))
                if outcome is PublishOutcome.PUBLISHED:
                    self._shown_addresses.published(event, self.publisher.last_sequence)

    def _log_published(self, event: EnrichedNode, outcome: PublishOutcome | Exception, now: float) -> None:
        began, self._poll_began = self._poll_began, None
        seconds = 0.0 if began is None else now - began
        state, reason = self.state, "the Node is gone"
        if state.fault is not None:
            reason = state.fault.message
        elif state.identity is not None:
            reason = state.identity.reason
        self.publisher.log_outcome(event, outcome, state.publication, reason=reason, seconds=seconds)

    def _set_state(self, state: NodeState) -> None:
        if state is self.state:
            return
        if state.watch_address != self.state.watch_address:
            self.watcher.set_target(self.name, state.watch_address)
            state = replace(state, is_watched=False)  # the previous watch was on another machine
        self.state = state
        self._wakeup.set()
        self.nodes.notify(self.name)

    # ---- other events

    def on_stream_replaced(self) -> None:
        """Forget the published message, which is lost, and wait until the new stream has the Node."""
        self._shown_addresses = ShownAddresses()
        self._set_state(self.state.stream_replaced())

    def on_stored(self, event: EnrichedNode | None, sequence: int, /) -> None:
        """Apply the last message of the stream, perhaps our own. Without one, publish again: NATS lost it."""
        publication = self.state.publication
        if event is not None:
            self._shown_addresses.receive(event, sequence)
            if isinstance(event, NodeUnreachable) and event != publication.event:
                self.apply(NodeState.contradicted)
            return
        self._shown_addresses.is_lost = True
        if publication.event is not None:
            self._set_state(replace(self.state, publication=publication.lost()))

    def apply(self, change: Callable[[NodeState, Timing], NodeState]) -> None:
        """Apply a change of the state that another part of metadata observed."""
        self._set_state(change(self.state, self.clock.timing()))

    def on_bus_reconnect(self) -> None:
        """Publish within a second what the bus rejected before."""
        if (publication := self.state.publication).failures:
            self._set_state(replace(self.state, publication=publication.reconnected(self.clock.timing())))

    def on_forgotten(self) -> None:
        """End the watch and the probes of the machine."""
        self.outage.forget(self.name)
        self.watcher.set_target(self.name, "")
        self.nodes.notify(self.name)


def _log_poll(before: NodeState, after: NodeState) -> None:
    """Log the poll result, at DEBUG if it is a success or repeats the last failure."""
    if after.fault is not None:
        level = logging.DEBUG if is_same_fault(before.fault, after.fault) else logging.WARNING
        fields = {"fault": after.fault.kind, "step": after.fault.step, "reason": after.fault.message}
        log.log(level, "poll failed", extra=fields)
        if after.foreign_machines and not before.foreign_machines:
            answered_by = {each.address: each.node_name for each in after.foreign_machines}
            log.warning("other machines answer at the Node's addresses", extra={"answered_by": answered_by})
    elif after.identity is not None:
        # the line about the published message has the same reason
        log.debug("machine verified", extra={"reason": after.identity.reason})
        for part in after.inventory.missing_parts.keys() - before.inventory.missing_parts.keys():
            fault = after.inventory.missing_parts[part]
            fields = {"fault": fault.kind, "step": fault.step, "reason": fault.message}
            log.warning("inventory part missing, rules that need it are not evaluated", extra=fields)
