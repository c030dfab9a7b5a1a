"""Where each event lives in the stream: event <-> subject, and the names of stream and durables."""

from typing import Final

from libs.common.contract.events import (
    ClusterNetworksObserved,
    CsrEnriched,
    CsrGone,
    CsrObserved,
    DeadLetter,
    Decided,
    EnrichedCsr,
    EnrichedCsrGone,
    EnrichedNode,
    EnrichedNodeGone,
    Event,
    Leading,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    ObservedCsr,
    ObservedNode,
    SnapshotComplete,
)

STREAM: Final = "TALOSCCM"
ROOT: Final = "talosccm.v1"
FLOW: Final = f"{ROOT}.flow"  # all that followers need: one prefix, so one single-filter consumer each
OBSERVED_NODE: Final = f"{FLOW}.observed.node"
ENRICHED_NODE: Final = f"{FLOW}.enriched.node"
OBSERVED_CSR: Final = f"{FLOW}.observed.csr"
ENRICHED_CSR: Final = f"{FLOW}.enriched.csr"
NETWORKS: Final = f"{FLOW}.networks"
SNAPSHOT: Final = f"{FLOW}.snapshot"
LEADING: Final = f"{FLOW}.leading"
DECIDED: Final = f"{ROOT}.decided"
DEAD_LETTERS: Final = f"{ROOT}.dead"

# A name stands after the fixed tokens and holds dots itself, so a filter ends in `>`, never in `*`.
ALL_SUBJECTS: Final = f"{ROOT}.>"

NAME_LIMIT: Final = 253  # characters of a name in a subject; Kubernetes' own for most kinds


_PREFIXES: Final[dict[type, str]] = {
    NodeObserved: OBSERVED_NODE,
    NodeGone: OBSERVED_NODE,
    NodeEnriched: ENRICHED_NODE,
    NodeUnreachable: ENRICHED_NODE,
    EnrichedNodeGone: ENRICHED_NODE,
    CsrObserved: OBSERVED_CSR,
    CsrGone: OBSERVED_CSR,
    CsrEnriched: ENRICHED_CSR,
    EnrichedCsrGone: ENRICHED_CSR,
}


def subject_of(event: Event) -> str:
    """The one subject that an event is published to."""
    match event:
        case ClusterNetworksObserved():
            return NETWORKS
        case SnapshotComplete():
            return SNAPSHOT
        case Leading():
            return LEADING
        case Decided():
            return f"{DECIDED}.{event.service}.{event.kind}.{event.name}"
        case DeadLetter():
            return f"{DEAD_LETTERS}.{event.service}.{event.kind}.{event.name}"
        case _:
            return f"{_PREFIXES[type(event)]}.{_name_of(event)}"


def _name_of(
    event: ObservedNode | EnrichedNode | ObservedCsr | EnrichedCsr,
) -> str:
    match event:
        case NodeObserved() | NodeEnriched() | NodeUnreachable():
            return event.node.name
        case CsrObserved() | CsrEnriched():
            return event.request.name
        case _:
            return event.name


def object_name_in(subject: str, prefix: str) -> str:
    """The object's name in a subject under that prefix, dots included. Raises ValueError if there is none."""
    head = prefix + "."
    if not subject.startswith(head) or len(subject) == len(head):
        raise ValueError(f"subject {subject!r} names nothing under {prefix!r}")
    return subject[len(head) :]


def is_csr_subject(subject: str) -> bool:
    """Whether it is one of the flow's subjects for CSRs, which are nothing to whoever handles Nodes only."""
    return subject.startswith((f"{OBSERVED_CSR}.", f"{ENRICHED_CSR}."))


def is_node_subject(subject: str) -> bool:
    """Whether it is one of the flow's subjects for Nodes."""
    return subject.startswith((f"{OBSERVED_NODE}.", f"{ENRICHED_NODE}."))


def is_publishable_name(name: str) -> bool:
    """Whether a Kubernetes object name can be the tail of a subject (RFC 1123 subdomains always can).

    The API server lets anybody who may file a CertificateSigningRequest name it with any bytes but `/` and
    `%`, hundreds of kilobytes of them. A subject of 4 kB ends the connection of whoever publishes to it.
    """
    plain = name.isascii() and name.isprintable() and not any(c in " *>" for c in name)
    return plain and 0 < len(name) <= NAME_LIMIT and "" not in name.split(".")
