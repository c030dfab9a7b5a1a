"""The schema of every message: frozen structs, tagged with a version, JSON on the wire."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from libs.common.contract.address_history import AddressHistory
from libs.common.contract.instances import InstanceAnchor, InstanceWitness
from libs.common.contract.kube_service import KubeService
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.timestamp import Timestamp
from libs.common.json_errors import JSON_ERRORS


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """An event of the stream with this ID."""

    stream_id: str


class EnrichedEvent(StreamEvent, frozen=True, kw_only=True):
    """An event of metadata about one observation of the watcher."""

    observed_sequence: int  # stream sequence of the observation; determines the order


# ---- of the watcher: the state of Nodes, CSRs and Services in Kubernetes, their completeness, and the leader

# Why a service waits while `SnapshotComplete.service_cidrs` is None.
SERVICE_CIDRS_UNKNOWN: Final = (
    "the ServiceCIDR objects are not known: the watcher has not listed them, or it lacks the RBAC rule to "
    "list and watch servicecidrs (networking.k8s.io)"
)


class ObservationOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, order=True):
    """Orders the observations of one subject within one stream ID.

    The epoch counts leaderships. The resourceVersion comes from the API server (comparable integers,
    KEP-5504).
    """

    epoch: int
    resource_version: int


class OrderedObservation(StreamEvent, frozen=True, kw_only=True):
    """What the watcher observes of one object."""

    order: ObservationOrder


class ObjectGone(OrderedObservation, frozen=True, kw_only=True):
    """No object with that name and uid exists anymore."""

    name: str
    uid: str  # "": the stream told the watcher none, and no object of that name exists
    observed_at: Timestamp

    @property
    def key(self) -> str:
        """As `ApiObject.key`."""
        return self.name


class NodeObserved(OrderedObservation, frozen=True, kw_only=True, tag="NodeObserved.v1"):
    """The current state of a Node."""

    node: Node
    observed_at: Timestamp


class NodeGone(ObjectGone, frozen=True, kw_only=True, tag="NodeGone.v1"):
    """No Node with that name and uid exists anymore."""


class CsrObserved(OrderedObservation, frozen=True, kw_only=True, tag="CsrObserved.v1"):
    """The current state of a node's CertificateSigningRequest for kubelet-serving."""

    request: SigningRequest
    observed_at: Timestamp


class CsrGone(ObjectGone, frozen=True, kw_only=True, tag="CsrGone.v1"):
    """The CertificateSigningRequest does not exist anymore, or its requester has 16 newer pending ones."""


class KubeServiceObserved(OrderedObservation, frozen=True, kw_only=True, tag="KubeServiceObserved.v1"):
    """The current state of a Service that wants a load balancer, or may still have one."""

    service: KubeService
    observed_at: Timestamp


class KubeServiceGone(ObjectGone, frozen=True, kw_only=True, tag="KubeServiceGone.v1"):
    """The Service does not exist anymore, or has neither the type nor the finalizer of a load balancer.

    It proves nothing about the balancer: only a Service that the API server shows ends one.
    """

    namespace: str

    @property
    def key(self) -> str:
        return f"{self.namespace}.{self.name}"


class SnapshotComplete(StreamEvent, frozen=True, kw_only=True, tag="SnapshotComplete.v1"):
    """The watcher has published every Node, CSR and Service of a list to the stream with this stream ID."""

    epoch: int
    nodes: int
    requests: int | None = None  # number of CSRs; None: not watched, or not listed yet
    # The ranges of all ServiceCIDRs, terminating ones included; () if Kubernetes has none, or no such API.
    # None: not known, such as before the first list, or without the right to list. Published again at once
    # when they change.
    service_cidrs: tuple[str, ...] | None = None
    services: int | None = None  # number of published Services; None as for `requests`


class Leading(StreamEvent, frozen=True, kw_only=True, tag="Leading.v1"):
    """Published by the leading watcher at each renewal of its Lease; expires with the renew deadline."""

    epoch: int
    holder: str


# ---- of metadata: Nodes and CSRs with the facts or fault of their machines; the cluster's networks


class NodeEnriched(EnrichedEvent, frozen=True, kw_only=True, tag="NodeEnriched.v1"):
    """The Node and the facts of its machine.

    A change of podCIDRs alone causes no new event. Services that read podCIDRs follow observed Nodes.
    """

    node: Node
    facts: MachineFacts
    verified_by: str  # "nodename", or "system-uuid" (kubelet's hostname-override)
    address_history: AddressHistory = AddressHistory()  # of the addresses of `facts` that count
    observed_at: Timestamp
    enriched_at: Timestamp


class NodeUnreachable(EnrichedEvent, frozen=True, kw_only=True, tag="NodeUnreachable.v1"):
    """The machine of the Node returned no facts; `last_known` has the facts of the last successful query."""

    node: Node
    fault: MachineFault
    last_known: MachineFacts | None = None
    attempt: int  # consecutive failures with this fault's kind and step
    retry_at: Timestamp
    # The foreign machines at the Node's addresses, one for each address. Empty unless a foreign machine
    # answered at every address, and the cluster's discovery service lists those machines and no member with
    # the Node's name. Silence, errors and partial answers prove nothing. metadata publishes the result of
    # each poll, at least once a minute while the state lasts.
    foreign_machines: tuple[ForeignMachine, ...] = ()
    # Of the addresses of `last_known`; without it, of those in the Node object.
    address_history: AddressHistory = AddressHistory()
    observed_at: Timestamp
    enriched_at: Timestamp


class EnrichedNodeGone(EnrichedEvent, frozen=True, kw_only=True, tag="EnrichedNodeGone.v1"):
    """NodeGone, republished for services that consume only enriched Nodes."""

    name: str
    uid: str


class CsrEnriched(EnrichedEvent, frozen=True, kw_only=True, tag="CsrEnriched.v1"):
    """A pending request of a node, and the facts or the fault of the machine with that node name.

    It has neither in three cases: no Node of that name exists yet, the requester has a newer pending request,
    or metadata queries no machine (`without_talos`). Facts come from a live watch, or from a query that began
    at most 10 s before the watcher observed the request. Older facts prove nothing.
    """

    request: SigningRequest
    node_uid: str = ""  # uid of the Node whose machine was queried
    facts: MachineFacts | None = None
    answering_addresses: tuple[str, ...] = ()  # dialed addresses at which the machine of the node answered
    fault: MachineFault | None = None
    without_talos: bool = False  # --without-talos: metadata queries no machine
    observed_at: Timestamp
    enriched_at: Timestamp


class EnrichedCsrGone(EnrichedEvent, frozen=True, kw_only=True, tag="EnrichedCsrGone.v1"):
    """CsrGone, republished for services that consume only enriched CSRs."""

    name: str
    uid: str


class ClusterNetworksObserved(StreamEvent, frozen=True, kw_only=True, tag="ClusterNetworksObserved.v1"):
    """The cluster's pod and service networks, as in the machine config of a control plane.

    metadata publishes them when they change and again every few minutes. A failed query publishes nothing:
    the last event remains valid. Without any event the networks are unknown.
    """

    pod_cidrs: tuple[str, ...] = ()  # one, or one per family; host bits may be set
    service_cidrs: tuple[str, ...] = ()
    node_cidr_mask_size_ipv4: int | None = None  # None = not in the machine config, or Talos before 1.14
    node_cidr_mask_size_ipv6: int | None = None
    observed_at: Timestamp  # time of the query; determines the order


# ---- of cloud: what the cloud of one account answers about the instance of a Node


class InstanceEvent(StreamEvent, frozen=True, kw_only=True):
    """The result of one round of queries about the instance of a Node.

    A round belongs to one credential. A reader drops an event whose account and name are not those of its
    subject, and one whose round did not begin after that of the event it has: it may be a repetition.
    """

    account: str
    name: str  # of the Node
    node_uid: str
    provider_id: str
    asked_at: Timestamp  # begin of the round's first query
    answered_at: Timestamp  # end of its last one
    credential_loaded_at: Timestamp  # a round before it belongs to another credential


class InstanceReport(InstanceEvent, frozen=True, kw_only=True):
    """Whether the instance of a Node exists."""

    namesake: str = ""  # id of another instance of this account with exactly the Node's name


class _InstanceSeen(InstanceReport, frozen=True, kw_only=True):
    anchor: InstanceAnchor | None = None  # of the project and region; None: not known yet


class InstanceExists(_InstanceSeen, frozen=True, kw_only=True, tag="InstanceExists.v1"):
    """The instance exists, and is not known to be shut down."""


class InstanceShutDown(_InstanceSeen, frozen=True, kw_only=True, tag="InstanceShutDown.v1"):
    """The instance exists and is off."""


class InstanceGone(InstanceReport, frozen=True, kw_only=True, tag="InstanceGone.v1"):
    """The cloud has no instance with this id, no other with the Node's name, and the credential is proven."""

    witness: InstanceWitness


class InstanceUnknown(InstanceReport, frozen=True, kw_only=True, tag="InstanceUnknown.v1"):
    """Nothing is proven: an error, silence, another project's credential, or no witness."""

    reason: str  # in words for an operator
    # the project that has neither this instance, asked for by its id, nor one with the Node's name
    absent_from: InstanceAnchor | None = None


class InstanceMetadata(InstanceEvent, frozen=True, kw_only=True, tag="InstanceMetadata.v1"):
    """What the cloud knows of the instance that a Node's machine names.

    `provider_id` is that of this instance. A machine may name another one's instance, so the reader must
    confirm it. Fields that the cloud does not name are empty.
    """

    why_withheld: str = ""  # why the account supplies nothing, in words for an operator; "" if it does
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    # At which the instance is reached: public ones, and those of the private network in the settings.
    addresses: tuple[str, ...] = ()


# ---- for operators: accounts, pulses, decisions and dead letters, which no service consumes

PULSE_TTL_SECONDS: Final = 30  # a process that ended is forgotten after this time
MAX_PULSE_PROBLEMS: Final = 5
MAX_QUARANTINED_BLOCKS: Final = 100  # in one pulse
MAX_PULSE_EVENTS: Final = 100


class RecordedNodeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A Kubernetes Event about a Node, as a service has written it."""

    node: str
    uid: str  # of the Node
    component: str  # its source, as `kubectl describe` shows it
    type: Literal["Normal", "Warning"]
    reason: str
    message: str  # its begin
    at: Timestamp


class QuarantinedBlock(msgspec.Struct, frozen=True, kw_only=True):
    """A block of a deleted Node, which ipam does not allocate yet."""

    block: str
    node: str  # "" for a name that Kubernetes would not accept
    since: Timestamp  # ipam noticed that the Node is gone
    until: Timestamp  # at the earliest: an ipam process that starts measures the whole quarantine


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks in quarantine, by the claims that one ipam process has read."""

    read_at: Timestamp
    count: int
    blocks: tuple[QuarantinedBlock, ...]  # those that end first, at most MAX_QUARANTINED_BLOCKS


class Pulse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="Pulse.v1"):
    """A running service of one process; published every ten seconds, and expires soon after its end."""

    service: str
    instance: str  # identity of the process
    problems: tuple[str, ...] = ()  # why it is not ready, in words for an operator
    is_leading: bool | None = None  # None: it elects no leader, or publishes Leading
    errors: Mapping[str, int] = {}  # cause, in words for an operator -> number since the process began
    lag: int = 0  # messages that it follows and has not received yet; durables count their own
    oldest_at: Timestamp | None = None  # no message of `lag` was published before; None during a replay
    quarantine: Quarantine | None = None  # of ipam; None before it has read its claims
    events: tuple[RecordedNodeEvent, ...] = ()  # written since the last pulse, at most MAX_PULSE_EVENTS


class AccountReport(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="AccountReport.v1"
):
    """Whether the cloud of an account answers, and what it has said of all instances."""

    account: str
    provider: str
    failure: str = ""  # why the cloud does not answer, in words for an operator; "" if it does
    instances: Mapping[str, int] = {}  # state, as in the metric talosccm_cloud_instances -> number of Nodes
    # the cloud's own count of requests, shared by all clients of the project; None where it reports none
    requests_left: int | None = None
    rate_limit: int | None = None


class Decided(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="Decided.v1"
):
    """The last decision of a service about an object, published after the service has applied it."""

    service: str
    kind: str  # "node", "csr"
    name: str
    uid: str = ""
    outcome: str  # defined by each service: "initialized", "updated", "unchanged", "blocked", "not-ours"
    reason: str  # in words on which an operator can act
    decided_at: Timestamp
    next_check_at: Timestamp | None = None
    changes: tuple[str, ...] = ()  # one line per written change; with observe-only, per planned change
    rules: tuple[str, ...] = ()  # titles of the rules of --cloud-config that match the Node


class DeadLetter(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="DeadLetter.v1"
):
    """A message that no handler could parse or process, with the reason; the payload is cut at 4 kB."""

    service: str
    kind: str
    name: str
    subject: str
    sequence: int
    reason: str
    payload: str
    at: Timestamp


# ---- all events

ExistingObject = NodeObserved | CsrObserved | KubeServiceObserved
ObservedNode = NodeObserved | NodeGone
EnrichedNode = NodeEnriched | NodeUnreachable | EnrichedNodeGone
ObservedCsr = CsrObserved | CsrGone
EnrichedCsr = CsrEnriched | EnrichedCsrGone
ObservedKubeService = KubeServiceObserved | KubeServiceGone
AnyInstanceReport = InstanceExists | InstanceShutDown | InstanceGone | InstanceUnknown
AnyInstanceEvent = AnyInstanceReport | InstanceMetadata
Event = (
    ObservedNode
    | EnrichedNode
    | ObservedCsr
    | EnrichedCsr
    | ObservedKubeService
    | ClusterNetworksObserved
    | SnapshotComplete
    | Leading
    | AnyInstanceEvent
    | AccountReport
    | Pulse
    | Decided
    | DeadLetter
)


def build_gone(event: ExistingObject) -> NodeGone | CsrGone | KubeServiceGone:
    """Return the deletion of an observed object, in the order of that observation."""
    match event:
        case NodeObserved(stream_id=stream_id, order=order, node=node, observed_at=at):
            return NodeGone(stream_id=stream_id, order=order, name=node.name, uid=node.uid, observed_at=at)
        case CsrObserved(stream_id=stream_id, order=order, request=csr, observed_at=at):
            return CsrGone(stream_id=stream_id, order=order, name=csr.name, uid=csr.uid, observed_at=at)
        case KubeServiceObserved(stream_id=stream_id, order=order, service=service, observed_at=at):
            return KubeServiceGone(
                stream_id=stream_id,
                order=order,
                namespace=service.metadata.namespace,
                name=service.name,
                uid=service.uid,
                observed_at=at,
            )


def build_deletion(event: Event) -> Event | None:
    """Return the deletion of the object that an event reports; None if it reports no object."""
    match event:
        case NodeObserved() | CsrObserved() | KubeServiceObserved():
            return build_gone(event)
        case (
            NodeEnriched(stream_id=stream_id, observed_sequence=sequence, node=node)
            | NodeUnreachable(stream_id=stream_id, observed_sequence=sequence, node=node)
        ):
            return EnrichedNodeGone(
                stream_id=stream_id, observed_sequence=sequence, name=node.name, uid=node.uid
            )
        case NodeGone() | CsrGone() | KubeServiceGone() | EnrichedNodeGone():
            return event
    return None  # enriched requests, too: no service keeps more of one than the stream cache


MAX_EVENT_BYTES: Final = 256 * 1024  # far above any known Node; a larger event is rejected, not truncated

# NodeUnreachable is larger than NodeObserved by at most this much. A smaller limit for NodeObserved ensures
# that metadata can report on every observed Node. ipam waits for a report on each Node, so a single Node with
# large annotations would stop all allocations.
_FAULT_BYTES: Final = 4 * 1024

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class EventError(Exception):
    """The bytes are not an event of this schema; the message contains the position of the error."""


def encode(event: Event) -> bytes:
    """Return the event as JSON. Raises EventError above MAX_EVENT_BYTES (NodeObserved: 4 KiB less)."""
    data = _encoder.encode(event)
    limit = MAX_EVENT_BYTES - (_FAULT_BYTES if isinstance(event, NodeObserved) else 0)
    if len(data) > limit:
        raise EventError(f"{type(event).__name__} has {len(data)} bytes, the limit is {limit}")
    return data


def decode(data: bytes) -> Event:
    """Parse an event. Raises EventError, and no other exception, for any other bytes."""
    try:
        return _decoder.decode(data)
    except JSON_ERRORS as error:
        raise EventError(f"not an event of this schema: {error}") from error
