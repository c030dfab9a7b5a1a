"""Measures for how long a NATS consumer has had work and made no progress."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.bus.protocol import ConsumerStats
from libs.common.contract.controllers import is_controller_selected
from libs.common.contract.services import SERVICES

# The other services run only where an operator enables them.
_DEFAULT_CONSUMERS: Final = tuple(spec for spec in SERVICES if spec.durables and spec.runs_by_default)


class _Progress(msgspec.Struct, frozen=True):
    delivered: int
    unacknowledged: int
    moved_at: float  # time of the last progress, or of the last idle measurement


class StallDetector:
    """Remembers the last progress of each durable consumer: a delivery, a redelivery or an acknowledgement.

    A parked retry is redelivered within a minute, so a wait for an outside change is no stall. A missing
    consumer process or a handler that never ends is a stall.
    """

    def __init__(self) -> None:
        self._progress: dict[str, _Progress] = {}

    def measure_stalls(self, queues: Iterable[ConsumerStats], at: float) -> dict[str, float]:
        """Return the seconds without progress of each consumer with work; `at` is monotonic seconds."""
        self._progress = {
            queue.name: _advance_progress(queue, self._progress.get(queue.name), at) for queue in queues
        }
        return {name: at - progress.moved_at for name, progress in self._progress.items()}


def _advance_progress(queue: ConsumerStats, before: _Progress | None, at: float) -> _Progress:
    is_stalled = (
        before is not None
        and queue.pending + queue.unacknowledged > 0
        and queue.delivered == before.delivered
        and queue.unacknowledged >= before.unacknowledged
    )
    since = before.moved_at if before is not None and is_stalled else at
    return _Progress(queue.delivered, queue.unacknowledged, since)


def select_expected_durables(controllers: tuple[str, ...]) -> frozenset[str]:
    """Return the durable consumers of services that run by default and that --controllers selects."""
    return frozenset(
        durable.name
        for spec in _DEFAULT_CONSUMERS
        if is_controller_selected(controllers, spec.controller.name)
        for durable in spec.durables
    )


def filter_relevant(queues: Iterable[ConsumerStats], expected: frozenset[str]) -> tuple[ConsumerStats, ...]:
    """Return consumers that are expected or have been used: a service that is not installed cannot stall."""
    return tuple(queue for queue in queues if queue.name in expected or queue.waiting or queue.delivered)
