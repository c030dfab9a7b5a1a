"""What metadata knows of one Node, and how observations change it. Times are monotonic seconds throughout."""

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
    """Everything about one Node. Facts, fault, neither (not looked at yet): never both."""

    observation: NodeObserved | NodeGone  # the newest observation
    observed_sequence: int  # its place in the stream
    trace_headers: Mapping[str, str] = {}  # its trace context
    is_answered: bool = False  # something was said since it came
    is_stale: bool = False  # it is of a stream that is no more; the present one has not named the Node yet

    dial_targets: tuple[str, ...] = ()  # whom to ask, in turn; () = not ours, or nothing that we dial
    facts: MachineFacts | None = None
    identity: MachineIdentity | None = None
    fault: MachineFault | None = None
    foreign_machines: tuple[ForeignMachine, ...] = ()  # with the fault: who answered in the machine's place
    failures: Failures = {}
    incomplete_polls: int = 0  # in a row, each without the cloud's answer or with a foreign one
    missing_parts: Mapping[
        Part, MachineFault
    ] = {}  # of the inventory, what the machine does not tell, and why
    incomplete_inventory_polls: int = 0  # in a row, each with something of it still to be asked for
    inventory_polled_at: float = LONG_AGO  # when a look began that asked for all of it
    last_known: MachineFacts | None = None  # the last good ones, perhaps a predecessor's
    polled_at: float = LONG_AGO  # when the last look began, good or bad
    next_poll_at: float = 0.0  # when the next look is due
    is_watched: bool = False  # a live watch tells of changes
    watch_opened_at: float = (
        LONG_AGO  # when the last one opened: a look under way then may have seen older things
    )
    machine_changed_at: float = LONG_AGO  # when one last told of a change

    published: EnrichedNode | None = None  # what we, or our predecessor, said last
    republish_at: float = NEVER  # when it is said again, unchanged
    must_poll_first: bool = False  # somebody else said something of the same order: look before speaking
    publish_failures: int = 0  # in a row, refusals of the bus
    publish_after: float = LONG_AGO

    @property
    def uid(self) -> str:
        return get_uid(self.observation)

    @property
    def node(self) -> Node | None:
        """The Node as observed last, None when it is gone."""
        return self.observation.node if isinstance(self.observation, NodeObserved) else None

    @property
    def watch_address(self) -> str:
        """The address of the machine that bears this Node for certain, "" if there is none now."""
        sure = self.facts is not None and self.identity is not None and self.node is not None
        return self.facts.node_ip if sure and self.facts else ""


def differs_only_in_pod_cidrs(one: Node, other: Node) -> bool:
    """Whether two published Nodes differ in nothing that is worth a word of metadata's.

    No machine tells them, no rule reads them, and ipam, which gives them, hears of them from the watcher: a
    word with nothing else in it would cost every service a round, on each Node of a burst.
    """
    if (one.metadata.name, one.uid, one.status) != (other.metadata.name, other.uid, other.status):
        return False
    return is_same_node(one, msgspec.structs.replace(other, spec=_copy_pod_cidrs(one, other)))


def _copy_pod_cidrs(one: Node, other: Node) -> NodeSpec:
    theirs = one.spec
    return msgspec.structs.replace(other.spec, pod_cidr=theirs.pod_cidr, pod_cidrs=theirs.pod_cidrs)


def get_uid(event: NodeObserved | NodeGone) -> str:
    """Of the Node that an observation is about."""
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
    """A Node that we know nothing of but what the stream holds; a predecessor's facts are last known ones.

    What the stream holds is repeated, if unchanged, in `republish_in` seconds.
    """
    known = NodeState(
        observation=observed,
        observed_sequence=message.sequence,
        trace_headers=message.headers,
        next_poll_at=now,
        last_known=_extract_facts(stored, get_uid(observed)),
        published=stored,
        republish_at=now + republish_in,
    )
    return _set_dial_targets(known, now=now, prefer_ipv6=prefer_ipv6)


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
    """Newer word of the watcher. Another uid is another Node: nothing known holds for it."""
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
        return state  # read again from the beginning, after the connection was lost
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
    """The preferred family is another one. What is known holds until a look by the other address is good."""
    node = state.node
    addresses = order_dial_targets(node.provided_node_ip, prefer_ipv6=prefer_ipv6) if node else ()
    if isinstance(addresses, MachineFault) or addresses == state.dial_targets:
        return state
    return msgspec.structs.replace(
        state, dial_targets=addresses, next_poll_at=min(state.next_poll_at, now + within)
    )


def mark_stale(state: NodeState) -> NodeState:
    """The stream is another one: what was said is lost, what the machine said is not."""
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
    """The Node changed, its address did not: the facts hold, unless they are now seen to be another's."""
    if state.facts is None:
        renamed = before.status.node_info != node.status.node_info
        if renamed or before.status.addresses != node.status.addresses:
            state = msgspec.structs.replace(
                state, foreign_machines=()
            )  # others were asked on behalf of the old
        return msgspec.structs.replace(state, next_poll_at=now) if renamed and state.dial_targets else state
    recognized = verify(node, state.facts, all_nodes)
    if isinstance(recognized, MachineFault):
        return msgspec.structs.replace(state, facts=None, identity=None, next_poll_at=now)
    state = msgspec.structs.replace(state, identity=recognized)
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
