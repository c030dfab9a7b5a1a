"""Observers of the adapters: they record metrics and spans."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from libs.common.bus.protocol import BusError, BusHooks, StreamFull, WrongLastSequence
from libs.common.contract.subjects import ROOT
from libs.common.observability import metrics, telemetry
from libs.common.observability.logs import context_field

_WRITES: Final = frozenset({"create", "update", "patch", "delete"})
# Writes that a joining Node causes. Leases are left out: they are renewed all the time.
_OF_NODES: Final = frozenset(
    {"nodes", "nodes/status", "events", "certificatesigningrequests/approval", "configmaps"}
)


def bus_hooks(services: Sequence[str]) -> BusHooks:
    """Return the hooks for a bus that these services share."""
    connected = [metrics.NATS_CONNECTED.labels(service) for service in services]

    def usable(value: int) -> None:
        for gauge in connected:
            gauge.set(value)

    usable(0)
    return BusHooks(
        published=lambda subject: _published(subject, "published"),
        publish_failed=lambda subject, error: _published(subject, _outcome(error)),
        connected=lambda: usable(1),
        disconnected=lambda reason: usable(0),
        permission_violation=lambda text: metrics.NATS_PERMISSION_VIOLATIONS.inc(),
    )


def observe_kubernetes(verb: str, resource: str, status: int, seconds: float) -> None:
    """Record a request to the Kubernetes API in metrics and in the trace; status 0 = no response."""
    _count_request(verb, resource, status)()
    if verb == "watch":
        return
    if verb in _WRITES and resource in _OF_NODES and 200 <= status < 300:
        _count_write(str(context_field("service") or "none"), resource)()
    _observe_duration(verb, resource)(seconds)
    if telemetry.tracing_is_on():
        attributes: dict[str, telemetry.Attribute] = {
            "k8s.request.verb": verb,
            "k8s.request.resource": resource,
            "http.response.status_code": status,
        }
        telemetry.record(f"{verb} {resource}", seconds=seconds, attributes=attributes)


def subject_class(subject: str) -> str:
    """Return the subject without root and object name: "flow.observed.node", "decided.labeler.node"."""
    return ".".join(subject.removeprefix(ROOT + ".").split(".")[:3])


def _published(subject: str, outcome: str) -> None:
    _count_published(subject_class(subject), outcome)()


# Cached: finding a series by its labels costs more than counting. The code bounds the number of label values.


@cache
def _count_request(verb: str, resource: str, status: int) -> Callable[[], None]:
    return metrics.KUBE_REQUESTS.labels(verb, resource, str(status or "none")).inc


@cache
def _count_write(service: str, resource: str) -> Callable[[], None]:
    return metrics.NODE_WRITES.labels(service, resource).inc


@cache
def _observe_duration(verb: str, resource: str) -> Callable[[float], None]:
    return metrics.KUBE_REQUEST_DURATION.labels(verb, resource).observe


@cache
def _count_published(subjects: str, outcome: str) -> Callable[[], None]:
    return metrics.PUBLISHED.labels(subjects, outcome).inc


def _outcome(error: BusError) -> str:
    match error:
        case WrongLastSequence():
            return "superseded"
        case StreamFull():
            return "stream_full"
        case _:
            return "failed"
