"""What differs between Nodes and CSRs: all else that is listed, watched and published is one for both."""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Generic, TypeVar

import msgspec

from libs.common.events import (
    CsrGone,
    CsrObserved,
    Event,
    NodeGone,
    NodeObserved,
    ObservedCsr,
    ObservedNode,
    ObservedOrder,
)
from libs.common.node import Node, same_to_us, what_we_read
from libs.common.signing_request import SigningRequest, same_request_to_us, what_we_read_of_request
from libs.common.subjects import NAME_LIMIT, OBSERVED_CSR, OBSERVED_NODE

Seen = TypeVar("Seen", bound=Node | SigningRequest)
Said = ObservedNode | ObservedCsr

# Of one requester. A kubelet waits for its latest only; what a noisy one leaves behind must fill no stream.
PENDING_LIMIT: Final = 16


class Kind(msgspec.Struct, Generic[Seen], frozen=True, kw_only=True):
    """One kind of object: its names, what we read of one, and the words for it."""

    noun: str  # of a log's field
    message: str  # of the log when one was said
    plural: str  # Kubernetes' word, and the metrics'
    subject: str
    what_we_read: Callable[[Seen], Seen]
    same_to_us: Callable[[Seen, Seen], bool]
    is_ours: Callable[[Seen], bool]  # others are never said
    queue: Callable[[Seen], str]  # of which at most PENDING_LIMIT wait, "" = of none
    is_repeated: Callable[[Seen], bool]  # in the resync
    rest_cap_seconds: float  # the longest time between two words of one object, however many there are
    said: Callable[[Event], Seen | None]  # the object that exists, as an event says
    observed: Callable[[str, ObservedOrder, Seen, datetime], Said]
    gone: Callable[[str, ObservedOrder, Seen, datetime], Said]


def _node_observed(incarnation: str, order: ObservedOrder, node: Node, now: datetime) -> NodeObserved:
    return NodeObserved(incarnation=incarnation, order=order, node=node, observed_at=now)


def _node_gone(incarnation: str, order: ObservedOrder, node: Node, now: datetime) -> NodeGone:
    return NodeGone(incarnation=incarnation, order=order, name=node.name, uid=node.uid, observed_at=now)


def _csr_observed(
    incarnation: str, order: ObservedOrder, request: SigningRequest, now: datetime
) -> CsrObserved:
    return CsrObserved(incarnation=incarnation, order=order, request=request, observed_at=now)


def _csr_gone(incarnation: str, order: ObservedOrder, request: SigningRequest, now: datetime) -> CsrGone:
    return CsrGone(incarnation=incarnation, order=order, name=request.name, uid=request.uid, observed_at=now)


def _queue(request: SigningRequest) -> str:
    """One for the node, and one for whoever bears its name and is none: that takes no place of the node's."""
    return request.node_name if request.is_by_node else f"not {request.node_name}"


NODE: Final[Kind[Node]] = Kind(
    noun="node",
    message="node observed",
    plural="nodes",
    subject=OBSERVED_NODE,
    what_we_read=what_we_read,
    same_to_us=same_to_us,
    is_ours=lambda node: True,
    queue=lambda node: "",
    is_repeated=lambda node: True,
    rest_cap_seconds=8.0,
    said=lambda event: event.node if isinstance(event, NodeObserved) else None,
    observed=_node_observed,
    gone=_node_gone,
)

CSR: Final[Kind[SigningRequest]] = Kind(
    noun="csr",
    message="csr observed",
    plural="certificatesigningrequests",
    subject=OBSERVED_CSR,
    what_we_read=what_we_read_of_request,
    same_to_us=same_request_to_us,
    # What has a longer name could never be said, and would be remembered by it: up to a megabyte each.
    is_ours=lambda request: request.is_kubelet_serving and len(request.name) <= NAME_LIMIT,
    queue=lambda request: _queue(request) if request.pending else "",
    is_repeated=lambda request: request.pending or request.owed,
    rest_cap_seconds=3.0,  # csr, which reads nothing, relies on hearing within 5 s what became of a request
    said=lambda event: event.request if isinstance(event, CsrObserved) else None,
    observed=_csr_observed,
    gone=_csr_gone,
)
