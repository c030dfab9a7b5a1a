"""Builds core/v1 Events. Their names make repeated creation harmless."""

import hashlib
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

_MESSAGE_LIMIT: Final = 1024  # characters; the events API rejects longer notes
_NAME_HEAD: Final = 200  # of the 253 characters of a name; 17 more are the suffix


class ObjectReference(msgspec.Struct, frozen=True, kw_only=True):
    """The object that an Event is about."""

    kind: str
    name: str
    uid: str
    api_version: str = "v1"
    namespace: str = ""  # cluster scoped


class ObjectEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An Event to write: `reason` in CamelCase, `message` in words for an operator."""

    regarding: ObjectReference
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
    component: str  # its source in `kubectl describe`
    discriminator: str = ""  # distinguishes Events with the same reason in the same minute


def node_reference(name: str, uid: str) -> ObjectReference:
    """Return a reference with the Node's real uid, which kubectl describe and cloud-node-controller use."""
    return ObjectReference(kind="Node", name=name, uid=uid)


def event_namespace(regarding: ObjectReference) -> str:
    """Return the namespace of an Event: that of its object, `default` for cluster-scoped ones (client-go)."""
    return regarding.namespace or "default"


def event_name(event: ObjectEvent, now: datetime) -> str:
    """Return the name: equal for one uid, reason, discriminator and minute, so replicas write it once."""
    parts = [event.regarding.uid, event.reason, now.strftime("%Y-%m-%dT%H:%MZ")]
    text = "\n".join(parts + [event.discriminator] * bool(event.discriminator))
    head = event.regarding.name[:_NAME_HEAD].rstrip("-.")
    return f"{head}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def event_body(event: ObjectEvent, *, instance: str, now: datetime) -> dict[str, Any]:
    """Return the Event as JSON; `instance` is the process that reports it, `now` is in UTC."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    about = event.regarding
    involved = {"apiVersion": about.api_version, "kind": about.kind, "name": about.name, "uid": about.uid}
    if about.namespace:
        involved["namespace"] = about.namespace
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event_name(event, now), "namespace": event_namespace(about)},
        "involvedObject": involved,
        "reason": event.reason,
        "message": event.message[:_MESSAGE_LIMIT],
        "type": event.type,
        "source": {"component": event.component},
        "reportingComponent": event.component,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
