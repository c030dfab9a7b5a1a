"""What the watcher says: Nodes and CSRs as Kubernetes holds them, how complete that is, and who leads."""

import msgspec

from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.timestamp import Timestamp


class ObservationOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, order=True):
    """Where an observation stands among others of its subject, within one incarnation of the stream.

    The epoch counts leaders; resourceVersion is the API server's (comparable integers, KEP-5504).
    """

    epoch: int
    resource_version: int


class NodeObserved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeObserved.v1"
):
    """How the Node is now."""

    stream_id: str = msgspec.field(name="incarnation")
    order: ObservationOrder
    node: Node
    observed_at: Timestamp


class NodeGone(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeGone.v1"
):
    """No Node of that name and uid exists any more."""

    stream_id: str = msgspec.field(name="incarnation")
    order: ObservationOrder
    name: str
    uid: str
    observed_at: Timestamp


class CsrObserved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="CsrObserved.v1"
):
    """How a kubelet-serving CertificateSigningRequest of a node is now."""

    stream_id: str = msgspec.field(name="incarnation")
    order: ObservationOrder
    request: SigningRequest
    observed_at: Timestamp


class CsrGone(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="CsrGone.v1"
):
    """No such CertificateSigningRequest exists any more, or 16 newer ones of its requester wait."""

    stream_id: str = msgspec.field(name="incarnation")
    order: ObservationOrder
    name: str
    uid: str
    observed_at: Timestamp


class SnapshotComplete(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="event",
    tag="SnapshotComplete.v1",
):
    """Every Node that a list returned has been published to this incarnation of the stream; so have CSRs."""

    stream_id: str = msgspec.field(name="incarnation")
    epoch: int
    nodes: int
    requests: int | None = None  # how many CSRs; None: not watched, or not listed yet


class Leading(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="Leading.v1"
):
    """Said by the leader at each renewal of its Lease; expires with the renew deadline."""

    stream_id: str = msgspec.field(name="incarnation")
    epoch: int
    holder: str
