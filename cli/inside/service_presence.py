"""Whether each service is running, as far as its messages and consumers show. Pure."""

from collections.abc import Iterable
from datetime import datetime

from cli.inside.flow_snapshot import ConsumerSnapshot, LastMessage, ServicePresence
from libs.common.contract.services import SERVICES, ServiceSpec


def list_service_presence(
    queues: Iterable[ConsumerSnapshot], leading: LastMessage | None, at: datetime
) -> tuple[ServicePresence, ...]:  # fmt: skip
    """Return one entry per known service, installed or not."""
    by_service = {queue.service: queue for queue in queues}
    return tuple(_check_presence(wiring, by_service.get(wiring.service), leading, at) for wiring in SERVICES)


def _check_presence(
    wiring: ServiceSpec, queue: ConsumerSnapshot | None, leading: LastMessage | None, at: datetime
) -> ServicePresence:
    if wiring.provisions_stream:
        return _check_leader(wiring.service, leading, at)
    if queue is None:  # a follower's consumers have names that the reader does not know
        return ServicePresence(service=wiring.service, why="unknown: it has no durable consumer")
    if not queue.exists:
        return ServicePresence(
            service=wiring.service, is_present=False, why=f"its consumer {queue.name} does not exist"
        )
    if queue.waiting:
        return ServicePresence(service=wiring.service, is_present=True, why=f"pulls from {queue.name}")
    if queue.unacknowledged:
        return ServicePresence(
            service=wiring.service,
            why=f"no client pulls from {queue.name}, but some messages are unacknowledged",
        )
    return ServicePresence(service=wiring.service, is_present=False, why=f"no client pulls from {queue.name}")


def _check_leader(service: str, leading: LastMessage | None, at: datetime) -> ServicePresence:
    if leading is None:
        return ServicePresence(service=service, is_present=False, why="no leader heartbeat")
    seconds = (at - leading.published_at).total_seconds()
    return ServicePresence(
        service=service, is_present=True, why=f"leader heartbeat {max(0, seconds):.0f} s ago"
    )
