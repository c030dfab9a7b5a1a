"""The span attributes of events, by the conventions for messaging and Kubernetes."""

from libs.common.bus.protocol import UnreadablePayload
from libs.common.contract import events
from libs.common.contract.subjects import subject_of

_FIXED_TOKENS = 5  # before the name in a subject: talosccm.v1.flow.observed.node
Attributes = dict[str, str | int | float | bool]


def subject_template(subject: str) -> str:
    """Return a subject without the object name: one value for each kind of message."""
    return ".".join(subject.split(".")[:_FIXED_TOKENS])


def event_attributes(event: events.Event | UnreadablePayload) -> Attributes:
    """Return the object of an event and its version."""
    match event:
        case (
            events.NodeObserved(node=node)
            | events.NodeEnriched(node=node)
            | events.NodeUnreachable(node=node)
        ):
            return _of_node(node.name, node.uid) | _of_version(node.metadata.resource_version)
        case events.NodeGone(name=name, uid=uid) | events.EnrichedNodeGone(name=name, uid=uid):
            return _of_node(name, uid)
        case events.InstanceEvent(name=name, node_uid=uid):
            return _of_node(name, uid)
        case events.CsrObserved(request=request) | events.CsrEnriched(request=request):
            of_node: Attributes = {"k8s.node.name": request.node_name} if request.node_name else {}
            metadata = request.metadata
            return of_node | _of_csr(request.name, metadata.uid) | _of_version(metadata.resource_version)
        case events.CsrGone(name=name, uid=uid) | events.EnrichedCsrGone(name=name, uid=uid):
            return _of_csr(name, uid)
        case events.KubeServiceObserved(service=service):
            metadata = service.metadata
            of_service = _of_service(metadata.namespace, service.name, service.uid)
            return of_service | _of_version(metadata.resource_version)
        case events.KubeServiceGone(namespace=namespace, name=name, uid=uid):
            return _of_service(namespace, name, uid)
        case _:
            return {}


def publish_attributes(event: events.Event, *, system: str, size: int) -> Attributes:
    """Return the attributes of a publish; `size` is that of the body in bytes."""
    subject = subject_of(event)
    return event_attributes(event) | {
        "messaging.system": system,
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": subject,
        "messaging.destination.template": subject_template(subject),
        "messaging.message.body.size": size,
    }


def _of_node(name: str, uid: str) -> Attributes:
    return {"k8s.node.name": name, "k8s.node.uid": uid}


def _of_csr(name: str, uid: str) -> Attributes:
    return {"k8s.csr.name": name, "k8s.csr.uid": uid}


def _of_service(namespace: str, name: str, uid: str) -> Attributes:
    return {"k8s.namespace.name": namespace, "k8s.service.name": name, "k8s.service.uid": uid}


def _of_version(resource_version: str) -> Attributes:
    return {"talosccm.event.resource_version": resource_version}
