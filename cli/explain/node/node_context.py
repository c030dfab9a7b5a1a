"""What Kubernetes holds around a Node: what was told on it, who leads, its requests, our pods. Pure."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from cli.explain.certificate_signing_request import CertificateSigningRequest
from libs.common.contract.node import ObjectMeta
from libs.common.kube.lease import Lease
from libs.common.kube.pods import Pod
from libs.common.service.service_spec import SERVICES

COMPONENT: Final = "app.kubernetes.io/component"  # of the chart's labels: which service a pod runs
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class InvolvedObject(msgspec.Struct, frozen=True, kw_only=True):
    """involvedObject of an Event, as far as it is told."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class KubeEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A core/v1 Event."""

    metadata: ObjectMeta
    involved_object: InvolvedObject = InvolvedObject()
    reason: str | None = None
    message: str | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None


class EventSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What an Event says."""

    reason: str
    message: str
    at: datetime


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """The watcher's Lease."""

    holder: str = ""
    renewed_at: datetime | None = None
    seconds: int = 15  # for which it holds
    lease_name: str = ""  # namespace and name, where they are not the default ones

    def why_nobody_leads(self, at: datetime) -> str:
        """By this clock, in words; "" where somebody does."""
        why = self._why_nobody_leads(at)
        return f"{self.lease_name} {why}" if why and self.lease_name else why

    def _why_nobody_leads(self, at: datetime) -> str:
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


class NodeContext(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; None where it was not looked at, or may not be."""

    events: tuple[EventSummary, ...] = ()  # on the Node, the newest first
    cluster_events: tuple[EventSummary, ...] = ()  # on all of it
    # the newest one of its kubelet for a serving certificate
    request: CertificateSigningRequest | None = None
    leadership: Leadership | None = None
    pods: tuple[Pod, ...] = ()
    file: str = ""  # --cloud-config as the chart has it, and where that is
    file_source: str = ""
    unavailable_parts: tuple[str, ...] = ()  # what may not be read, and why

    def find_event(self, *reasons: str) -> EventSummary | None:
        """The newest of these reasons."""
        return next((told for told in self.events if told.reason in reasons), None)

    def are_all_down(self, *services: str) -> bool:
        """Whether there is no ready pod of them: while some of several are replaced, the others work."""
        return not any(
            pod.is_ready and pod.metadata.labels.get(COMPONENT, "") in ("", *services) for pod in self.pods
        )

    def list_unready_pods(self, *services: str) -> Iterator[str]:
        """Which of these services' pods are not, and why; or that there is none, where there are others."""
        named = {pod.metadata.labels.get(COMPONENT, ""): pod for pod in self.pods}
        for wiring in SERVICES:  # and not NATS, which may be elsewhere
            if wiring.service in services and any(named) and wiring.service not in named:
                yield f"there is no pod of {wiring.service}"
        for pod in self.pods:
            service = pod.metadata.labels.get(COMPONENT, "")  # "": all services are in it
            if service in ("", *services) and not pod.is_terminated and pod.why_not_ready:
                yield f"pod {pod.name} is not ready: {pod.why_not_ready}"


def summarize_events(events: Iterable[KubeEvent], *uids: str) -> tuple[EventSummary, ...]:
    """Of those about one of these objects, the newest first."""
    found = [
        EventSummary(reason=each.reason or "", message=each.message or "", at=_get_event_time(each))
        for each in events
        if each.involved_object.uid in uids
    ]
    return tuple(sorted(found, key=lambda one: one.at, reverse=True))


def read_leadership(lease: Lease, place: str = "") -> Leadership:
    """What the Lease says; times that are none count as none."""
    try:
        renewed = msgspec.convert(lease.spec.renew_time, datetime | None)
    except msgspec.ValidationError:
        renewed = None
    seconds = lease.spec.lease_duration_seconds or Leadership().seconds
    return Leadership(holder=lease.holder, renewed_at=renewed, seconds=seconds, lease_name=place)


def _get_event_time(event: KubeEvent) -> datetime:
    return event.last_timestamp or event.event_time or event.metadata.creation_timestamp or _LONG_AGO
