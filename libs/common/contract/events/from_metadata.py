"""What metadata says: a Node, or a CSR, with what its machine says or why not; the cluster's networks."""

import msgspec

from libs.common.contract.machine import ForeignMachine, MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.timestamp import Timestamp


class NodeEnriched(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeEnriched.v1"
):
    """The Node, and what the machine that bears it attests.

    Of its podCIDRs alone there is no new word: who reads those follows observed Nodes.
    """

    stream_id: str = msgspec.field(name="incarnation")
    observed_sequence: int  # stream sequence of the observation that it enriches: its place in the order
    node: Node
    facts: MachineFacts
    verified_by: str = msgspec.field(
        name="recognized_by"
    )  # "nodename", or "system-uuid" (kubelet's hostname-override)
    observed_at: Timestamp
    enriched_at: Timestamp


class NodeUnreachable(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeUnreachable.v1"
):
    """The machine behind the Node gave no facts; the last known ones, if any, with their own time."""

    stream_id: str = msgspec.field(name="incarnation")
    observed_sequence: int
    node: Node
    fault: MachineFault
    last_known: MachineFacts | None = None
    attempt: int  # consecutive failures with this fault's kind and step
    retry_at: Timestamp
    # Who answers where the Node should: one for each of its addresses, and only if each of them was answered,
    # each by a machine that bears another node's name, and the cluster's discovery was asked, knows those
    # machines and no member of the Node's name. Else empty: silence, errors and half an answer prove nothing.
    # It is said anew with each look, at least once a minute while it lasts.
    foreign_machines: tuple[ForeignMachine, ...] = msgspec.field(default=(), name="answered_by")
    observed_at: Timestamp
    enriched_at: Timestamp


class EnrichedNodeGone(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event",
    tag="EnrichedNodeGone.v1",
):
    """NodeGone, passed on to those who hear enriched nodes only."""

    stream_id: str = msgspec.field(name="incarnation")
    observed_sequence: int
    name: str
    uid: str


class CsrEnriched(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="CsrEnriched.v1"
):
    """A pending request of a node, and what the machine that bears the node's name attests.

    Facts, a fault, or neither: then there is no Node of that name yet, its requester has a newer pending
    request, or Talos is not asked at all (`without_talos`). Facts are under a live watch, or of a look that
    began at most 10 s before the request was observed: what is older proves nothing.
    """

    stream_id: str = msgspec.field(name="incarnation")
    observed_sequence: int  # stream sequence of the observation that it enriches: its place in the order
    request: SigningRequest
    node_uid: str = ""  # of the Node whose machine was asked
    facts: MachineFacts | None = None
    answering_addresses: tuple[str, ...] = msgspec.field(
        default=(), name="answered_at"
    )  # dialled, and the machine of that node name answered
    fault: MachineFault | None = None
    without_talos: bool = False  # by configuration: no machine is ever asked
    observed_at: Timestamp
    enriched_at: Timestamp


class EnrichedCsrGone(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="EnrichedCsrGone.v1"
):
    """CsrGone, passed on to those who hear enriched CSRs only."""

    stream_id: str = msgspec.field(name="incarnation")
    observed_sequence: int
    name: str
    uid: str


class ClusterNetworksObserved(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event",
    tag="ClusterNetworksObserved.v1",
):
    """The cluster's pod and service networks, as a control plane's machine config has them.

    Said when they change and again each few minutes. A question that fails says nothing: what was said
    last stands, and where nothing was ever said, nothing is known.
    """

    stream_id: str = msgspec.field(name="incarnation")
    pod_cidrs: tuple[str, ...] = ()  # one, or one per family; host bits may be set
    service_cidrs: tuple[str, ...] = ()
    node_cidr_mask_size_ipv4: int | None = None  # None = not in the machine config, or Talos before 1.14
    node_cidr_mask_size_ipv6: int | None = None
    observed_at: Timestamp  # when it was asked for: its place in the order
