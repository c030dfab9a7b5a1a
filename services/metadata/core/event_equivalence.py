"""Decides whether two events mean the same to consumers, so that metadata publishes only changes."""

from msgspec.structs import replace

from libs.common.contract.events import (
    CsrEnriched,
    EnrichedCsr,
    EnrichedCsrGone,
    EnrichedNode,
    EnrichedNodeGone,
    NodeEnriched,
    NodeUnreachable,
)
from libs.common.contract.machine import (
    MachineFault,
    has_same_facts,
    may_stay_incomplete,
    why_metadata_incomplete,
)
from libs.common.contract.node import Node, has_same_planned_fields, is_same_object


def is_equivalent(one: EnrichedNode | EnrichedCsr, other: EnrichedNode | EnrichedCsr) -> bool:
    """Return whether two events mean the same, apart from times, order, counts and unused fields."""
    match one, other:
        case ((NodeEnriched() | NodeUnreachable()), (NodeEnriched() | NodeUnreachable())):
            same = reports_same_machine(one, other) and has_same_planned_fields(one.node, other.node)
            return same and _has_settled(one) == _has_settled(other)
        case CsrEnriched(), CsrEnriched():
            same = is_same_fault(one.fault, other.fault) and has_same_facts(one.facts, other.facts)
            same = same and _attested_of(one) == _attested_of(other)
            return same and is_same_object(one.request, other.request)
        case EnrichedNodeGone(), EnrichedNodeGone():
            return one.uid == other.uid
        case EnrichedCsrGone(), EnrichedCsrGone():
            return one.uid == other.uid
    return False


def reports_same_machine(one: NodeEnriched | NodeUnreachable, other: NodeEnriched | NodeUnreachable) -> bool:
    """Return whether two events report the same about the machine, whatever the state of the Node."""
    match one, other:
        case NodeEnriched(), NodeEnriched():
            return one.verified_by == other.verified_by and has_same_facts(one.facts, other.facts)
        case NodeUnreachable(), NodeUnreachable():
            # Each poll in which other machines answered is published: lifecycle counts them.
            same = is_same_fault(one.fault, other.fault) and one.foreign_machines == other.foreign_machines
            return same and has_same_facts(one.last_known, other.last_known)
    return False


def is_news(event: EnrichedNode | EnrichedCsr, before: EnrichedNode | EnrichedCsr | None) -> bool:
    """Return whether the event reports something about a machine that the one before did not.

    The other events report a change that the watcher or the labeler has logged, or attest a request, on which
    csr logs its decision.
    """
    match event, before:
        case ((NodeEnriched() | NodeUnreachable()), (NodeEnriched() | NodeUnreachable())):
            return event.node.uid != before.node.uid or not reports_same_machine(event, before)
        case ((NodeEnriched() | NodeUnreachable()), _):
            return True
        case CsrEnriched(fault=fault), CsrEnriched(fault=fault_before):
            return fault is not None and not is_same_fault(fault, fault_before)
        case CsrEnriched(fault=fault), _:
            return fault is not None
    return False


def _has_settled(event: NodeEnriched | NodeUnreachable) -> bool:
    """Return whether incomplete metadata of the machine counts as complete, because it was queried late.

    Only then does the labeler initialize the Node, and `queried_at` is the proof.
    """
    if not isinstance(event, NodeEnriched):
        return False
    is_incomplete = bool(why_metadata_incomplete(event.facts.platform))
    return is_incomplete and may_stay_incomplete(event.facts, event.node.metadata.creation_timestamp)


def is_same_fault(one: MachineFault | None, other: MachineFault | None) -> bool:
    """Return whether two faults are of the same kind in the same step, whatever their messages."""
    if one is None or other is None:
        return one is other
    return (one.kind, one.step) == (other.kind, other.step)


def differs_only_in_pod_cidrs(one: Node, other: Node) -> bool:
    """Return whether two Nodes differ at most in podCIDRs, which are no reason to verify a machine again."""
    spec = replace(other.spec, pod_cidr=one.spec.pod_cidr, pod_cidrs=one.spec.pod_cidrs)
    return is_same_object(one, replace(other, spec=spec))


def _attested_of(event: CsrEnriched) -> tuple[str, tuple[str, ...], bool]:
    return event.node_uid, event.answering_addresses, event.without_talos
