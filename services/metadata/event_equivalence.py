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
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node, is_same_node
from libs.common.contract.signing_request import is_same_request


def is_equivalent(one: EnrichedNode | EnrichedCsr, other: EnrichedNode | EnrichedCsr) -> bool:
    """Return whether two events mean the same, apart from times, order, counts and podCIDRs."""
    match one, other:
        case NodeEnriched(), NodeEnriched():
            same = one.verified_by == other.verified_by and has_same_facts(one.facts, other.facts)
            return same and differs_only_in_pod_cidrs(one.node, other.node)
        case NodeUnreachable(), NodeUnreachable():
            # Each poll in which other machines answered is published: lifecycle counts them.
            same = is_same_fault(one.fault, other.fault) and one.foreign_machines == other.foreign_machines
            same = same and has_same_facts(one.last_known, other.last_known)
            return same and differs_only_in_pod_cidrs(one.node, other.node)
        case CsrEnriched(), CsrEnriched():
            same = is_same_fault(one.fault, other.fault) and has_same_facts(one.facts, other.facts)
            same = same and _attested_of(one) == _attested_of(other)
            return same and is_same_request(one.request, other.request)
        case EnrichedNodeGone(), EnrichedNodeGone():
            return one.uid == other.uid
        case EnrichedCsrGone(), EnrichedCsrGone():
            return one.uid == other.uid
    return False


def is_same_fault(one: MachineFault | None, other: MachineFault | None) -> bool:
    """Return whether two faults are of the same kind in the same step, whatever their messages."""
    if one is None or other is None:
        return one is other
    return (one.kind, one.step) == (other.kind, other.step)


def has_same_facts(one: MachineFacts | None, other: MachineFacts | None) -> bool:
    """Return whether two polls returned the same facts, at whatever times."""
    if one is None or other is None:
        return one is other
    return replace(one, queried_at=other.queried_at) == other


def differs_only_in_pod_cidrs(one: Node, other: Node) -> bool:
    """Return whether two Nodes differ at most in podCIDRs, so that metadata need not publish again.

    No machine reports podCIDRs and no rule reads them. ipam writes them and reads them from the watcher. Each
    message that changes nothing else would make every consumer reconcile the Node again.
    """
    if (one.metadata.name, one.uid, one.status) != (other.metadata.name, other.uid, other.status):
        return False
    spec = replace(other.spec, pod_cidr=one.spec.pod_cidr, pod_cidrs=one.spec.pod_cidrs)
    return is_same_node(one, replace(other, spec=spec))


def _attested_of(event: CsrEnriched) -> tuple[str, tuple[str, ...], bool]:
    return event.node_uid, event.answering_addresses, event.without_talos
