"""What differs between Nodes and CSRs: all else that is listed, watched and published is one for both."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Generic, TypeVar

import msgspec

from libs.common.contract.events import (
    CsrGone,
    CsrObserved,
    Event,
    NodeGone,
    NodeObserved,
    ObservationOrder,
    ObservedCsr,
    ObservedNode,
)
from libs.common.contract.node import Node, is_same_node, trim_node
from libs.common.contract.signing_request import SigningRequest, is_same_request, trim_signing_request
from libs.common.contract.subjects import NAME_LIMIT, OBSERVED_CSR, OBSERVED_NODE

ObjectT = TypeVar("ObjectT", bound=Node | SigningRequest)
ObservedEvent = ObservedNode | ObservedCsr

# Of one requester. A kubelet waits for its latest only; what a noisy one leaves behind must fill no stream.
MAX_PENDING_PER_REQUESTER: Final = 16


class Kind(msgspec.Struct, Generic[ObjectT], frozen=True, kw_only=True):
    """One kind of object: its names, what we read of one, and the words for it."""

    log_field: str  # of a log's field
    log_message: str  # of the log when one was said
    resource: str  # Kubernetes' word, and the metrics'
    subject: str
    transform: Callable[[ObjectT], ObjectT]
    is_same: Callable[[ObjectT, ObjectT], bool]
    is_relevant: Callable[[ObjectT], bool]  # others are never said
    queue_key: Callable[[ObjectT], str]  # of which at most MAX_PENDING_PER_REQUESTER wait, "" = of none
    is_republished: Callable[[ObjectT], bool]  # in the resync
    max_cooldown_seconds: float  # the longest time between two words of one object, however many there are
    extract_object: Callable[[Event], ObjectT | None]  # the object that exists, as an event says
    build_observed: Callable[[str, ObservationOrder, ObjectT, datetime], ObservedEvent]
    build_gone: Callable[[str, ObservationOrder, ObjectT, datetime], ObservedEvent]


def _build_node_observed(stream_id: str, order: ObservationOrder, node: Node, now: datetime) -> NodeObserved:
    return NodeObserved(stream_id=stream_id, order=order, node=node, observed_at=now)


def _build_node_gone(stream_id: str, order: ObservationOrder, node: Node, now: datetime) -> NodeGone:
    return NodeGone(stream_id=stream_id, order=order, name=node.name, uid=node.uid, observed_at=now)


def _build_csr_observed(
    stream_id: str, order: ObservationOrder, request: SigningRequest, now: datetime
) -> CsrObserved:
    return CsrObserved(stream_id=stream_id, order=order, request=request, observed_at=now)


def _build_csr_gone(
    stream_id: str, order: ObservationOrder, request: SigningRequest, now: datetime
) -> CsrGone:
    return CsrGone(stream_id=stream_id, order=order, name=request.name, uid=request.uid, observed_at=now)


def _queue_key(request: SigningRequest) -> str:
    """One for the node, and one for whoever bears its name and is none: that takes no place of the node's."""
    return request.node_name if request.is_requested_by_node else f"not {request.node_name}"


NODE: Final[Kind[Node]] = Kind(
    log_field="node",
    log_message="node observed",
    resource="nodes",
    subject=OBSERVED_NODE,
    transform=trim_node,
    is_same=is_same_node,
    is_relevant=lambda node: True,
    queue_key=lambda node: "",
    is_republished=lambda node: True,
    max_cooldown_seconds=8.0,
    extract_object=lambda event: event.node if isinstance(event, NodeObserved) else None,
    build_observed=_build_node_observed,
    build_gone=_build_node_gone,
)

CSR: Final[Kind[SigningRequest]] = Kind(
    log_field="csr",
    log_message="csr observed",
    resource="certificatesigningrequests",
    subject=OBSERVED_CSR,
    transform=trim_signing_request,
    is_same=is_same_request,
    # What has a longer name could never be said, and would be remembered by it: up to a megabyte each.
    is_relevant=lambda request: request.is_kubelet_serving and len(request.name) <= NAME_LIMIT,
    queue_key=lambda request: _queue_key(request) if request.is_pending else "",
    is_republished=lambda request: request.is_pending or request.is_awaiting_certificate,
    # csr, which reads nothing, relies on hearing within 5 s what became of a request
    max_cooldown_seconds=3.0,
    extract_object=lambda event: event.request if isinstance(event, CsrObserved) else None,
    build_observed=_build_csr_observed,
    build_gone=_build_csr_gone,
)
