"""What proves that a Node's machine is gone: others stand in its place. Silence and errors prove nothing."""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from libs.common.events import NodeEnriched, NodeUnreachable
from libs.common.machine import AnotherMachine
from libs.common.node import Node
from libs.common.system_uuid import canonical_uuid

PROOF: Final = "wrong_machine"  # the fault of a look in which others answered at the Node's addresses
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")  # meta/v1 Time
_SHOWN: Final = 64  # characters of what kubelets and machines write

Word = NodeEnriched | NodeUnreachable  # metadata's last word of a Node


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for a deletion, and what is missing for it, in words for an operator."""

    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def __add__(self, other: "Judged") -> "Judged":
        return Judged(has=self.has + other.has, lacks=self.lacks + other.lacks)


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all Nodes and machines, by what a machine could be told apart by."""

    nodes_by_uuid: Mapping[str, Collection[str]] = {}  # canonical systemUUID -> Nodes that claim it
    # Node name that a machine bears -> Nodes at whose address it answers.
    borne: Mapping[str, Collection[str]] = {}


def known_of(nodes: Iterable[Node], words: Iterable[Word]) -> Known:
    """Of all Nodes, and the last word of each; what the service keeps up to date, for one look at it."""
    by_uuid: dict[str, set[str]] = {}
    borne: dict[str, set[str]] = {}
    for node in nodes:
        uuid = canonical_uuid(node.status.node_info.system_uuid)
        if uuid:
            by_uuid.setdefault(uuid, set()).add(node.name)
    for word in words:
        for name in names_borne(word):
            borne.setdefault(name, set()).add(word.node.name)
    return Known(nodes_by_uuid=by_uuid, borne=borne)


def names_borne(word: Word) -> frozenset[str]:
    """The node names of the machines that answered, as of that word."""
    if isinstance(word, NodeEnriched):
        return frozenset({word.facts.node_name} - {""})
    return frozenset(machine.node_name for machine in word.answered_by)


def judge_look(node: Node, word: Word | None, known: Known) -> Judged:
    """Whether this one look shows that the Node's machine was replaced."""
    if word is None or word.node.uid != node.uid:
        return Judged(lacks=("nothing has been said of its machine yet",))
    if isinstance(word, NodeEnriched):
        return Judged(lacks=("its machine answers",))
    fault = word.fault
    if not word.answered_by or fault.kind != PROOF:
        why = f"{fault.message} ({fault.kind})"
        return Judged(lacks=(f"another machine in its place: silence and errors prove nothing; {why}",))
    if _whereabouts(word.node) != _whereabouts(node):
        return Judged(lacks=("a look at it as it is now: its addresses or its systemUUID changed since",))
    judged = [_judge_machine(node, machine, known) for machine in word.answered_by]
    return sum((*judged, _judge_own_uuid(node, known), _judge_name(node, known)), Judged())


def judge_node(node: Node, now: datetime, *, not_ready_for: timedelta) -> Judged:
    """Whether the Node, as Kubernetes holds it, could be that of a machine which is gone."""
    lacks = []
    if node.metadata.deletion_timestamp is not None:
        lacks.append("it is being deleted already")
    if not node.initialized:
        lacks.append("it is not initialized yet")
    return Judged(lacks=tuple(lacks)) + _judge_ready(node, now, not_ready_for)


def is_ready(node: Node) -> bool:
    """Whether Kubernetes says that the Node is Ready."""
    ready = node.condition("Ready")
    return ready is not None and ready.status == "True"


def shows_life(before: Node, now: Node) -> bool:
    """Whether its kubelet may have written it meanwhile: what was seen of its machine counts no more.

    Nobody else writes `Unknown` over and back, nor the addresses and the systemUUID of a dead Node; where a
    cloud's controller does write the addresses, other ones have to be looked at anyway.
    """
    return (
        is_ready(now)
        or _said_of_ready(before) != _said_of_ready(now)
        or _whereabouts(before) != _whereabouts(now)
    )


def is_not_ready(node: Node) -> bool:
    """Whether Kubernetes says that it is not; of a Node without the condition nobody knows."""
    ready = node.condition("Ready")
    return ready is not None and ready.status in ("False", "Unknown")


def read_time(text: str | None) -> datetime | None:
    """meta/v1 Time, None for anything else: kubelets write it, and years without a meaning pass as well."""
    if text is None or not _TIME.fullmatch(text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def _judge_ready(node: Node, now: datetime, not_ready_for: timedelta) -> Judged:
    if is_ready(node):
        return Judged(lacks=("its kubelet says that it is Ready",))
    ready = node.condition("Ready")
    if ready is None or not is_not_ready(node):
        return Judged(lacks=("it has no condition Ready that would say since when it is not",))
    if ready.status != "Unknown":
        # Of a kubelet that is silent for 40 s Kubernetes says "Unknown": here one lives, or nobody watches.
        return Judged(lacks=("its kubelet itself says that it is not Ready, so it may well be alive",))
    since = read_time(ready.last_transition_time)
    if since is None:
        shown = _shown(ready.last_transition_time or "")
        return Judged(lacks=(f"since when it is not Ready cannot be read: {shown}",))
    if since > now:
        return Judged(lacks=(f"it is not Ready since {ready.last_transition_time}, which is yet to come",))
    if now - since <= not_ready_for:
        told = f"it is not Ready since {ready.last_transition_time}, which is not {_words(not_ready_for)} ago"
        return Judged(lacks=(told,))
    return Judged(has=(f"it is not Ready since {ready.last_transition_time}",))


def _judge_machine(node: Node, machine: AnotherMachine, known: Known) -> Judged:
    who = f"at {machine.address} answers the machine of {machine.node_name}"
    if not machine.node_name or machine.node_name == node.name:
        return Judged(lacks=(f"the machine at {machine.address} bears no other node's name",))
    uuid, own = canonical_uuid(machine.uuid), canonical_uuid(node.status.node_info.system_uuid)
    if not uuid:
        return Judged(lacks=(f"{who}, but its UUID {_shown(machine.uuid)} could be that of any machine",))
    if not own:
        text = _shown(node.status.node_info.system_uuid)
        return Judged(lacks=(f"{who}, but the Node's systemUUID {text} could be that of any machine",))
    if uuid == own:
        return Judged(lacks=(f"{who}, but it has this Node's systemUUID: it may be the same one",))
    others = sorted(set(known.nodes_by_uuid.get(uuid, ())) - {machine.node_name})
    if others:
        return Judged(lacks=(f"{who}, but Node {others[0]} claims its UUID as well",))
    return Judged(has=(f"{who} with another UUID",))


def _judge_own_uuid(node: Node, known: Known) -> Judged:
    others = known.nodes_by_uuid.get(canonical_uuid(node.status.node_info.system_uuid), ())
    found = sorted(set(others) - {node.name})
    if found:
        return Judged(lacks=(f"Node {found[0]} claims its systemUUID as well: its machine may live on",))
    return Judged()


def _judge_name(node: Node, known: Known) -> Judged:
    found = sorted(known.borne.get(node.name, ()))
    if found:
        return Judged(lacks=(f"a machine that bears its name answers at an address of Node {found[0]}",))
    return Judged(has=("no machine known to us bears its name",))


def _whereabouts(node: Node) -> tuple[object, ...]:
    """Where the machine is looked for, and what it is told apart by."""
    return node.provided_node_ip, node.status.addresses, node.status.node_info


def _said_of_ready(node: Node) -> tuple[str, str | None] | None:
    ready = node.condition("Ready")
    return (ready.status, ready.last_transition_time) if ready is not None else None


def _shown(text: str) -> str:
    """What others wrote, of any length."""
    return repr(text[:_SHOWN])


def _words(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
