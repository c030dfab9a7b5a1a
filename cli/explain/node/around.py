"""What Kubernetes holds around a Node: what was told on it, who leads, its requests, our pods. Pure."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from cli.explain.filed import Filed
from libs.common.kube_api.lease import Lease
from libs.common.node import NodeCondition, ObjectMeta

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class Involved(msgspec.Struct, frozen=True, kw_only=True):
    """involvedObject of an Event, as far as it is told."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class HeldEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A core/v1 Event."""

    metadata: ObjectMeta
    involved_object: Involved = Involved()
    reason: str | None = None
    message: str | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None


class _Waits(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    waiting: _Waits | None = None
    terminated: _Waits | None = None


class _Container(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    state: _State = _State()
    last_state: _State = _State()


class _PodStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    phase: str = ""
    conditions: tuple[NodeCondition, ...] = ()  # of the same shape
    container_statuses: tuple[_Container, ...] = ()


class HeldPod(msgspec.Struct, frozen=True, kw_only=True):
    """A core/v1 Pod."""

    metadata: ObjectMeta
    status: _PodStatus = _PodStatus()

    @property
    def service(self) -> str:
        """Which of ours runs in it, by the chart's label."""
        return self.metadata.labels.get("app.kubernetes.io/component", "")

    @property
    def ready(self) -> bool:
        return any((each.type, each.status) == ("Ready", "True") for each in self.status.conditions)

    @property
    def why_not_ready(self) -> str:
        """In words; "" for one that is."""
        if self.ready:
            return ""
        states = [each.state for each in self.status.container_statuses]
        states += [each.last_state for each in self.status.container_statuses]
        said = next(filter(None, (state.waiting or state.terminated for state in states)), None)
        if said is None:
            return f"its phase is {self.status.phase or 'not known'}"
        return ": ".join(filter(None, (said.reason, said.message)))


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What an Event says."""

    reason: str
    message: str
    at: datetime


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """The watcher's Lease."""

    holder: str = ""
    renewed_at: datetime | None = None
    seconds: int = 15  # for which it holds

    def why_nobody_leads(self, at: datetime) -> str:
        """By this clock, in words; "" where somebody does."""
        if not self.holder:
            return "is held by nobody"
        if self.renewed_at is None:
            return f"of {self.holder} bears no time"
        age = (at - self.renewed_at).total_seconds()
        return (
            f"was renewed {age:.0f} s ago, by {self.holder}, for {self.seconds} s"
            if age > self.seconds
            else ""
        )


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; None where it was not looked at, or may not be."""

    events: tuple[Told, ...] = ()  # on the Node, the newest first
    of_cluster: tuple[Told, ...] = ()  # on all of it
    request: Filed | None = None  # the newest one of its kubelet for a serving certificate
    leadership: Leadership | None = None
    pods: tuple[HeldPod, ...] = ()
    network_unavailable: NodeCondition | None = None
    untold: tuple[str, ...] = ()  # what may not be read, and why

    def event(self, *reasons: str) -> Told | None:
        """The newest of these reasons."""
        return next((told for told in self.events if told.reason in reasons), None)

    def pods_not_ready(self, *services: str) -> Iterator[str]:
        """Which of these services' pods are not, and why."""
        for pod in self.pods:
            if pod.service in services and pod.why_not_ready:
                yield f"pod {pod.metadata.name} is not ready: {pod.why_not_ready}"


def told(events: Iterable[HeldEvent], *uids: str) -> tuple[Told, ...]:
    """Of those about one of these objects, the newest first."""
    found = [
        Told(reason=each.reason or "", message=each.message or "", at=_at(each))
        for each in events
        if each.involved_object.uid in uids
    ]
    return tuple(sorted(found, key=lambda one: one.at, reverse=True))


def leadership(lease: Lease) -> Leadership:
    """What the Lease says; times that are none count as none."""
    try:
        renewed = msgspec.convert(lease.spec.renew_time, datetime | None)
    except msgspec.ValidationError:
        renewed = None
    seconds = lease.spec.lease_duration_seconds or Leadership().seconds
    return Leadership(holder=lease.holder, renewed_at=renewed, seconds=seconds)


def _at(event: HeldEvent) -> datetime:
    return event.last_timestamp or event.event_time or event.metadata.creation_timestamp or _LONG_AGO
