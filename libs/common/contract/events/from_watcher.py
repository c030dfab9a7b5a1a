"""Events of the watcher: the state of Nodes and CSRs in Kubernetes, their completeness, and the leader."""

import msgspec

from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.timestamp import Timestamp


class ObservationOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, order=True):
    """Orders the observations of one subject within one stream ID.

    The epoch counts leaderships. The resourceVersion comes from the API server (comparable integers,
    KEP-5504).
    """

    epoch: int
    resource_version: int


class NodeObserved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeObserved.v1"
):
    """The current state of a Node."""

    stream_id: str = msgspec.field(name="incarnation")
    order: ObservationOrder
    node: Node
    observed_at: Timestamp


class NodeGone(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="NodeGone.v1"
):
    """No Node with that name and uid exists anymore."""

    stream_id: str = msgspec.field(name="incarnation")
    order: ObservationOrder
    name: str
    uid: str
    observed_at: Timestamp


class CsrObserved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="CsrObserved.v1"
):
    """The current state of a node's CertificateSigningRequest for kubelet-serving."""

    stream_id: str = msgspec.field(name="incarnation")
    order: ObservationOrder
    request: SigningRequest
    observed_at: Timestamp


class CsrGone(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="CsrGone.v1"
):
    """The CertificateSigningRequest does not exist anymore, or its requester has 16 newer pending ones."""

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
    """The watcher has published every Node and CSR of a list to the stream with this stream ID."""

    stream_id: str = msgspec.field(name="incarnation")
    epoch: int
    nodes: int
    requests: int | None = None  # number of CSRs; None: not watched, or not listed yet


class Leading(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event", tag="Leading.v1"
):
    """Published by the leading watcher at each renewal of its Lease; expires with the renew deadline."""

    stream_id: str = msgspec.field(name="incarnation")
    epoch: int
    holder: str
