"""What metadata knows of one Node, and how observations change it. Times are monotonic seconds throughout."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.common.bus import Message
from libs.common.events import EnrichedNode, NodeEnriched, NodeGone, NodeObserved, NodeUnreachable
from libs.common.machine import AnotherMachine, MachineFacts, MachineFault
from libs.common.node import Node, NodeSpec, same_to_us
from services.metadata import schedule
from services.metadata.links import dial_order
from services.metadata.resolve import Recognized, recognize
from services.metadata.schedule import Failures, Pace
from services.metadata.talos_api.resources import Part

NEVER: Final = math.inf
LONG_AGO: Final = -math.inf


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one Node. Facts, fault, neither (not looked at yet): never both."""

    observed: NodeObserved | NodeGone  # the newest observation
    sequence: int  # its place in the stream
    headers: Mapping[str, str] = {}  # its trace context
    answered: bool = False  # something was said since it came
    void: bool = False  # it is of a stream that is no more; the present one has not named the Node yet

    addresses: tuple[str, ...] = ()  # whom to ask, in turn; () = not ours, or nothing that we dial
    facts: MachineFacts | None = None
    recognized: Recognized | None = None
    fault: MachineFault | None = None
    answered_by: tuple[AnotherMachine, ...] = ()  # with the fault: who answered in the machine's place
    failures: Failures = {}
    incomplete_looks: int = 0  # in a row, each without the cloud's answer or with a foreign one
    untold: Mapping[Part, MachineFault] = {}  # of the inventory, what the machine does not tell, and why
    untold_looks: int = 0  # in a row, each with something of it still to be asked for
    inventory_asked: float = LONG_AGO  # when a look began that asked for all of it
    last_known: MachineFacts | None = None  # the last good ones, perhaps a predecessor's
    looked: float = LONG_AGO  # when the last look began, good or bad
    due: float = 0.0  # when the next look is due
    watched: bool = False  # a live watch tells of changes
    opened_at: float = LONG_AGO  # when the last one opened: a look under way then may have seen older things
    changed_at: float = LONG_AGO  # when one last told of a change

    said: EnrichedNode | None = None  # what we, or our predecessor, said last
    repeat_due: float = NEVER  # when it is said again, unchanged
    look_first: bool = False  # somebody else said something of the same order: look before speaking
    unsaid: int = 0  # in a row, refusals of the bus
    say_after: float = LONG_AGO

    @property
    def uid(self) -> str:
        return uid_of(self.observed)

    @property
    def node(self) -> Node | None:
        """The Node as observed last, None when it is gone."""
        return self.observed.node if isinstance(self.observed, NodeObserved) else None

    @property
    def watchable(self) -> str:
        """The address of the machine that bears this Node for certain, "" if there is none now."""
        sure = self.facts is not None and self.recognized is not None and self.node is not None
        return self.facts.node_ip if sure and self.facts else ""


def same_but_for_pod_cidrs(one: Node, other: Node) -> bool:
    """Whether two published Nodes differ in nothing that is worth a word of metadata's.

    No machine tells them, no rule reads them, and ipam, which gives them, hears of them from the watcher: a
    word with nothing else in it would cost every service a round, on each Node of a burst.
    """
    if (one.metadata.name, one.uid, one.status) != (other.metadata.name, other.uid, other.status):
        return False
    return same_to_us(one, msgspec.structs.replace(other, spec=_with_pod_cidrs_of(one, other)))


def _with_pod_cidrs_of(one: Node, other: Node) -> NodeSpec:
    theirs = one.spec
    return msgspec.structs.replace(other.spec, pod_cidr=theirs.pod_cidr, pod_cidrs=theirs.pod_cidrs)


def uid_of(event: NodeObserved | NodeGone) -> str:
    """Of the Node that an observation is about."""
    return event.uid if isinstance(event, NodeGone) else event.node.uid


def first_seen(
    message: Message,
    observed: NodeObserved | NodeGone,
    heard: EnrichedNode | None,
    *,
    heard_again_in: float,
    now: float,
    prefer_ipv6: bool,
) -> Known:
    """A Node that we know nothing of but what the stream holds; a predecessor's facts are last known ones.

    What the stream holds is repeated, if unchanged, in `heard_again_in` seconds.
    """
    known = Known(
        observed=observed,
        sequence=message.sequence,
        headers=message.headers,
        due=now,
        last_known=_facts_in(heard, uid_of(observed)),
        said=heard,
        repeat_due=now + heard_again_in,
    )
    return _dialled_anew(known, now=now, prefer_ipv6=prefer_ipv6)


def observe(
    known: Known,
    message: Message,
    observed: NodeObserved | NodeGone,
    *,
    others: Iterable[Node] | None,
    now: float,
    pace: Pace,
    prefer_ipv6: bool,
) -> Known:
    """Newer word of the watcher. Another uid is another Node: nothing known holds for it."""
    if known.node is None or uid_of(observed) != known.uid:
        return first_seen(
            message, observed, known.said, heard_again_in=pace.repeat, now=now, prefer_ipv6=prefer_ipv6
        )
    if message.sequence <= known.sequence and not known.void:
        return known  # read again from the beginning, after the connection was lost
    before = known.node
    known = msgspec.structs.replace(
        known,
        observed=observed,
        sequence=message.sequence,
        headers=message.headers,
        answered=False,
        void=False,
        look_first=False,
    )
    if isinstance(observed, NodeGone):
        return msgspec.structs.replace(known, addresses=(), say_after=LONG_AGO, unsaid=0)
    if observed.node.provided_node_ip != before.provided_node_ip:
        return _dialled_anew(known, now=now, prefer_ipv6=prefer_ipv6)
    if same_but_for_pod_cidrs(before, observed.node):
        return known
    return _judged_anew(known, before, observed.node, others=others, now=now, pace=pace)


def dialled_by(known: Known, *, prefer_ipv6: bool, now: float, within: float) -> Known:
    """The preferred family is another one. What is known holds until a look by the other address is good."""
    node = known.node
    addresses = dial_order(node.provided_node_ip, prefer_ipv6=prefer_ipv6) if node else ()
    if isinstance(addresses, MachineFault) or addresses == known.addresses:
        return known
    return msgspec.structs.replace(known, addresses=addresses, due=min(known.due, now + within))


def made_void(known: Known) -> Known:
    """The stream is another one: what was said is lost, what the machine said is not."""
    return msgspec.structs.replace(
        known, void=True, said=None, repeat_due=NEVER, sequence=0, look_first=False
    )


def _dialled_anew(known: Known, *, now: float, prefer_ipv6: bool) -> Known:
    node = known.node
    addresses = dial_order(node.provided_node_ip, prefer_ipv6=prefer_ipv6) if node else ()
    fault = addresses if isinstance(addresses, MachineFault) else None
    return msgspec.structs.replace(
        known,
        addresses=() if isinstance(addresses, MachineFault) else addresses,
        facts=None,
        recognized=None,
        fault=fault,
        answered_by=(),
        failures=schedule.failed({}, fault) if fault else {},
        incomplete_looks=0,
        due=now if isinstance(addresses, tuple) and addresses else NEVER,
    )


def _judged_anew(
    known: Known, before: Node, node: Node, *, others: Iterable[Node] | None, now: float, pace: Pace
) -> Known:
    """The Node changed, its address did not: the facts hold, unless they are now seen to be another's."""
    if known.facts is None:
        renamed = before.status.node_info != node.status.node_info
        if renamed or before.status.addresses != node.status.addresses:
            known = msgspec.structs.replace(known, answered_by=())  # others were asked on behalf of the old
        return msgspec.structs.replace(known, due=now) if renamed and known.addresses else known
    recognized = recognize(node, known.facts, others)
    if isinstance(recognized, MachineFault):
        return msgspec.structs.replace(known, facts=None, recognized=None, due=now)
    known = msgspec.structs.replace(known, recognized=recognized)
    fresh = known.watched or now - known.looked < pace.fresh
    return known if fresh else msgspec.structs.replace(known, due=now)


def _facts_in(event: EnrichedNode | None, uid: str) -> MachineFacts | None:
    match event:
        case NodeEnriched(node=node, facts=facts) if node.uid == uid:
            return facts
        case NodeUnreachable(node=node, last_known=facts) if node.uid == uid:
            return facts
        case _:
            return None
