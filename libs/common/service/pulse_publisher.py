"""Publishes the pulse of each service of a process, for the live console."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from libs.common.bus.protocol import Bus, BusError
from libs.common.contract.events import MAX_PULSE_PROBLEMS, PULSE_TTL_SECONDS, EventError, Pulse
from libs.common.contract.services import CONSOLE
from libs.common.contract.subjects import is_publishable_name
from libs.common.service.service import Service

log = logging.getLogger(__name__)

PULSE_SECONDS: Final = 10.0
_PROBLEM_LENGTH: Final = 300


async def publish_pulses(bus: Bus, services: Sequence[Service], identity: str) -> None:
    """Publish a pulse of each service every ten seconds, until cancelled. No failure matters."""
    instance = identity if is_publishable_name(identity) else identity.rpartition("_")[2]
    while True:
        await asyncio.sleep(PULSE_SECONDS)
        for service in services:
            if service.spec == CONSOLE:
                continue  # it publishes nothing
            try:
                await bus.publish(_build_pulse(service, instance), ttl_seconds=PULSE_TTL_SECONDS)
            except (BusError, EventError) as error:
                fields = {"service": service.spec.service, "error": str(error)}
                log.debug("publish of pulse failed, will retry", extra=fields)


def _build_pulse(service: Service, instance: str) -> Pulse:
    return Pulse(
        service=service.spec.service,
        instance=instance,
        problems=tuple(why[:_PROBLEM_LENGTH] for why in service.problems()[:MAX_PULSE_PROBLEMS]),
        is_leading=getattr(service, "is_leading", None),
    )
