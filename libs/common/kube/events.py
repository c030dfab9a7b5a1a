"""The core/v1 Events that we write: what is said about whom, named so that saying it twice is harmless."""

import hashlib
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

_MESSAGE_LIMIT: Final = 1024  # characters; the events API refuses longer notes
_NAME_HEAD: Final = 200  # of the 253 characters that a name may have; 17 more are ours


class ObjectReference(msgspec.Struct, frozen=True, kw_only=True):
    """The object that an Event is about."""

    kind: str
    name: str
    uid: str
    api_version: str = "v1"
    namespace: str = ""  # cluster scoped


class ObjectEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to be told on an object: `reason` in CamelCase, `message` in words for an operator.

    `component` is who says it, as `kubectl describe` shows it; "" = whoever the KubeApi was made for.
    """

    regarding: ObjectReference
    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"
    component: str = ""
    discriminator: str = ""  # tells it apart from others of the same reason in the same minute


def node_reference(name: str, uid: str) -> ObjectReference:
    """A Node by its real uid, as cloud-node-controller does, and kubectl describe finds it."""
    return ObjectReference(kind="Node", name=name, uid=uid)


def event_namespace(regarding: ObjectReference) -> str:
    """Events live beside their object; about cluster scoped ones, in `default` (client-go)."""
    return regarding.namespace or "default"


def event_name(event: ObjectEvent, now: datetime) -> str:
    """The same for one uid, reason, particular and minute: the second of two replicas hears AlreadyExists."""
    parts = [event.regarding.uid, event.reason, now.strftime("%Y-%m-%dT%H:%MZ")]
    said = "\n".join(parts + [event.discriminator] * bool(event.discriminator))
    head = event.regarding.name[:_NAME_HEAD].rstrip("-.")
    return f"{head}.{hashlib.sha256(said.encode()).hexdigest()[:16]}"


def event_body(event: ObjectEvent, *, component: str, instance: str, now: datetime) -> dict[str, Any]:
    """The Event as JSON; `now` in UTC, `component` and `instance` sign it unless it says who says it."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    about = event.regarding
    component = event.component or component
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
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": instance,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
