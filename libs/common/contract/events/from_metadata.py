"""Events of metadata: Nodes and CSRs with the facts or fault of their machines; the cluster's networks."""

from libs.common.contract.address_history import AddressHistory
from libs.common.contract.events.stream_event import EnrichedEvent, StreamEvent
from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.timestamp import Timestamp


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
