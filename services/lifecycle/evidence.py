"""What proves that a Node's machine is gone: others stand in its place. Silence and errors prove nothing."""

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid

PROOF_FAULT: Final = "wrong_machine"  # the fault of a look in which others answered at the Node's addresses
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")  # meta/v1 Time
_MAX_SHOWN_LENGTH: Final = 64  # characters of what kubelets and machines write

MachineReport = NodeEnriched | NodeUnreachable  # metadata's last word of a Node


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """What speaks for a deletion, and what is missing for it, in words for an operator."""

    proven: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __add__(self, other: "Assessment") -> "Assessment":
        return Assessment(proven=self.proven + other.proven, missing=self.missing + other.missing)


class MachineIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all Nodes and machines, by what a machine could be told apart by."""

    nodes_by_uuid: Mapping[str, Collection[str]] = {}  # canonical systemUUID -> Nodes that claim it
    # Node name that a machine bears -> Nodes at whose address it answers.
    nodes_by_machine_name: Mapping[str, Collection[str]] = {}


def build_machine_index(nodes: Iterable[Node], reports: Iterable[MachineReport]) -> MachineIndex:
    """Of all Nodes, and the last word of each; what the service keeps up to date, for one look at it."""
    by_uuid: dict[str, set[str]] = {}
    borne: dict[str, set[str]] = {}
    for node in nodes:
        uuid = normalize_uuid(node.status.node_info.system_uuid)
        if uuid:
            by_uuid.setdefault(uuid, set()).add(node.name)
    for word in reports:
        for name in collect_machine_names(word):
            borne.setdefault(name, set()).add(word.node.name)
    return MachineIndex(nodes_by_uuid=by_uuid, nodes_by_machine_name=borne)


def collect_machine_names(report: MachineReport) -> frozenset[str]:
    """The node names of the machines that answered, as of that word."""
    if isinstance(report, NodeEnriched):
        return frozenset({report.facts.node_name} - {""})
    return frozenset(machine.node_name for machine in report.foreign_machines)


def assess_report(node: Node, report: MachineReport | None, machines: MachineIndex) -> Assessment:
    """Whether this one look shows that the Node's machine was replaced."""
    if report is None or report.node.uid != node.uid:
        return Assessment(missing=("nothing has been said of its machine yet",))
    if isinstance(report, NodeEnriched):
        return Assessment(missing=("its machine answers",))
    fault = report.fault
    if not report.foreign_machines or fault.kind != PROOF_FAULT:
        why = f"{fault.message} ({fault.kind})"
        return Assessment(missing=(f"another machine in its place: silence and errors prove nothing; {why}",))
    if _machine_identity(report.node) != _machine_identity(node):
        return Assessment(
            missing=("a look at it as it is now: its addresses or its systemUUID changed since",)
        )
    judged = [_assess_machine(node, machine, machines) for machine in report.foreign_machines]
    return sum((*judged, _assess_own_uuid(node, machines), _assess_name(node, machines)), Assessment())


def assess_node(node: Node, now: datetime, *, min_not_ready: timedelta) -> Assessment:
    """Whether the Node, as Kubernetes holds it, could be that of a machine which is gone."""
    lacks = []
    if node.metadata.deletion_timestamp is not None:
        lacks.append("it is being deleted already")
    if not node.is_initialized:
        lacks.append("it is not initialized yet")
    return Assessment(missing=tuple(lacks)) + _assess_ready(node, now, min_not_ready)


def is_ready(node: Node) -> bool:
    """Whether Kubernetes says that the Node is Ready."""
    ready = node.find_condition("Ready")
    return ready is not None and ready.status == "True"


def shows_activity(before: Node, now: Node) -> bool:
    """Whether its kubelet may have written it meanwhile: what was seen of its machine counts no more.

    Nobody else writes `Unknown` over and back, nor the addresses and the systemUUID of a dead Node; where a
    cloud's controller does write the addresses, other ones have to be looked at anyway.
    """
    return (
        is_ready(now)
        or _ready_state(before) != _ready_state(now)
        or _machine_identity(before) != _machine_identity(now)
    )


def is_not_ready(node: Node) -> bool:
    """Whether Kubernetes says that it is not; of a Node without the condition nobody knows."""
    ready = node.find_condition("Ready")
    return ready is not None and ready.status in ("False", "Unknown")


def parse_time(text: str | None) -> datetime | None:
    """meta/v1 Time, None for anything else: kubelets write it, and years without a meaning pass as well."""
    if text is None or not _TIME.fullmatch(text):
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def _assess_ready(node: Node, now: datetime, min_not_ready: timedelta) -> Assessment:
    if is_ready(node):
        return Assessment(missing=("its kubelet says that it is Ready",))
    ready = node.find_condition("Ready")
    if ready is None or not is_not_ready(node):
        return Assessment(missing=("it has no condition Ready that would say since when it is not",))
    if ready.status != "Unknown":
        # Of a kubelet that is silent for 40 s Kubernetes says "Unknown": here one lives, or nobody watches.
        return Assessment(missing=("its kubelet itself says that it is not Ready, so it may well be alive",))
    since = parse_time(ready.last_transition_time)
    if since is None:
        shown = _quote_untrusted(ready.last_transition_time or "")
        return Assessment(missing=(f"since when it is not Ready cannot be read: {shown}",))
    if since > now:
        return Assessment(
            missing=(f"it is not Ready since {ready.last_transition_time}, which is yet to come",)
        )
    if now - since <= min_not_ready:
        told = (
            f"it is not Ready since {ready.last_transition_time}, which is not "
            f"{_format_duration(min_not_ready)} ago"
        )
        return Assessment(missing=(told,))
    return Assessment(proven=(f"it is not Ready since {ready.last_transition_time}",))


def _assess_machine(node: Node, machine: ForeignMachine, machines: MachineIndex) -> Assessment:
    who = f"at {machine.address} answers the machine of {machine.node_name}"
    if not machine.node_name or machine.node_name == node.name:
        return Assessment(missing=(f"the machine at {machine.address} bears no other node's name",))
    uuid, own = normalize_uuid(machine.uuid), normalize_uuid(node.status.node_info.system_uuid)
    if not uuid:
        return Assessment(
            missing=(f"{who}, but its UUID {_quote_untrusted(machine.uuid)} could be that of any machine",)
        )
    if not own:
        text = _quote_untrusted(node.status.node_info.system_uuid)
        return Assessment(missing=(f"{who}, but the Node's systemUUID {text} could be that of any machine",))
    if uuid == own:
        return Assessment(missing=(f"{who}, but it has this Node's systemUUID: it may be the same one",))
    others = sorted(set(machines.nodes_by_uuid.get(uuid, ())) - {machine.node_name})
    if others:
        return Assessment(missing=(f"{who}, but Node {others[0]} claims its UUID as well",))
    return Assessment(proven=(f"{who} with another UUID",))


def _assess_own_uuid(node: Node, machines: MachineIndex) -> Assessment:
    others = machines.nodes_by_uuid.get(normalize_uuid(node.status.node_info.system_uuid), ())
    found = sorted(set(others) - {node.name})
    if found:
        return Assessment(
            missing=(f"Node {found[0]} claims its systemUUID as well: its machine may live on",)
        )
    return Assessment()


def _assess_name(node: Node, machines: MachineIndex) -> Assessment:
    found = sorted(machines.nodes_by_machine_name.get(node.name, ()))
    if found:
        return Assessment(
            missing=(f"a machine that bears its name answers at an address of Node {found[0]}",)
        )
    return Assessment(proven=("no machine known to us bears its name",))


def _machine_identity(node: Node) -> tuple[object, ...]:
    """Where the machine is looked for, and what it is told apart by."""
    return node.provided_node_ip, node.status.addresses, node.status.node_info


def _ready_state(node: Node) -> tuple[str, str | None] | None:
    ready = node.find_condition("Ready")
    return (ready.status, ready.last_transition_time) if ready is not None else None


def _quote_untrusted(text: str) -> str:
    """What others wrote, of any length."""
    return repr(text[:_MAX_SHOWN_LENGTH])


def _format_duration(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
