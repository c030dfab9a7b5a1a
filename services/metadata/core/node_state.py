"""The state of one Node in metadata, and all its changes. All times are monotonic seconds."""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from libs.common.bus.protocol import Message
from libs.common.contract.events import EnrichedNode, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault, why_metadata_incomplete
from libs.common.contract.node import Node, share_equal_parts
from libs.talos.machine_events import WatchSnapshot
from libs.talos.resources import Part
from services.metadata.core.dial_targets import must_keep_waiting, order_dial_targets
from services.metadata.core.event_equivalence import differs_only_in_pod_cidrs
from services.metadata.core.identity import MachineIdentity, verify
from services.metadata.core.inventory_state import NO_INVENTORY_POLL, InventoryPoll, InventoryState
from services.metadata.core.object_state import (
    LONG_AGO,
    NEVER,
    Failures,
    Observation,
    PollIntervals,
    Publication,
    Timing,
    count_failure,
    make_observation,
)


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """All data about one Node. It has facts, or a fault, or neither (not polled yet), but never both."""

    observation: Observation[NodeObserved | NodeGone]
    publication: Publication[EnrichedNode]
    inventory: InventoryState = InventoryState()

    dial_targets: tuple[str, ...] = ()  # in this order; () = not ours, or no valid address
    facts: MachineFacts | None = None
    identity: MachineIdentity | None = None
    fault: MachineFault | None = None
    foreign_machines: tuple[ForeignMachine, ...] = ()  # with the fault: the machines that answer in its place
    last_known: MachineFacts | None = None  # the last good facts, perhaps published by another replica

    failures: Failures = {}
    incomplete_polls: int = 0  # in a row, without complete cloud metadata or blocked by an announced address
    polled_at: float = LONG_AGO  # start of the last poll, successful or not
    next_poll_at: float = 0.0  # when the next poll is due
    must_poll_first: bool = False  # another replica published about the same observation: poll, then publish

    is_watched: bool = False  # a live watch reports changes
    watch_opened_at: float = LONG_AGO  # a poll in progress when the last watch opened may return older data
    machine_changed_at: float = LONG_AGO  # when a watch last reported a change, or ended

    @property
    def uid(self) -> str:
        """The uid of the Node."""
        return self.observation.uid

    @property
    def node(self) -> Node | None:
        """The Node as last observed, None if it is gone."""
        return self.observation.event.node if isinstance(self.observation.event, NodeObserved) else None

    @property
    def is_published(self) -> bool:
        """Whether the stream has the last poll result: asked only when no step is due."""
        has_result = self.facts is not None or self.fault is not None
        return has_result and self.publication.event is not None and not self.publication.is_uncertain

    @property
    def watch_address(self) -> str:
        """The address of the verified machine of this Node, "" if there is none now."""
        return self.facts.node_ip if self.facts and self.identity and self.node else ""

    # ---- observations

    def observed(
        self,
        message: Message,
        event: NodeObserved | NodeGone,
        *,
        all_nodes: Iterable[Node] | None,
        prefer_ipv6: bool,
        timing: Timing,
    ) -> "NodeState":
        """Return the state after a newer observation. Another uid is another Node and starts a new state."""
        before = self.node
        if isinstance(event, NodeObserved) and before is not None:
            # The published message keeps an older Node: memory contains their equal parts once.
            event = replace(event, node=share_equal_parts(event.node, before))
        observation = make_observation(message, event, self.observation)
        if before is None or observation.uid != self.uid:
            stored = self.publication.restarted(timing)
            return create_state(observation, stored, now=timing.now, prefer_ipv6=prefer_ipv6)
        if self.observation.is_replay(message):
            return self
        state = replace(self, observation=observation, must_poll_first=False)
        if isinstance(event, NodeGone):
            return replace(state, dial_targets=(), publication=state.publication.without_backoff())
        if event.node.provided_node_ip != before.provided_node_ip:
            return _with_new_dial_targets(state, now=timing.now, prefer_ipv6=prefer_ipv6)
        if differs_only_in_pod_cidrs(before, event.node):
            return state
        return state.verified_again(before, event.node, all_nodes, timing)

    def verified_again(
        self, before: Node, node: Node, all_nodes: Iterable[Node] | None, timing: Timing
    ) -> "NodeState":
        """Verify the facts against the changed Node with the same address, and keep them if they match."""
        now = timing.now
        if self.facts is None:
            is_other_machine = before.status.node_info != node.status.node_info
            has_other_addresses = before.status.addresses != node.status.addresses
            # The replacement was detected for the old node info and addresses.
            state = replace(self, foreign_machines=()) if is_other_machine or has_other_addresses else self
            return replace(state, next_poll_at=now) if is_other_machine and self.dial_targets else state
        identity = verify(node, self.facts, all_nodes)
        if isinstance(identity, MachineFault):
            return replace(self, facts=None, identity=None, next_poll_at=now)
        is_fresh = self.is_watched or now - self.polled_at < timing.intervals.freshness
        return replace(self, identity=identity, next_poll_at=self.next_poll_at if is_fresh else now)

    def stream_replaced(self) -> "NodeState":
        """Forget the published message and sequence, which the old stream took along. Keep the facts."""
        return replace(
            self,
            observation=self.observation.stale(),
            publication=self.publication.lost(),
            must_poll_first=False,
        )

    # ---- polls

    def polled(
        self,
        facts: MachineFacts,
        stored: EnrichedNode | None,
        *,
        all_nodes: Iterable[Node] | None,
        began: float,
        timing: Timing,
        inventory_poll: InventoryPoll = NO_INVENTORY_POLL,
    ) -> "NodeState":
        """Apply the facts of a poll. `stored` is the message in the stream, which may need a correction."""
        node = self.node
        if node is None:
            return self
        identity = self._judge_poll(node, facts, all_nodes, inventory_poll)
        if isinstance(identity, MachineFault):
            return self.poll_failed(identity, began=began, timing=timing)
        facts = inventory_poll.merge(self.facts, facts)
        inventory, inventory_due = self.inventory.polled(facts, inventory_poll, began=began, timing=timing)
        blocked = not node.is_initialized and must_keep_waiting(facts, self.dial_targets)
        incomplete = self.incomplete_polls + 1 if blocked or why_metadata_incomplete(facts.platform) else 0
        wait = (
            timing.after_incomplete(incomplete)
            if incomplete
            else timing.after_success(is_watched=self.is_watched, is_first=self.facts is None)
        )
        changed_at = max(self.machine_changed_at, self.watch_opened_at)
        change_due = self._due_after_change(changed_at, timing.intervals) if changed_at >= began else NEVER
        return replace(
            self,
            facts=facts,
            identity=identity,
            fault=None,
            foreign_machines=(),
            last_known=facts,
            inventory=inventory,
            failures={},
            incomplete_polls=incomplete,
            polled_at=began,
            next_poll_at=min(timing.now + wait, inventory_due, change_due),
            must_poll_first=False,
            publication=replace(self.publication, event=stored or self.publication.event),
        )

    def _judge_poll(
        self, node: Node, facts: MachineFacts, all_nodes: Iterable[Node] | None, inventory_poll: InventoryPoll
    ) -> MachineIdentity | MachineFault:
        """Return the proof that these facts are of the Node, or why they must not replace others."""
        identity = verify(node, facts, all_nodes)
        if isinstance(identity, MachineFault):
            return identity
        lost = _find_lost_metadata(self.last_known, facts)
        return lost or inventory_poll.find_blocking_fault(self.facts, self.failures) or identity

    def poll_failed(
        self,
        fault: MachineFault,
        *,
        began: float,
        timing: Timing,
        foreign_machines: tuple[ForeignMachine, ...] = (),
    ) -> "NodeState":
        """Replace the facts by a fault and set the next poll with back-off. `last_known` keeps the old facts.

        `foreign_machines`: the machines that answer in place of the Node's machine.
        """
        failures = count_failure(self.failures, fault)
        return replace(
            self,
            facts=None,
            identity=None,
            fault=fault,
            foreign_machines=foreign_machines,
            failures=failures,
            incomplete_polls=0,
            polled_at=began,
            next_poll_at=timing.now + timing.after_failure(failures, fault),
            must_poll_first=False,
        )

    def poll_within(self, seconds: float, timing: Timing) -> "NodeState":
        """Poll in so many seconds at the latest."""
        next_poll_at = min(self.next_poll_at, timing.now + seconds)
        return replace(self, next_poll_at=next_poll_at) if self.dial_targets else self

    def requirements_changed(
        self,
        timing: Timing,
        *,
        needed: frozenset[Part],
        needs_system: bool,
        prefer_ipv6: bool,
        within: float,
    ) -> "NodeState":
        """Poll in `within` seconds at the latest if a needed part is missing or the address family changed.

        The facts hold until that poll succeeds.
        """
        state, addresses = self, _find_dial_targets(self.node, prefer_ipv6=prefer_ipv6)
        if not isinstance(addresses, MachineFault) and addresses != self.dial_targets:
            next_poll_at = min(self.next_poll_at, timing.now + within)
            state = replace(self, dial_targets=addresses, next_poll_at=next_poll_at)
        if state.facts is None:
            return state
        lacks_system = needs_system and state.facts.system is None
        lacks_parts = state.inventory.select_parts(
            state.facts, needed, now=timing.now, intervals=timing.intervals
        )
        return state.poll_within(within, timing) if lacks_system or lacks_parts else state

    # ---- watches

    def watch_opened(self, snapshot: WatchSnapshot, timing: Timing) -> "NodeState":
        """Mark the machine as watched. Poll if the snapshot differs from the facts.

        The next scheduled poll stays due: it reads resources that are not watched.
        """
        state = replace(self, is_watched=True, watch_opened_at=timing.now)
        if self.facts is not None and snapshot.matches(self.facts):
            return state
        return state.machine_changed(timing)

    def machine_changed(self, timing: Timing) -> "NodeState":
        """Poll after a change that a live watch reported. The debounce waits for the end of the burst."""
        next_poll_at = min(self.next_poll_at, self._due_after_change(timing.now, timing.intervals))
        return replace(self, is_watched=True, machine_changed_at=timing.now, next_poll_at=next_poll_at)

    def watch_ended(self, within: float, timing: Timing) -> "NodeState":
        """Poll in `within` seconds at the latest, with the whole inventory: no watch reports changes now.

        A poll that runs now may have been answered before the machine stopped, so another one follows it.
        """
        state = self.poll_within(within, timing)
        return replace(
            state, is_watched=False, machine_changed_at=timing.now, inventory=self.inventory.doubtful()
        )

    def _due_after_change(self, changed_at: float, intervals: PollIntervals) -> float:
        return max(changed_at + intervals.debounce, self.polled_at + intervals.min_gap)

    # ---- publishes

    def published(self, event: EnrichedNode, timing: Timing) -> "NodeState":
        """Set the published event and the time to republish it. The stream has this event or a newer one."""
        return replace(
            self,
            observation=self.observation.answered(event),
            publication=self.publication.published(event, timing),
        )

    def publish_conflicted(self, event: EnrichedNode, *, now: float) -> "NodeState":
        """Poll before the next publish: another replica published about the same observation."""
        if self.observation.sequence > event.observed_sequence or not self.dial_targets:
            return self
        publication = replace(self.publication, event=None)
        return replace(self, publication=publication, must_poll_first=True, next_poll_at=now)

    def message_oversized(self, why: str, timing: Timing) -> "NodeState":
        """Replace facts that make the message too large by a fault, so that it is published without them."""
        fault = MachineFault(kind="invalid", step="facts", message=why)
        return replace(self.poll_failed(fault, began=self.polled_at, timing=timing), last_known=None)

    def contradicted(self, timing: Timing) -> "NodeState":
        """Poll if this replica has facts but the stream has none. After a successful poll the facts win."""
        if self.facts is None:
            return self
        earliest = self.polled_at + timing.intervals.min_gap
        return self.poll_within(max(0.0, earliest - timing.now), timing)


def create_state(
    observation: Observation[NodeObserved | NodeGone],
    stored: Publication[EnrichedNode],
    *,
    now: float,
    prefer_ipv6: bool,
) -> NodeState:
    """Return the state of a new Node. Facts in the `stored` message become the last known facts."""
    last_known, event = None, stored.event
    if isinstance(event, NodeEnriched | NodeUnreachable) and event.node.uid == observation.uid:
        last_known = event.facts if isinstance(event, NodeEnriched) else event.last_known
    state = NodeState(observation=observation, publication=stored, last_known=last_known)
    return _with_new_dial_targets(state, now=now, prefer_ipv6=prefer_ipv6)


def _with_new_dial_targets(state: NodeState, *, now: float, prefer_ipv6: bool) -> NodeState:
    """Return the state for a Node with other addresses: facts and failures were about the old ones."""
    addresses = _find_dial_targets(state.node, prefer_ipv6=prefer_ipv6)
    fault = addresses if isinstance(addresses, MachineFault) else None
    targets = () if isinstance(addresses, MachineFault) else addresses
    return replace(
        state,
        dial_targets=targets,
        facts=None,
        identity=None,
        fault=fault,
        foreign_machines=(),
        failures=count_failure({}, fault) if fault else {},
        incomplete_polls=0,
        next_poll_at=now if targets else NEVER,
    )


def _find_dial_targets(node: Node | None, *, prefer_ipv6: bool) -> tuple[str, ...] | MachineFault:
    return order_dial_targets(node.provided_node_ip, prefer_ipv6=prefer_ipv6) if node is not None else ()


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
        message=f"{reason}, unlike before (is the machine at {facts.node_ip} starting?); "
        "metadata keeps the last facts",
    )
