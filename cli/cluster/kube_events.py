"""Events of Kubernetes. Pure."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec

from libs.common.contract.node import ApiObject
from libs.common.kube.events import ObjectReference

CONFIG_REJECTED: Final = "CloudConfigRejected"
CONFIG_EVENTS: Final = (CONFIG_REJECTED, "CloudConfigAccepted")  # about the labeler's --cloud-config
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class InvolvedObject(msgspec.Struct, frozen=True, kw_only=True):
    """The involvedObject of an Event, reduced to these fields."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class KubeEvent(ApiObject, frozen=True, kw_only=True, rename="camel"):
    """A core/v1 Event, reduced to these fields."""

    involved_object: InvolvedObject = InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def at(self) -> datetime:
        """Return the time of the Event's last occurrence."""
        return self.last_timestamp or self.event_time or self.metadata.creation_timestamp or _LONG_AGO


def select_events(events: Iterable[KubeEvent], about: ObjectReference) -> tuple[KubeEvent, ...]:
    """Return the Events about this object, newest first."""
    found = (e for e in events if (e.involved_object.kind, e.involved_object.uid) == (about.kind, about.uid))
    return tuple(sorted(found, key=lambda one: one.at, reverse=True))


def find_config_rejection(events: Iterable[KubeEvent]) -> KubeEvent | None:
    """Return the Event of a rejected --cloud-config, unless a newer file was accepted."""
    latest = next((each for each in events if each.reason in CONFIG_EVENTS), None)
    return latest if latest is not None and latest.reason == CONFIG_REJECTED else None
