"""What a look at the queues means: whose work matters, and for how long nothing has moved."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.bus.protocol import ConsumerStats
from libs.common.contract.controllers import CLOUD_NODE, CSR_APPROVAL
from libs.common.service.service_spec import CSR, LABELER
from libs.common.settings.reference_flags import is_controller_selected

_DEFAULT_CONSUMERS: Final = (
    (LABELER, CLOUD_NODE),
    (CSR, CSR_APPROVAL),
)  # the others only where they are asked for


class _Progress(msgspec.Struct, frozen=True):
    delivered: int
    unacknowledged: int
    moved_at: float  # when it last moved, or had nothing to do


class StallDetector:
    """Remembers of each durable when it last moved: something was delivered, again or at first, or settled.

    A retry that is parked is delivered again within a minute: what waits for the world does not stall, what
    nobody takes or a handler never ends does.
    """

    def __init__(self) -> None:
        self._progress: dict[str, _Progress] = {}

    def measure_stalls(self, queues: Iterable[ConsumerStats], at: float) -> dict[str, float]:
        """For how many seconds each has stood still with work to do; `at` is monotonic, in seconds."""
        self._progress = {
            queue.name: _advance_progress(queue, self._progress.get(queue.name), at) for queue in queues
        }
        return {name: at - seen.moved_at for name, seen in self._progress.items()}


def _advance_progress(queue: ConsumerStats, before: _Progress | None, at: float) -> _Progress:
    stands = (
        before is not None
        and queue.pending + queue.unacknowledged > 0
        and queue.delivered == before.delivered
        and queue.unacknowledged >= before.unacknowledged
    )
    since = before.moved_at if before is not None and stands else at
    return _Progress(queue.delivered, queue.unacknowledged, since)


def select_expected_durables(controllers: tuple[str, ...]) -> frozenset[str]:
    """Those of services that run unless --controllers leaves them out: somebody must consume them."""
    return frozenset(
        durable.name
        for wiring, controller in _DEFAULT_CONSUMERS
        if is_controller_selected(controllers, controller)
        for durable in wiring.durables
    )


def filter_relevant(queues: Iterable[ConsumerStats], expected: frozenset[str]) -> tuple[ConsumerStats, ...]:
    """Those that are to be consumed, or have been: a service that is not installed stalls nothing."""
    return tuple(queue for queue in queues if queue.name in expected or queue.waiting or queue.delivered)
