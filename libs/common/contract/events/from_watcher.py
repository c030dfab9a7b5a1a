"""Events of the watcher: the state of Nodes and CSRs in Kubernetes, their completeness, and the leader."""

from typing import Final

import msgspec

from libs.common.contract.events.stream_event import StreamEvent
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.timestamp import Timestamp

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


class _ObjectGone(StreamEvent, frozen=True, kw_only=True):
    order: ObservationOrder
    name: str
    uid: str
    observed_at: Timestamp


class NodeObserved(StreamEvent, frozen=True, kw_only=True, tag="NodeObserved.v1"):
    """The current state of a Node."""

    order: ObservationOrder
    node: Node
    observed_at: Timestamp


class NodeGone(_ObjectGone, frozen=True, kw_only=True, tag="NodeGone.v1"):
    """No Node with that name and uid exists anymore."""


class CsrObserved(StreamEvent, frozen=True, kw_only=True, tag="CsrObserved.v1"):
    """The current state of a node's CertificateSigningRequest for kubelet-serving."""

    order: ObservationOrder
    request: SigningRequest
    observed_at: Timestamp


class CsrGone(_ObjectGone, frozen=True, kw_only=True, tag="CsrGone.v1"):
    """The CertificateSigningRequest does not exist anymore, or its requester has 16 newer pending ones."""


class SnapshotComplete(StreamEvent, frozen=True, kw_only=True, tag="SnapshotComplete.v1"):
    """The watcher has published every Node and CSR of a list to the stream with this stream ID."""

    epoch: int
    nodes: int
    requests: int | None = None  # number of CSRs; None: not watched, or not listed yet
    # The ranges of all ServiceCIDRs, terminating ones included; () if Kubernetes has none, or no such API.
    # None: not known, such as before the first list, or without the right to list. Published again at once
    # when they change.
    service_cidrs: tuple[str, ...] | None = None


class Leading(StreamEvent, frozen=True, kw_only=True, tag="Leading.v1"):
    """Published by the leading watcher at each renewal of its Lease; expires with the renew deadline."""

    epoch: int
    holder: str
