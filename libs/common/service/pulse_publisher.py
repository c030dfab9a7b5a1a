"""Publishes the pulse of each service of a process, for the live console."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from libs.common.bus.protocol import Bus, BusError
from libs.common.contract.events import (
    MAX_PULSE_PROBLEMS,
    PULSE_TTL_SECONDS,
    EventError,
    Pulse,
    Quarantine,
    RecordedNodeEvent,
)
from libs.common.contract.subjects import is_publishable_name
from libs.common.service.error_counts import count_errors
from libs.common.service.event_journal import EventJournal
from libs.common.service.service import Service

log = logging.getLogger(__name__)

PULSE_SECONDS: Final = 10.0
Problems = Callable[[], Mapping[str, tuple[str, ...]]]
_PROBLEM_LENGTH: Final = 300


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
