"""What a look at the queues means: whose work matters, and for how long nothing has moved."""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.bus import QueueLook
from libs.common.controllers import CLOUD_NODE, CSR_APPROVAL
from libs.common.settings.reference_flags import runs_controller
from libs.common.wiring import CSR, LABELER

_ALWAYS: Final = ((LABELER, CLOUD_NODE), (CSR, CSR_APPROVAL))  # the others only where they are asked for


class _Seen(msgspec.Struct, frozen=True):
    delivered: int
    unacknowledged: int
    since: float  # when it last moved, or had nothing to do


class Stalls:
    """Remembers of each durable when it last moved: something was delivered, again or at first, or settled.

    A retry that is parked is delivered again within a minute: what waits for the world does not stall, what
    nobody takes or a handler never ends does.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def saw(self, queues: Iterable[QueueLook], at: float) -> dict[str, float]:
        """For how many seconds each has stood still with work to do; `at` is monotonic, in seconds."""
        self._seen = {queue.name: _seen(queue, self._seen.get(queue.name), at) for queue in queues}
        return {name: at - seen.since for name, seen in self._seen.items()}


def _seen(queue: QueueLook, before: _Seen | None, at: float) -> _Seen:
    stands = (
        before is not None
        and queue.pending + queue.unacknowledged > 0
        and queue.delivered == before.delivered
        and queue.unacknowledged >= before.unacknowledged
    )
    since = before.since if before is not None and stands else at
    return _Seen(queue.delivered, queue.unacknowledged, since)


def expected_durables(controllers: tuple[str, ...]) -> frozenset[str]:
    """Those of services that run unless --controllers leaves them out: somebody must consume them."""
    return frozenset(
        durable.name
        for wiring, controller in _ALWAYS
        if runs_controller(controllers, controller)
        for durable in wiring.durables
    )


def of_interest(queues: Iterable[QueueLook], expected: frozenset[str]) -> tuple[QueueLook, ...]:
    """Those that are to be consumed, or have been: a service that is not installed stalls nothing."""
    return tuple(queue for queue in queues if queue.name in expected or queue.waiting or queue.delivered)
