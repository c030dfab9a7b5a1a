"""The subject of each event, and the name of the stream."""

from typing import Final

from libs.common.contract import events

STREAM: Final = "TALOSCCM"
ROOT: Final = "talosccm.v1"
FLOW: Final = f"{ROOT}.flow"  # all messages for followers: one consumer with one filter is enough for each
OBSERVED_NODE: Final = f"{FLOW}.observed.node"
ENRICHED_NODE: Final = f"{FLOW}.enriched.node"
OBSERVED_CSR: Final = f"{FLOW}.observed.csr"
ENRICHED_CSR: Final = f"{FLOW}.enriched.csr"
OBSERVED_SERVICE: Final = f"{FLOW}.observed.service"
NETWORKS: Final = f"{FLOW}.networks"
SNAPSHOT: Final = f"{FLOW}.snapshot"
LEADING: Final = f"{FLOW}.leading"
DECIDED: Final = f"{ROOT}.decided"
DEAD_LETTERS: Final = f"{ROOT}.dead"
PULSES: Final = f"{ROOT}.pulse"
CLOUD_REPORTS: Final = (
    f"{ROOT}.cloud"  # outside the flow: the NATS key of an account publishes below its name only
)
INSTANCE_REPORTS: Final = f"{CLOUD_REPORTS}.*.instance.>"  # of all accounts, like the next one
INSTANCE_METADATA: Final = f"{CLOUD_REPORTS}.*.metadata.>"
ACCOUNT_REPORTS: Final = f"{CLOUD_REPORTS}.*.report"

# The object name is the end of a subject and may contain dots, so a filter ends in `>`, never in `*`.
ALL_SUBJECTS: Final = f"{ROOT}.>"

NAME_LIMIT: Final = 253  # characters of an object name in a subject; the limit of Kubernetes for most kinds
_NO_TOKEN_CHARACTERS: Final = frozenset(" *>")

_PREFIXES: Final[dict[type, str]] = {
    events.NodeObserved: OBSERVED_NODE,
    events.NodeGone: OBSERVED_NODE,
    events.NodeEnriched: ENRICHED_NODE,
    events.NodeUnreachable: ENRICHED_NODE,
    events.EnrichedNodeGone: ENRICHED_NODE,
    events.CsrObserved: OBSERVED_CSR,
    events.CsrGone: OBSERVED_CSR,
    events.CsrEnriched: ENRICHED_CSR,
    events.EnrichedCsrGone: ENRICHED_CSR,
    events.KubeServiceObserved: OBSERVED_SERVICE,
    events.KubeServiceGone: OBSERVED_SERVICE,
}


def subject_of(event: events.Event) -> str:
    """Return the subject of an event."""
    match event:
        case events.ClusterNetworksObserved():
            return NETWORKS
        case events.SnapshotComplete():
            return SNAPSHOT
        case events.Leading():
            return LEADING
        case events.InstanceReport():
            return f"{CLOUD_REPORTS}.{event.account}.instance.{event.name}"
        case events.InstanceMetadata():
            return f"{CLOUD_REPORTS}.{event.account}.metadata.{event.name}"
        case events.AccountReport():
            return f"{CLOUD_REPORTS}.{event.account}.report"
        case events.Pulse():
            return f"{PULSES}.{event.service}.{event.instance}"
        case events.Decided():
            return f"{DECIDED}.{event.service}.{event.kind}.{event.name}"
        case events.DeadLetter():
            return f"{DEAD_LETTERS}.{event.service}.{event.kind}.{event.name}"
        case _:
            return f"{_PREFIXES[type(event)]}.{_key_of(event)}"


def _key_of(
    event: events.ObservedNode
    | events.EnrichedNode
    | events.ObservedCsr
    | events.EnrichedCsr
    | events.ObservedKubeService,
) -> str:
    match event:
        case events.NodeObserved() | events.NodeEnriched() | events.NodeUnreachable():
            return event.node.name
        case events.CsrObserved() | events.CsrEnriched():
            return event.request.name
        case events.KubeServiceObserved():
            return event.service.key
        case events.ObjectGone():
            return event.key
        case _:
            return event.name


def object_name_in(subject: str, prefix: str) -> str:
    """Return the object name, dots included, of a subject under `prefix`. Raises ValueError without one."""
    head = prefix + "."
    if not subject.startswith(head) or len(subject) == len(head):
        raise ValueError(f"subject {subject!r} names nothing under {prefix!r}")
    return subject[len(head) :]


def is_csr_subject(subject: str) -> bool:
    """Return whether the subject belongs to a CSR."""
    return subject.startswith((f"{OBSERVED_CSR}.", f"{ENRICHED_CSR}."))


def is_service_subject(subject: str) -> bool:
    """Return whether the subject belongs to a Kubernetes Service."""
    return subject.startswith(f"{OBSERVED_SERVICE}.")


def is_csr_or_service_subject(subject: str) -> bool:
    """Return whether services that handle only Nodes ignore the subject."""
    return is_csr_subject(subject) or is_service_subject(subject)


def is_node_subject(subject: str) -> bool:
    """Return whether the subject belongs to a Node."""
    return subject.startswith((f"{OBSERVED_NODE}.", f"{ENRICHED_NODE}."))


def is_publishable_name(name: str) -> bool:
    """Return whether a Kubernetes object name can be the end of a subject (RFC 1123 subdomains always can).

    A client that may create a CertificateSigningRequest chooses its name. The API server accepts any bytes
    except `/` and `%`, up to hundreds of kilobytes. nats-server closes the connection of a client that
    publishes to a subject of 4 kB.
    """
    plain = name.isascii() and name.isprintable() and _NO_TOKEN_CHARACTERS.isdisjoint(name)
    return plain and 0 < len(name) <= NAME_LIMIT and "" not in name.split(".")
