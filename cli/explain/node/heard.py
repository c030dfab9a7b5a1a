"""Which look at the machine is believed: the caller's own, or what metadata said last. Pure."""

from datetime import timedelta
from typing import Final

import msgspec

from cli.explain.node.evidence import Evidence
from cli.explain.node.finding import of_fault
from cli.render.described import DescribedNode
from libs.common.events import NodeEnriched, NodeUnreachable
from libs.common.machine import MachineFault

# What one has to have oneself to ask Talos: refused here, it may well be granted to metadata.
_OWN_ACCESS: Final = frozenset({"certificate", "permission", "no_endpoint"})
_OWN_WAY: Final = frozenset({"refused", "timeout"})  # to a control plane, of which a laptop may have none
_FRESH: Final = timedelta(minutes=15)  # metadata asks again every five


def believed(evidence: Evidence) -> Evidence:
    """A machine is not blamed for what the caller lacks, where others know better or nobody does."""
    look = evidence.look
    if look is None:
        return as_heard(evidence)
    if not isinstance(look, MachineFault):
        return evidence
    if look.kind in _OWN_ACCESS:
        return as_heard(msgspec.structs.replace(evidence, look=None, not_asked=of_fault(look)))
    if look.kind in _OWN_WAY and not evidence.answered_by and _answers_metadata(evidence):
        return as_heard(msgspec.structs.replace(_told(evidence, look), look=None))
    return evidence


def as_heard(evidence: Evidence) -> Evidence:
    """With what metadata said last of the machine, if it has said anything."""
    said = evidence.last_words.machine_of(evidence.node) if evidence.last_words else None
    if said is None:
        return evidence
    if isinstance(said, NodeUnreachable):
        return msgspec.structs.replace(
            evidence, look=said.fault, answered_by=said.foreign_machines, heard=True
        )  # fmt: skip
    described = DescribedNode(node=evidence.node, facts=said.facts, recognized_by=said.verified_by)
    return msgspec.structs.replace(evidence, look=described, heard=True)


def _answers_metadata(evidence: Evidence) -> bool:
    """By a word that is fresh, of a machine whose kubelet is heard."""
    ready = evidence.node.find_condition("Ready")
    said = evidence.last_words.machine_of(evidence.node) if evidence.last_words else None
    is_on = ready is not None and ready.status != "Unknown"
    return is_on and isinstance(said, NodeEnriched) and evidence.at - said.facts.queried_at < _FRESH


def _told(evidence: Evidence, fault: MachineFault) -> Evidence:
    around = evidence.around
    untold = (*around.untold, f"its machine, from here: {of_fault(fault)}")
    return msgspec.structs.replace(evidence, around=msgspec.structs.replace(around, untold=untold))
