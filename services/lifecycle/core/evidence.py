"""Assesses the evidence that a Node's machine is gone: other machines answer at its addresses.

Silence and errors prove nothing.
"""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine
from libs.common.contract.node import Node
from libs.common.contract.system_uuid import normalize_uuid
from libs.common.contract.timestamp import parse_time

_PROOF_FAULT: Final = "wrong_machine"  # the fault of a poll to which other machines answered
_MAX_SHOWN_LENGTH: Final = 64  # characters of a text from a kubelet or machine

# The reference controller's rule for preempted GCP spot machines, which return with another address.
PLATFORM_LABEL: Final = ("node.cloudprovider.kubernetes.io/platform", "gcp")
LIFECYCLE_LABEL: Final = ("node.cloudprovider.kubernetes.io/lifecycle", "spot")
NOT_READY_TAINT: Final = ("node.kubernetes.io/not-ready", "NoExecute")  # key and effect
MIN_AGE: Final = timedelta(seconds=30)

MachineReport = NodeEnriched | NodeUnreachable  # metadata's last report about a Node


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """The existing and the missing evidence for a deletion, in words for an operator."""

    proven: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __add__(self, other: "Assessment") -> "Assessment":
        return Assessment(proven=self.proven + other.proven, missing=self.missing + other.missing)


class MachineIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All Nodes by the properties that identify a machine."""

    nodes_by_uuid: Mapping[str, Collection[str]] = {}  # canonical systemUUID -> Nodes that claim it
    # node name of a machine -> Nodes at whose addresses that machine answers
    nodes_by_machine_name: Mapping[str, Collection[str]] = {}


def shows_others(report: NodeUnreachable) -> bool:
    """Whether other machines answered that poll at all addresses of the Node."""
    return bool(report.foreign_machines) and report.fault.kind == _PROOF_FAULT


def collect_machine_names(report: MachineReport) -> frozenset[str]:
    """Return the node names of the machines that answered, by that report."""
    if isinstance(report, NodeEnriched):
        return frozenset({report.facts.node_name} - {""})
    return frozenset(machine.node_name for machine in report.foreign_machines)


def assess_report(node: Node, report: MachineReport | None, machines: MachineIndex) -> Assessment:
    """Assess whether this one report shows that the Node's machine was replaced."""
    if report is None or report.node.uid != node.uid:
        return Assessment(missing=("metadata has not reported on its machine yet",))
    if isinstance(report, NodeEnriched):
        return Assessment(missing=("its machine answers",))
    if not shows_others(report):
        text = f"another machine in its place: silence and errors prove nothing ({report.fault.kind})"
        return Assessment(missing=(text,))
    if _machine_identity(report.node) != _machine_identity(node):
        return Assessment(missing=("a poll after the last change of its addresses or its systemUUID",))
    found = [_assess_machine(node, machine, machines) for machine in report.foreign_machines]
    if why := explain_shared_uuid(node, machines):
        found.append(Assessment(missing=(why,)))
    if why := explain_machine_with_its_name(node, machines):
        found.append(Assessment(missing=(why,)))
    else:
        found.append(Assessment(proven=("no machine known to us bears its name",)))
    return sum(found, Assessment())


def assess_node(node: Node, now: datetime, *, min_not_ready: timedelta) -> Assessment:
    """Assess whether the Node object could belong to a machine that is gone."""
    lacks = []
    if node.metadata.deletion_timestamp is not None:
        lacks.append("it is being deleted already")
    if not node.is_initialized:
        lacks.append("it is not initialized yet")
    return Assessment(missing=tuple(lacks)) + _assess_ready(node, now, min_not_ready)


def is_gcp_spot(node: Node) -> bool:
    """Whether the rule applies to this Node."""
    return all(node.labels.get(key) == value for key, value in (PLATFORM_LABEL, LIFECYCLE_LABEL))


def assess_gcp_spot(node: Node, now: datetime) -> Assessment:
    """Assess each condition under which the reference controller deletes the Node."""
    if not is_gcp_spot(node):
        return Assessment(missing=("it has no labels of a GCP spot machine",))
    lacks = []
    if node.metadata.deletion_timestamp is not None:
        lacks.append("it is being deleted already")
    if not node.spec.provider_id:
        lacks.append("it has no providerID")
    if not node.is_initialized:
        lacks.append("it is not initialized yet")
    created = node.metadata.creation_timestamp
    if created is None or now - created <= MIN_AGE:
        lacks.append(f"it is not older than {MIN_AGE.total_seconds():g} s")
    if not is_not_ready(node):
        lacks.append("its condition Ready is neither False nor Unknown")
    if NOT_READY_TAINT not in {(taint.key, taint.effect) for taint in node.spec.taints}:
        lacks.append(f"it has no taint {NOT_READY_TAINT[0]}:{NOT_READY_TAINT[1]}")
    if lacks:
        return Assessment(proven=("it is a GCP spot machine",), missing=tuple(lacks))
    return Assessment(proven=("it is a GCP spot machine that is not ready (--delete-preempted-gcp-spot)",))


def is_ready(node: Node) -> bool:
    """Whether the condition Ready is True."""
    ready = node.find_condition("Ready")
    return ready is not None and ready.status == "True"


def shows_activity(before: Node, now: Node) -> bool:
    """Whether its kubelet may have written the Node meanwhile, which invalidates earlier polls.

    No other writer changes the Ready condition from and to `Unknown`, or the addresses and systemUUID of a
    dead Node. If a cloud controller changes the addresses, metadata must poll the new ones anyway.
    """
    return (
        is_ready(now)
        or _ready_state(before) != _ready_state(now)
        or _machine_identity(before) != _machine_identity(now)
    )


def is_not_ready(node: Node) -> bool:
    """Whether the condition Ready is False or Unknown; False for a Node without the condition."""
    ready = node.find_condition("Ready")
    return ready is not None and ready.status in ("False", "Unknown")


def _assess_ready(node: Node, now: datetime, min_not_ready: timedelta) -> Assessment:
    if is_ready(node):
        return Assessment(missing=("its kubelet says that it is Ready",))
    ready = node.find_condition("Ready")
    if ready is None or not is_not_ready(node):
        return Assessment(missing=("it has no condition Ready with a transition time",))
    if ready.status != "Unknown":
        # Kubernetes sets "Unknown" after 40 s without a heartbeat. So this kubelet is alive, or no node
        # lifecycle controller runs.
        return Assessment(missing=("its kubelet itself says that it is not Ready, so it may well be alive",))
    since = parse_time(ready.last_transition_time)
    if since is None:
        shown = _quote_untrusted(ready.last_transition_time or "")
        return Assessment(missing=(f"the transition time of its condition Ready is invalid: {shown}",))
    if since > now:
        return Assessment(
            missing=(f"it is not Ready since {ready.last_transition_time}, which is in the future",)
        )
    if now - since <= min_not_ready:
        text = (
            f"it is not Ready since {ready.last_transition_time}, which is not more than "
            f"{_format_duration(min_not_ready)} ago"
        )
        return Assessment(missing=(text,))
    return Assessment(proven=(f"it is not Ready since {ready.last_transition_time}",))


def _assess_machine(node: Node, machine: ForeignMachine, machines: MachineIndex) -> Assessment:
    who = f"at {machine.address} answers the machine of {machine.node_name}"
    if not machine.node_name or machine.node_name == node.name:
        return Assessment(missing=(f"the machine at {machine.address} has no other node's name",))
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


def explain_shared_uuid(node: Node, machines: MachineIndex) -> str:
    """Return which other Node claims the systemUUID; "" if none does."""
    claimed = machines.nodes_by_uuid.get(normalize_uuid(node.status.node_info.system_uuid), ())
    others = sorted(set(claimed) - {node.name})
    return f"Node {others[0]} claims its systemUUID as well: its machine may live on" if others else ""


def explain_machine_with_its_name(node: Node, machines: MachineIndex) -> str:
    """Return where a machine with the Node's name answers; "" if none is known."""
    found = sorted(machines.nodes_by_machine_name.get(node.name, ()))
    return f"a machine with its name answers at an address of Node {found[0]}" if found else ""


def _machine_identity(node: Node) -> tuple[object, ...]:
    """Return the addresses at which metadata polls the machine, and the properties that identify it."""
    return node.provided_node_ip, node.status.addresses, node.status.node_info


def _ready_state(node: Node) -> tuple[str, str | None] | None:
    ready = node.find_condition("Ready")
    return (ready.status, ready.last_transition_time) if ready is not None else None


def _quote_untrusted(text: str) -> str:
    """Quote a text of any length from a kubelet or machine."""
    return repr(text[:_MAX_SHOWN_LENGTH])


def _format_duration(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
