"""Where each event lives in the stream: event <-> subject, and the names of stream and durables."""

from typing import Final

from libs.common.events import (
    DeadLetter,
    Decided,
    EnrichedNodeGone,
    Event,
    Leading,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    SnapshotComplete,
)

STREAM: Final = "TALOSCCM"
ROOT: Final = "talosccm.v1"
FLOW: Final = f"{ROOT}.flow"  # all that followers need: one prefix, so one single-filter consumer each
OBSERVED_NODE: Final = f"{FLOW}.observed.node"
ENRICHED_NODE: Final = f"{FLOW}.enriched.node"
SNAPSHOT: Final = f"{FLOW}.snapshot"
LEADING: Final = f"{FLOW}.leading"
DECIDED: Final = f"{ROOT}.decided"
DEAD: Final = f"{ROOT}.dead"

# A name stands after the fixed tokens and holds dots itself, so a filter ends in `>`, never in `*`.
ALL: Final = f"{ROOT}.>"


def subject_of(event: Event) -> str:
    """The one subject that an event is published to."""
    match event:
        case NodeObserved():
            return f"{OBSERVED_NODE}.{event.node.name}"
        case NodeGone():
            return f"{OBSERVED_NODE}.{event.name}"
        case NodeEnriched() | NodeUnreachable():
            return f"{ENRICHED_NODE}.{event.node.name}"
        case EnrichedNodeGone():
            return f"{ENRICHED_NODE}.{event.name}"
        case SnapshotComplete():
            return SNAPSHOT
        case Leading():
            return LEADING
        case Decided():
            return f"{DECIDED}.{event.service}.{event.kind}.{event.name}"
        case DeadLetter():
            return f"{DEAD}.{event.service}.{event.kind}.{event.name}"


def name_in(subject: str, prefix: str) -> str:
    """The object's name in a subject under that prefix, dots included. Raises ValueError if there is none."""
    head = prefix + "."
    if not subject.startswith(head) or len(subject) == len(head):
        raise ValueError(f"subject {subject!r} names nothing under {prefix!r}")
    return subject[len(head) :]


def is_publishable_name(name: str) -> bool:
    """Whether a Kubernetes object name can be the tail of a subject (RFC 1123 subdomains always can)."""
    return bool(name) and not any(c in " \t\r\n*>" for c in name) and "" not in name.split(".")
