"""The state of one Node in metadata, and how observations change it. All times are monotonic seconds."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.common.bus.protocol import Message
from libs.common.contract.events import EnrichedNode, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node, NodeSpec, is_same_node
from libs.talos.resources import Part
from services.metadata import poll_schedule
from services.metadata.dial_targets import order_dial_targets
from services.metadata.identity import MachineIdentity, verify
from services.metadata.poll_schedule import Failures, PollIntervals

NEVER: Final = math.inf
LONG_AGO: Final = -math.inf


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """All data about one Node. It has facts, or a fault, or neither (not polled yet), but never both."""

    observation: NodeObserved | NodeGone  # the newest observation
    observed_sequence: int  # its sequence in the stream
    trace_headers: Mapping[str, str] = {}  # its trace context
    is_answered: bool = False  # a message was published since it arrived
    is_stale: bool = False  # it is from a lost stream; the present one does not have the Node yet

    dial_targets: tuple[str, ...] = ()  # in this order; () = not ours, or no valid address
    facts: MachineFacts | None = None
    identity: MachineIdentity | None = None
    fault: MachineFault | None = None
    foreign_machines: tuple[ForeignMachine, ...] = ()  # with the fault: the machines that answer in its place
    failures: Failures = {}
    incomplete_polls: int = (
        0  # in a row, each without complete cloud metadata or blocked by an announced address
    )
    missing_parts: Mapping[Part, MachineFault] = {}  # inventory parts that the machine did not give, and why
    incomplete_inventory_polls: int = 0  # in a row, each with parts still to be requested
    inventory_polled_at: float = LONG_AGO  # start of the last complete inventory poll
    last_known: MachineFacts | None = None  # the last good facts, perhaps published by another replica
    polled_at: float = LONG_AGO  # start of the last poll, successful or not
    next_poll_at: float = 0.0  # when the next poll is due
    is_watched: bool = False  # a live watch reports changes
    watch_opened_at: float = LONG_AGO  # a poll in progress when the last watch opened may return older data
    machine_changed_at: float = LONG_AGO  # when a watch last reported a change

    published: EnrichedNode | None = None  # the last message of this replica or another one
    republish_at: float = NEVER  # when it is published again, unchanged
    must_poll_first: bool = (
        False  # another replica published about the same observation: poll before publishing
    )
    publish_failures: int = 0  # in a row
    publish_after: float = LONG_AGO

    @property
    def uid(self) -> str:
        return get_uid(self.observation)

    @property
    def node(self) -> Node | None:
        """The Node as last observed, None if it is gone."""
        return self.observation.node if isinstance(self.observation, NodeObserved) else None

    @property
    def watch_address(self) -> str:
        """The address of the verified machine of this Node, "" if there is none now."""
        sure = self.facts is not None and self.identity is not None and self.node is not None
        return self.facts.node_ip if sure and self.facts else ""


def differs_only_in_pod_cidrs(one: Node, other: Node) -> bool:
    """Return whether two Nodes differ at most in podCIDRs, so that metadata need not publish again.

    No machine reports podCIDRs and no rule reads them. ipam writes them and reads them from the watcher. Each
    message that changes nothing else would make every consumer reconcile the Node again.
    """
    if (one.metadata.name, one.uid, one.status) != (other.metadata.name, other.uid, other.status):
        return False
    return is_same_node(one, msgspec.structs.replace(other, spec=_copy_pod_cidrs(one, other)))


def _copy_pod_cidrs(one: Node, other: Node) -> NodeSpec:
    source = one.spec
    return msgspec.structs.replace(other.spec, pod_cidr=source.pod_cidr, pod_cidrs=source.pod_cidrs)


def get_uid(event: NodeObserved | NodeGone) -> str:
    """Return the uid of the observed Node."""
    return event.uid if isinstance(event, NodeGone) else event.node.uid


def create_state(
    message: Message,
    observed: NodeObserved | NodeGone,
    stored: EnrichedNode | None,
    *,
    republish_in: float,
    now: float,
    prefer_ipv6: bool,
) -> NodeState:
    """Return the state of a new Node. Facts in the `stored` message become the last known facts.

    If nothing changes, the stored message is published again in `republish_in` seconds.
    """
    state = NodeState(
        observation=observed,
        observed_sequence=message.sequence,
        trace_headers=message.headers,
        next_poll_at=now,
        last_known=_extract_facts(stored, get_uid(observed)),
        published=stored,
        republish_at=now + republish_in,
    )
    return _set_dial_targets(state, now=now, prefer_ipv6=prefer_ipv6)


def apply_observation(
    state: NodeState,
    message: Message,
    observed: NodeObserved | NodeGone,
    *,
    all_nodes: Iterable[Node] | None,
    now: float,
    intervals: PollIntervals,
    prefer_ipv6: bool,
) -> NodeState:
    """Return the state after a newer observation. Another uid is another Node and starts a new state."""
    if state.node is None or get_uid(observed) != state.uid:
        return create_state(
            message,
            observed,
            state.published,
            republish_in=intervals.republish,
            now=now,
            prefer_ipv6=prefer_ipv6,
        )
    if message.sequence <= state.observed_sequence and not state.is_stale:
        return state  # a replay after the connection was lost
    before = state.node
    state = msgspec.structs.replace(
        state,
        observation=observed,
        observed_sequence=message.sequence,
        trace_headers=message.headers,
        is_answered=False,
        is_stale=False,
        must_poll_first=False,
    )
    if isinstance(observed, NodeGone):
        return msgspec.structs.replace(state, dial_targets=(), publish_after=LONG_AGO, publish_failures=0)
    if observed.node.provided_node_ip != before.provided_node_ip:
        return _set_dial_targets(state, now=now, prefer_ipv6=prefer_ipv6)
    if differs_only_in_pod_cidrs(before, observed.node):
        return state
    return _verify_again(state, before, observed.node, all_nodes=all_nodes, now=now, intervals=intervals)


def apply_address_family(state: NodeState, *, prefer_ipv6: bool, now: float, within: float) -> NodeState:
    """Reorder the dial targets and poll `within` seconds. The facts hold until that poll succeeds."""
    node = state.node
    addresses = order_dial_targets(node.provided_node_ip, prefer_ipv6=prefer_ipv6) if node else ()
    if isinstance(addresses, MachineFault) or addresses == state.dial_targets:
        return state
    return msgspec.structs.replace(
        state, dial_targets=addresses, next_poll_at=min(state.next_poll_at, now + within)
    )


def mark_stale(state: NodeState) -> NodeState:
    """Forget the published message and sequence, which the old stream took along. Keep the facts."""
    return msgspec.structs.replace(
        state, is_stale=True, published=None, republish_at=NEVER, observed_sequence=0, must_poll_first=False
    )


def _set_dial_targets(state: NodeState, *, now: float, prefer_ipv6: bool) -> NodeState:
    node = state.node
    addresses = order_dial_targets(node.provided_node_ip, prefer_ipv6=prefer_ipv6) if node else ()
    fault = addresses if isinstance(addresses, MachineFault) else None
    return msgspec.structs.replace(
        state,
        dial_targets=() if isinstance(addresses, MachineFault) else addresses,
        facts=None,
        identity=None,
        fault=fault,
        foreign_machines=(),
        failures=poll_schedule.count_failure({}, fault) if fault else {},
        incomplete_polls=0,
        next_poll_at=now if isinstance(addresses, tuple) and addresses else NEVER,
    )


def _verify_again(
    state: NodeState,
    before: Node,
    node: Node,
    *,
    all_nodes: Iterable[Node] | None,
    now: float,
    intervals: PollIntervals,
) -> NodeState:
    """Verify the facts against the changed Node with the same address, and keep them if they match."""
    if state.facts is None:
        renamed = before.status.node_info != node.status.node_info
        if renamed or before.status.addresses != node.status.addresses:
            # The replacement was detected for the old node info and addresses.
            state = msgspec.structs.replace(state, foreign_machines=())
        return msgspec.structs.replace(state, next_poll_at=now) if renamed and state.dial_targets else state
    identity = verify(node, state.facts, all_nodes)
    if isinstance(identity, MachineFault):
        return msgspec.structs.replace(state, facts=None, identity=None, next_poll_at=now)
    state = msgspec.structs.replace(state, identity=identity)
    fresh = state.is_watched or now - state.polled_at < intervals.freshness
    return state if fresh else msgspec.structs.replace(state, next_poll_at=now)


def _extract_facts(event: EnrichedNode | None, uid: str) -> MachineFacts | None:
    match event:
        case NodeEnriched(node=node, facts=facts) if node.uid == uid:
            return facts
        case NodeUnreachable(node=node, last_known=facts) if node.uid == uid:
            return facts
        case _:
            return None
