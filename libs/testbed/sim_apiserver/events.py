"""Events of core/v1: almost no validation, no merging."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType, field

from libs.testbed.sim_apiserver.objects import Meta, MicroTime, ResourceKind, Time, validate_metadata
from libs.testbed.sim_apiserver.refusals import Cause, invalid_value


class ObjectReference(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """The involved object of an Event."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""


class EventSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The source of an Event, in the fields of the older API."""

    component: str = ""
    host: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An Event as the real server encodes it: some fields are present even if empty."""

    metadata: Meta = field(default_factory=Meta)
    involved_object: ObjectReference = field(default_factory=ObjectReference)
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    source: EventSource = field(default_factory=EventSource)
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    count: int | UnsetType = UNSET
    type: str | UnsetType = UNSET
    event_time: MicroTime | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


def validate_event(new: Event, old: Event | None) -> list[Cause]:
    """Return a cause unless the Event is in its object's namespace, or `default` without one."""
    causes = validate_metadata(new.metadata, old.metadata if old else None)
    about = new.involved_object.namespace
    if new.metadata.namespace != (about or "default"):
        causes.append(invalid_value(about, "does not match event.namespace", "involvedObject.namespace"))
    return causes


EVENTS: Final = ResourceKind(
    "events",
    "Event",
    Event,
    short_names=("ev",),
    is_namespaced=True,
    validate=validate_event,
    field_selectors={
        "metadata.name": lambda event: str(event.metadata.name),
        "metadata.namespace": lambda event: str(event.metadata.namespace),
        "type": lambda event: str(event.type or ""),
        "involvedObject.uid": lambda event: str(event.involved_object.uid),
        "involvedObject.name": lambda event: str(event.involved_object.name),
        "involvedObject.kind": lambda event: str(event.involved_object.kind),
    },
)
