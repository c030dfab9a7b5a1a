"""Events about Nodes and about the whole cluster."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from cli.cluster.kube_listing import list_all
from libs.common.contract.node import ObjectMeta
from libs.common.kube.api import KubeApi
from libs.common.kube.event_recorder import CLUSTER_REFERENCE
from libs.common.kube.objects import Resource

CONFIG_REJECTED: Final = "CloudConfigRejected"
CONFIG_EVENTS: Final = (CONFIG_REJECTED, "CloudConfigAccepted")  # about the labeler's --cloud-config
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class InvolvedObject(msgspec.Struct, frozen=True, kw_only=True):
    """The involvedObject of an Event, reduced to these fields."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class KubeEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A core/v1 Event, reduced to these fields."""

    metadata: ObjectMeta
    involved_object: InvolvedObject = InvolvedObject()
    reason: str | None = None
    message: str | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None


class EventSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Reason, message and time of an Event."""

    reason: str
    message: str
    at: datetime


async def list_cluster_events(kube: KubeApi) -> tuple[EventSummary, ...]:
    """Return the Events about the whole cluster, newest first. Raises KubeError."""
    found = await list_all(kube, make_event_resource(CLUSTER_REFERENCE.name))
    about = (each for each in found if each.involved_object.kind == CLUSTER_REFERENCE.kind)
    return summarize_events(about, CLUSTER_REFERENCE.uid)


def find_config_rejection(events: Iterable[EventSummary]) -> EventSummary | None:
    """Return the Event of a rejected --cloud-config, unless a newer file was accepted."""
    latest = next((each for each in events if each.reason in CONFIG_EVENTS), None)
    return latest if latest is not None and latest.reason == CONFIG_REJECTED else None


def make_event_resource(name: str) -> Resource[KubeEvent]:
    """Return the Events about cluster-scoped objects of that name, which are in `default`."""
    return Resource(
        plural="events",
        path="/api/v1/namespaces/default/events",
        item=KubeEvent,
        query={"fieldSelector": f"involvedObject.name={name}"},
    )


def summarize_events(events: Iterable[KubeEvent], *uids: str) -> tuple[EventSummary, ...]:
    """Return the Events about objects with these UIDs, newest first."""
    found = [
        EventSummary(reason=each.reason or "", message=each.message or "", at=_get_event_time(each))
        for each in events
        if each.involved_object.uid in uids
    ]
    return tuple(sorted(found, key=lambda one: one.at, reverse=True))


def _get_event_time(event: KubeEvent) -> datetime:
    return event.last_timestamp or event.event_time or event.metadata.creation_timestamp or _LONG_AGO
