"""The differences between Nodes, CSRs and Services; the code to list, watch and publish them is shared."""

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from libs.common.contract.events import (
    CsrGone,
    CsrObserved,
    Event,
    ExistingObject,
    KubeServiceGone,
    KubeServiceObserved,
    NodeGone,
    NodeObserved,
    ObservedCsr,
    ObservedKubeService,
    ObservedNode,
)
from libs.common.contract.kube_service import KubeService
from libs.common.contract.node import Node
from libs.common.contract.signing_request import SigningRequest
from libs.common.contract.subjects import NAME_LIMIT, OBSERVED_CSR, OBSERVED_NODE, OBSERVED_SERVICE

ObjectT = TypeVar("ObjectT", bound=Node | SigningRequest | KubeService)
ObservedEvent = ObservedNode | ObservedCsr | ObservedKubeService

# Per requester: a kubelet waits only for its newest request, and a noisy one must not fill the stream.
MAX_PENDING_PER_REQUESTER: Final = 16


class Kind(msgspec.Struct, Generic[ObjectT], frozen=True, kw_only=True):
    """Describes one kind of object: names, relevant fields and events."""

    log_field: str  # name of the field with the object's key in log lines
    log_message: str  # message of the log line after a publish
    is_logged: bool  # a first state and a deletion get that line at INFO; all other lines are at DEBUG
    resource: str  # plural, as in the Kubernetes API; also a metric label
    count_field: str  # of SnapshotComplete
    stream_bytes: int  # what one object of ordinary size needs in the stream
    subject: str
    is_relevant: Callable[[ObjectT], bool] = lambda each: True  # other objects are never published
    # queue of at most MAX_PENDING_PER_REQUESTER objects; "": none
    queue_key: Callable[[ObjectT], str] = lambda each: ""
    # whether the resync publishes it again unchanged
    is_republished: Callable[[ObjectT], bool] = lambda each: True
    # whether further changes of a controller follow at once
    is_settling: Callable[[ObjectT], bool] = lambda each: False
    max_cooldown_seconds: float  # upper limit of the pause between two messages of one object
    extract_object: Callable[[Event | None], ObjectT | None]  # the existing object in an event, if it has one
    build_observed: Callable[..., ExistingObject]  # from an object and the other fields of the event
    build_unknown_gone: Callable[..., ObservedEvent]  # from a name whose uid is unknown, and the other fields


def _queue_key(request: SigningRequest) -> str:
    """Return the queue of the node, or of a user with the node's name who is not that node."""
    return request.node_name if request.is_requested_by_node else f"not {request.node_name}"


def _build_unknown_service_gone(key: str, **fields: Any) -> KubeServiceGone:
    namespace, _, name = key.partition(".")
    return KubeServiceGone(namespace=namespace, name=name, uid="", **fields)


NODE: Final[Kind[Node]] = Kind(
    log_field="node",
    log_message="node observed",
    is_logged=True,
    resource="nodes",
    count_field="nodes",
    stream_bytes=20_000,  # with its facts and its decisions, and room for large labels
    subject=OBSERVED_NODE,
    is_settling=lambda node: not node.is_initialized,
    max_cooldown_seconds=8.0,
    extract_object=lambda event: event.node if isinstance(event, NodeObserved) else None,
    build_observed=lambda node, **fields: NodeObserved(node=node, **fields),
    build_unknown_gone=lambda name, **fields: NodeGone(name=name, uid="", **fields),
)

CSR: Final[Kind[SigningRequest]] = Kind(
    log_field="csr",
    log_message="csr observed",
    is_logged=False,  # csr logs the decision
    resource="certificatesigningrequests",
    count_field="requests",
    stream_bytes=12_000,  # with its enrichment, which has the machine's facts, and its decision
    subject=OBSERVED_CSR,
    # A longer name cannot be published, and the watcher would remember why: up to 1 MB each.
    is_relevant=lambda request: request.is_kubelet_serving and len(request.name) <= NAME_LIMIT,
    queue_key=lambda request: _queue_key(request) if request.is_pending else "",
    is_republished=lambda request: request.is_pending or request.is_awaiting_certificate,
    is_settling=lambda request: request.is_awaiting_certificate,
    # csr reads nothing from the API server, and expects the outcome of a request within 5 s.
    max_cooldown_seconds=3.0,
    extract_object=lambda event: event.request if isinstance(event, CsrObserved) else None,
    build_observed=lambda request, **fields: CsrObserved(request=request, **fields),
    build_unknown_gone=lambda name, **fields: CsrGone(name=name, uid="", **fields),
)

SERVICE: Final[Kind[KubeService]] = Kind(
    log_field="kube_service",
    log_message="service observed",
    is_logged=False,  # cloud logs what it does
    resource="services",
    count_field="services",
    stream_bytes=6_000,  # with many ports and annotations
    subject=OBSERVED_SERVICE,
    is_relevant=lambda service: service.may_have_balancer,
    max_cooldown_seconds=3.0,
    extract_object=lambda event: event.service if isinstance(event, KubeServiceObserved) else None,
    build_observed=lambda service, **fields: KubeServiceObserved(service=service, **fields),
    build_unknown_gone=_build_unknown_service_gone,
)
