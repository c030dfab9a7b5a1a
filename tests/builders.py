"""Values for tests: `make_node(labels=...)` names only what the test is about."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from libs.common.bus.protocol import Message, StreamPosition, UnreadablePayload
from libs.common.contract import events
from libs.common.contract.kube_service import (
    LOAD_BALANCER,
    KubeService,
    KubeServiceMeta,
    KubeServiceSpec,
    KubeServiceStatus,
    LoadBalancerIngress,
    LoadBalancerStatus,
    ServicePort,
)
from libs.common.contract.machine import (
    AddressStatus,
    MachineFacts,
    MachineFault,
    PlatformMetadata,
    SystemInformation,
)
from libs.common.contract.node import (
    PROVIDED_NODE_IP_ANNOTATION,
    UNINITIALIZED_TAINT,
    Node,
    NodeAddress,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    NodeSystemInfo,
    ObjectMeta,
    Taint,
)
from libs.common.contract.signing_request import (
    KUBELET_SERVING,
    NODE_USER_PREFIX,
    NODES_GROUP,
    SigningRequest,
    SigningRequestCondition,
    SigningRequestSpec,
    SigningRequestStatus,
)
from libs.common.contract.subjects import subject_of

GoneT = TypeVar("GoneT", events.CsrGone, events.NodeGone)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STREAM_ID = "2026-03-01T11:00:00Z"
FAULT = MachineFault(
    kind="refused", step="connect", endpoint="10.0.0.1:50000 for 10.0.0.5", message="connection refused"
)
UNINITIALIZED = Taint(key=UNINITIALIZED_TAINT, value="true", effect="NoSchedule")


def make_node(
    name: str = "web-1",
    *,
    uid: str = "uid-1",
    ip: str = "10.0.0.5",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    provider_id: str = "",
    pod_cidrs: tuple[str, ...] = (),
    taints: tuple[Taint, ...] = (UNINITIALIZED,),
    addresses: tuple[NodeAddress, ...] = (),
    conditions: tuple[NodeCondition, ...] = (),
    system_uuid: str = "",
    created: datetime = NOW,
    deleted_at: datetime | None = None,
    resource_version: str = "100",
) -> Node:
    """A Node as a kubelet with --cloud-provider=external registers it; ip="" leaves the annotation out."""
    provided = {PROVIDED_NODE_IP_ANNOTATION: ip} if ip else {}
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=uid,
            resource_version=resource_version,
            creation_timestamp=created,
            deletion_timestamp=deleted_at,
            labels={"kubernetes.io/hostname": name} if labels is None else labels,
            annotations=provided | (annotations or {}),
        ),
        spec=NodeSpec(
            provider_id=provider_id,
            pod_cidr=pod_cidrs[0] if pod_cidrs else "",
            pod_cidrs=pod_cidrs,
            taints=taints,
        ),
        status=NodeStatus(
            addresses=addresses, conditions=conditions, node_info=NodeSystemInfo(system_uuid=system_uuid)
        ),
    )


def make_facts(
    *,
    platform: str = "metal",
    node_name: str = "web-1",
    node_ip: str = "10.0.0.5",
    addresses: tuple[AddressStatus, ...] = (AddressStatus(address="10.0.0.5/24", link="eth0", flags=128),),
    uuid: str = "",
    cluster_name: str = "",
    queried_at: datetime = NOW,
    **metadata: Any,
) -> MachineFacts:
    """Facts of a machine of that platform; other keywords are fields of PlatformMetadata."""
    return MachineFacts(
        platform=PlatformMetadata(platform=platform, **metadata),
        system=SystemInformation(uuid=uuid) if uuid else None,
        addresses=addresses,
        node_name=node_name,
        cluster_name=cluster_name,
        queried_at=queried_at,
        node_ip=node_ip,
    )


def make_request(
    name: str = "csr-1",
    *,
    uid: str = "csr-uid-1",
    node: str = "web-1",
    username: str | None = None,
    groups: tuple[str, ...] = (NODES_GROUP, "system:authenticated"),
    signer: str = KUBELET_SERVING,
    usages: tuple[str, ...] = ("digital signature", "server auth"),
    expiration_seconds: int | None = None,
    pem: bytes = b"pem",
    conditions: tuple[SigningRequestCondition, ...] = (),
    certificate: str = "",
    created: datetime = NOW,
    resource_version: str = "100",
) -> SigningRequest:
    """A kubelet's request for a serving certificate, as the API server returns it."""
    return SigningRequest(
        metadata=ObjectMeta(
            name=name, uid=uid, resource_version=resource_version, creation_timestamp=created
        ),
        spec=SigningRequestSpec(
            request=pem,
            signer_name=signer,
            username=f"{NODE_USER_PREFIX}{node}" if username is None else username,
            groups=groups,
            usages=usages,
            expiration_seconds=expiration_seconds,
        ),
        status=SigningRequestStatus(conditions=conditions, certificate=certificate),
    )


def make_kube_service(
    name: str = "web",
    *,
    namespace: str = "shop",
    uid: str = "service-uid-1",
    resource_version: str = "100",
    type: str = LOAD_BALANCER,  # noqa: A002 - the field's name
    load_balancer_class: str | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: tuple[str, ...] = (),
    deleted_at: datetime | None = None,
    ingress: tuple[LoadBalancerIngress, ...] = (),
    **spec: Any,
) -> KubeService:
    """A Service as the API server returns it; other keywords are fields of its spec."""
    return KubeService(
        metadata=KubeServiceMeta(
            name=name,
            namespace=namespace,
            uid=uid,
            resource_version=resource_version,
            creation_timestamp=NOW,
            deletion_timestamp=deleted_at,
            annotations=annotations or {},
            finalizers=finalizers,
        ),
        spec=KubeServiceSpec(
            type=type,
            load_balancer_class=load_balancer_class,
            **{"ports": (ServicePort(name="http", port=80, node_port=30080),), **spec},
        ),
        status=KubeServiceStatus(load_balancer=LoadBalancerStatus(ingress=ingress)),
    )


def make_kube_service_observed(
    service: KubeService, *, stream_id: str = STREAM_ID, epoch: int = 1
) -> events.KubeServiceObserved:
    """The watcher's event of a Service, ordered by its resourceVersion."""
    order = events.ObservationOrder(epoch=epoch, resource_version=service.resource_version_number)
    return events.KubeServiceObserved(stream_id=stream_id, order=order, service=service, observed_at=NOW)


def make_csr_observed(
    request: SigningRequest, *, stream_id: str = STREAM_ID, epoch: int = 1
) -> events.CsrObserved:
    """The watcher's event of a request, ordered by its resourceVersion."""
    order = events.ObservationOrder(epoch=epoch, resource_version=request.resource_version_number)
    return events.CsrObserved(stream_id=stream_id, order=order, request=request, observed_at=NOW)


def _make_gone(
    event: type[GoneT],
    gone: Node | SigningRequest,
    *,
    stream_id: str = STREAM_ID,
    epoch: int = 1,
    resource_version: int = 10**6,
) -> GoneT:
    order = events.ObservationOrder(epoch=epoch, resource_version=resource_version)
    return event(stream_id=stream_id, order=order, name=gone.name, uid=gone.uid, observed_at=NOW)


def make_csr_gone(request: SigningRequest, **fields: Any) -> events.CsrGone:
    """The watcher's event of a deleted request; keywords: stream_id, epoch, resource_version."""
    return _make_gone(events.CsrGone, request, **fields)


def _fields_of_enriched(stream_id: str, observed_sequence: int) -> dict[str, Any]:
    return {
        "stream_id": stream_id, "observed_sequence": observed_sequence,
        "observed_at": NOW, "enriched_at": NOW,
    }  # fmt: skip


def make_csr_enriched(
    request: SigningRequest, *, stream_id: str = STREAM_ID, observed_sequence: int = 1, **fields: Any
) -> events.CsrEnriched:
    """Metadata's event of a request; other keywords are fields of CsrEnriched: facts, fault, ..."""
    return events.CsrEnriched(request=request, **_fields_of_enriched(stream_id, observed_sequence), **fields)


def make_node_observed(node: Node, *, stream_id: str = STREAM_ID, epoch: int = 1) -> events.NodeObserved:
    """The watcher's event of a Node, ordered by its resourceVersion."""
    order = events.ObservationOrder(epoch=epoch, resource_version=int(node.metadata.resource_version))
    return events.NodeObserved(stream_id=stream_id, order=order, node=node, observed_at=NOW)


def make_node_gone(node: Node, **fields: Any) -> events.NodeGone:
    """The watcher's event of a deleted Node; keywords: stream_id, epoch, resource_version."""
    return _make_gone(events.NodeGone, node, **fields)


def make_node_enriched(
    node: Node,
    facts: MachineFacts,
    *,
    stream_id: str = STREAM_ID,
    observed_sequence: int = 1,
    verified_by: str = "nodename",
) -> events.NodeEnriched:
    """Metadata's event of a Node."""
    order = _fields_of_enriched(stream_id, observed_sequence)
    return events.NodeEnriched(node=node, facts=facts, verified_by=verified_by, **order)


def make_unreachable(
    node: Node | None = None, *, fault: MachineFault = FAULT, attempt: int = 1, **fields: Any
) -> events.NodeUnreachable:
    """The event for a Node; other keywords are fields of NodeUnreachable."""
    usual: dict[str, Any] = {
        "stream_id": STREAM_ID,
        "observed_sequence": 1,
        "retry_at": NOW + timedelta(seconds=attempt),
        "observed_at": NOW,
        "enriched_at": NOW,
    }
    return events.NodeUnreachable(node=node or make_node(), fault=fault, attempt=attempt, **(usual | fields))


def make_cluster_networks(
    *,
    stream_id: str = STREAM_ID,
    pod_cidrs: tuple[str, ...] = ("10.244.0.0/16",),
    service_cidrs: tuple[str, ...] = ("10.96.0.0/12",),
    observed_at: datetime = NOW,
    **masks: int,
) -> events.ClusterNetworksObserved:
    """Metadata's event of the cluster's networks; other keywords are its mask sizes."""
    return events.ClusterNetworksObserved(
        stream_id=stream_id,
        pod_cidrs=pod_cidrs,
        service_cidrs=service_cidrs,
        observed_at=observed_at,
        **masks,
    )


def make_snapshot(
    *, stream_id: str = STREAM_ID, epoch: int = 1, nodes: int = 0, service_cidrs: tuple[str, ...] = ()
) -> events.SnapshotComplete:
    """The watcher's event after all objects of a snapshot."""
    return events.SnapshotComplete(stream_id=stream_id, epoch=epoch, nodes=nodes, service_cidrs=service_cidrs)


def make_leading(*, stream_id: str = STREAM_ID, epoch: int = 1, holder: str = "a") -> events.Leading:
    """The leader's heartbeat."""
    return events.Leading(stream_id=stream_id, epoch=epoch, holder=holder)


def make_message(
    event: events.Event | UnreadablePayload, *, sequence: int = 1, subject: str = "", **fields: Any
) -> Message:
    """An event as the bus delivers it."""
    where = subject or (
        "talosccm.v1.flow.observed.node.x" if isinstance(event, UnreadablePayload) else subject_of(event)
    )
    return Message(subject=where, event=event, sequence=sequence, published_at=NOW, **fields)


def make_position(last: int = 10, stream_id: str = STREAM_ID) -> StreamPosition:
    """The position at which a follower begins, with that many messages in the stream."""
    return StreamPosition(stream_id=stream_id, last_sequence=last)


def make_decided(
    service: str = "labeler", kind: str = "node", name: str = "web-1", **fields: Any
) -> events.Decided:
    """A decision of a service; other keywords are fields of Decided."""
    usual: dict[str, Any] = {"outcome": "blocked", "reason": "no address", "decided_at": NOW}
    return events.Decided(service=service, kind=kind, name=name, **(usual | fields))


def make_dead_letter(name: str, **fields: Any) -> events.DeadLetter:
    """A dead letter of the labeler about that Node; other keywords are fields of DeadLetter."""
    usual: dict[str, Any] = {
        "subject": f"talosccm.v1.flow.enriched.node.{name}", "sequence": 4, "payload": "{", "at": NOW
    }  # fmt: skip
    return events.DeadLetter(service="labeler", kind="node", name=name, **(usual | fields))
