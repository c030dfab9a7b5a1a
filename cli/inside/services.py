"""Which services are there, as far as their messages and their consumers tell. Pure."""

from collections.abc import Iterable
from datetime import datetime

from cli.inside.seen import QueueSeen, ServiceSeen, Word
from libs.common.service_spec import SERVICES, ServiceSpec


def services_seen(
    queues: Iterable[QueueSeen], leading: Word | None, at: datetime
) -> tuple[ServiceSeen, ...]:  # fmt: skip
    """One for each service that there could be, installed or not."""
    by_service = {queue.service: queue for queue in queues}
    return tuple(_seen(wiring, by_service.get(wiring.service), leading, at) for wiring in SERVICES)


def _seen(wiring: ServiceSpec, queue: QueueSeen | None, leading: Word | None, at: datetime) -> ServiceSeen:
    if wiring.provisions_stream:
        return _leader(wiring.service, leading, at)
    if queue is None:  # it only follows: its consumers have names that the reader does not know
        return ServiceSeen(service=wiring.service, why="it has no durable by which one could tell")
    if not queue.exists:
        return ServiceSeen(service=wiring.service, here=False, why=f"its durable {queue.name} does not exist")
    if queue.waiting:
        return ServiceSeen(service=wiring.service, here=True, why=f"takes from {queue.name}")
    if queue.unacknowledged:
        return ServiceSeen(
            service=wiring.service, why=f"nobody takes from {queue.name}, and some of it was taken"
        )
    return ServiceSeen(service=wiring.service, here=False, why=f"nobody takes from {queue.name}")


def _leader(service: str, leading: Word | None, at: datetime) -> ServiceSeen:
    if leading is None:
        return ServiceSeen(service=service, here=False, why="nobody says that they lead")
    seconds = (at - leading.published_at).total_seconds()
    return ServiceSeen(service=service, here=True, why=f"its leader spoke {max(0, seconds):.0f} s ago")
