"""Publishes the pulse of each service of a process, with its errors and Events, for the live console."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from libs.common.bus.protocol import Bus, BusError
from libs.common.contract.events import (
    MAX_PULSE_EVENTS,
    MAX_PULSE_PROBLEMS,
    PULSE_TTL_SECONDS,
    EventError,
    Pulse,
    Quarantine,
    RecordedNodeEvent,
)
from libs.common.contract.services import CLOUD, METADATA, ServiceSpec
from libs.common.contract.subjects import ROOT, is_publishable_name
from libs.common.observability.metrics import (
    CLOUD_REQUESTS,
    DEAD_LETTERS,
    HANDLED,
    KUBE_REQUESTS,
    PUBLISHED,
    TALOS_REQUEST_ERRORS,
    sum_counter,
)
from libs.common.observability.telemetry import context_field
from libs.common.service.service import Service

if TYPE_CHECKING:  # a process without Kubernetes rights does not load the client
    from libs.common.kube.events import ObjectEvent

log = logging.getLogger(__name__)

PULSE_SECONDS: Final = 10.0
Problems = Callable[[], Mapping[str, tuple[str, ...]]]
_PROBLEM_LENGTH: Final = 300
# 404: the object is gone; 409, and 422 for a fence in a patch: another writer was faster; 410: a watch starts
# again. Each is normal. What the API server refuses as invalid is a retried message, too.
_NORMAL_STATUS: Final = frozenset({"404", "409", "410", "422"})
_FAILED_PUBLISHES: Final = frozenset({"failed", "stream_full"})
_NORMAL_OUTCOMES: Final = frozenset({"found", "not_found", "held_back"})
_MAX_WAITING: Final = 2000  # of one service; beyond it the oldest is dropped, and only Kubernetes has it
_MESSAGE_LENGTH: Final = 200  # characters, so that a pulse stays below the limit of an event


class EventJournal:
    """Keeps the Events of each service apart, in the order in which Kubernetes stored them."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[RecordedNodeEvent]] = {}

    def add(self, event: "ObjectEvent", at: datetime) -> None:
        """Add an Event of the service that runs in this context, if it is about a Node."""
        about = event.regarding
        if about.kind != "Node":
            return
        self._get(str(context_field("service"))).append(
            RecordedNodeEvent(
                node=about.name,
                uid=about.uid,
                component=event.component,
                type=event.type,
                reason=event.reason,
                message=event.message[:_MESSAGE_LENGTH],
                at=at,
            )
        )

    def take(self, service: str) -> tuple[RecordedNodeEvent, ...]:
        """Remove and return the oldest Events of a service, at most MAX_PULSE_EVENTS."""
        waiting = self._get(service)
        return tuple(waiting.popleft() for _ in range(min(MAX_PULSE_EVENTS, len(waiting))))

    def put_back(self, service: str, events: tuple[RecordedNodeEvent, ...]) -> None:
        """Keep Events for the next pulse, because the publish of this one failed."""
        self._get(service).extendleft(reversed(events))

    def _get(self, service: str) -> deque[RecordedNodeEvent]:
        return self._waiting.setdefault(service, deque(maxlen=_MAX_WAITING))


@runtime_checkable
class LeadingService(Service, Protocol):
    """A service that elects a leader; it is built as this type, so that mypy sees a rename."""

    @property
    def is_leading(self) -> bool | None:
        """Whether this process leads; None if it needs no leader."""


@runtime_checkable
class QuarantiningService(Service, Protocol):
    """A service that keeps blocks in quarantine; it is built as this type, so that mypy sees a rename."""

    def list_quarantine(self) -> Quarantine | None:
        """Return the blocks in quarantine; None before they are known."""


async def publish_pulses(
    bus: Bus,
    services: Sequence[Service],
    identity: str,
    problems: Problems,
    journal: EventJournal,
    *,
    seconds: float = PULSE_SECONDS,
) -> None:
    """Publish a pulse of each service after each period, until cancelled. No failure matters.

    `problems` returns those of each readiness check of the process, by its name; a service has its own.
    """
    instance = identity if is_publishable_name(identity) else identity.rpartition("_")[2]
    names = {service.spec.service for service in services}
    while True:
        await asyncio.sleep(seconds)
        found = problems()
        shared = [why for check, reasons in found.items() if check not in names for why in reasons]
        for service in services:
            if not service.spec.publishes:
                continue  # such as the console
            name = service.spec.service
            events = journal.take(name)
            try:
                pulse = build_pulse(bus, service, instance, (*found[name], *shared), events)
                await bus.publish(pulse, ttl_seconds=PULSE_TTL_SECONDS)
            except (BusError, EventError) as error:
                journal.put_back(name, events)
                fields = {"service": name, "error": str(error)}
                log.debug("publish of pulse failed, will retry", extra=fields)


def build_pulse(
    bus: Bus,
    service: Service,
    instance: str,
    problems: tuple[str, ...],
    events: tuple[RecordedNodeEvent, ...] = (),
) -> Pulse:
    """Return the pulse of a service now; `problems` is why it is not ready."""
    lag = bus.lag(service.spec.service)
    return Pulse(
        service=service.spec.service,
        instance=instance,
        problems=tuple(why[:_PROBLEM_LENGTH] for why in problems[:MAX_PULSE_PROBLEMS]),
        is_leading=service.is_leading if isinstance(service, LeadingService) else None,
        errors=count_errors(service.spec),
        lag=lag.messages,
        oldest_at=lag.since,
        quarantine=service.list_quarantine() if isinstance(service, QuarantiningService) else None,
        events=events,
    )


def count_errors(spec: ServiceSpec) -> dict[str, int]:
    """Return cause -> number of errors, in words for an operator; a cause without errors is left out."""
    name = spec.service
    stems = tuple(f"{subject.removeprefix(f'{ROOT}.').removesuffix('.>')}." for subject in spec.publishes)
    counts = {
        "retried messages": sum_counter(
            HANDLED, lambda labels: labels["service"] == name and labels["outcome"] == "retried"
        ),
        "dead letters": sum_counter(DEAD_LETTERS, lambda labels: labels["service"] == name),
        "failed publishes": sum_counter(
            PUBLISHED,
            lambda labels: labels["outcome"] in _FAILED_PUBLISHES and f"{labels['event']}.".startswith(stems),
        ),
        "failed Kubernetes requests": sum_counter(
            KUBE_REQUESTS, lambda labels: labels["service"] == name and _is_failed(labels["status"])
        ),
        "failed Talos calls": sum_counter(TALOS_REQUEST_ERRORS, lambda labels: name == METADATA.service),
        "failed cloud requests": sum_counter(CLOUD_REQUESTS, lambda labels: _is_failed_query(name, labels)),
    }
    return {cause: count for cause, count in counts.items() if count}


def _is_failed(status: str) -> bool:
    return not status.startswith("2") and status not in _NORMAL_STATUS


def _is_failed_query(service: str, labels: Mapping[str, str]) -> bool:
    return service == f"{CLOUD.service}-{labels['account']}" and labels["outcome"] not in _NORMAL_OUTCOMES
