"""Selects the machine result: the caller's own query, or the last message of metadata. Pure."""

from datetime import timedelta
from typing import Final

import msgspec

from cli.cluster.described_node import DescribedNode
from cli.explain.node.finding import describe_fault
from cli.explain.node.node_evidence import NodeEvidence
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import MachineFault

# Faults of the caller's own access to Talos: metadata may have the access that the caller lacks.
_OWN_ACCESS: Final = frozenset({"certificate", "permission", "no_endpoint"})
# on the way to a control plane, which a laptop may be unable to reach
_OWN_WAY: Final = frozenset({"refused", "timeout"})
_FRESH: Final = timedelta(minutes=15)  # metadata polls every five minutes


def choose_machine_result(evidence: NodeEvidence) -> NodeEvidence:
    """Return the evidence with the result to trust.

    A machine is not reported as failed because the caller lacks access. In that case the last message of
    metadata counts, if there is one.
    """
    look = evidence.machine_result
    if look is None:
        return fall_back_to_bus(evidence)
    if not isinstance(look, MachineFault):
        return evidence
    if look.kind in _OWN_ACCESS:
        return fall_back_to_bus(
            msgspec.structs.replace(evidence, machine_result=None, not_queried_reason=describe_fault(look))
        )
    if look.kind in _OWN_WAY and not evidence.answered_by and _is_reachable_by_metadata(evidence):
        return fall_back_to_bus(
            msgspec.structs.replace(_add_unavailable_part(evidence, look), machine_result=None)
        )
    return evidence


def fall_back_to_bus(evidence: NodeEvidence) -> NodeEvidence:
    """Use the last message of metadata about the machine, if there is one."""
    said = evidence.last_messages.find_machine_event(evidence.node) if evidence.last_messages else None
    if said is None:
        return evidence
    if isinstance(said, NodeUnreachable):
        return msgspec.structs.replace(
            evidence, machine_result=said.fault, answered_by=said.foreign_machines, is_from_bus=True
        )  # fmt: skip
    described = DescribedNode(node=evidence.node, facts=said.facts, verified_by=said.verified_by)
    return msgspec.structs.replace(evidence, machine_result=described, is_from_bus=True)


def _is_reachable_by_metadata(evidence: NodeEvidence) -> bool:
    """Whether metadata reported facts recently and the kubelet still reports to Kubernetes."""
    ready = evidence.node.find_condition("Ready")
    said = evidence.last_messages.find_machine_event(evidence.node) if evidence.last_messages else None
    is_on = ready is not None and ready.status != "Unknown"
    return is_on and isinstance(said, NodeEnriched) and evidence.at - said.facts.queried_at < _FRESH


def _add_unavailable_part(evidence: NodeEvidence, fault: MachineFault) -> NodeEvidence:
    around = evidence.context
    untold = (*around.unavailable_parts, f"its machine, queried by this command: {describe_fault(fault)}")
    return msgspec.structs.replace(
        evidence, context=msgspec.structs.replace(around, unavailable_parts=untold)
    )
