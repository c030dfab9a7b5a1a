"""When a durable consumer with work makes no progress."""

import pytest

from libs.common.bus.protocol import ConsumerStats
from services.watcher.core.stall_detector import StallDetector, filter_relevant, select_expected_durables


def a_queue(
    name: str = "labeler-nodes",
    *,
    pending: int = 0,
    unacknowledged: int = 0,
    delivered: int = 0,
    waiting: int = 0,
) -> ConsumerStats:
    return ConsumerStats(
        name=name,
        pending=pending,
        unacknowledged=unacknowledged,
        redelivered=0,
        waiting=waiting,
        delivered=delivered,
    )


def stalled(*looks: ConsumerStats) -> list[float]:
    """After each look, ten seconds apart."""
    stalls = StallDetector()
    return [stalls.measure_stalls([look], 10.0 * number)[look.name] for number, look in enumerate(looks)]


def test_a_queue_that_is_empty_never_stalls():
    assert stalled(a_queue(), a_queue(), a_queue()) == [0, 0, 0]


def test_work_that_nobody_takes_stalls_from_the_last_look_that_saw_none():
    waiting = a_queue(pending=1)
    assert stalled(a_queue(), waiting, waiting) == [0, 10, 20]
    assert stalled(waiting, a_queue(pending=7), waiting) == [0, 10, 20]


@pytest.mark.parametrize(
    "moved",
    [
        a_queue(pending=4, unacknowledged=2, delivered=4),
        a_queue(pending=9, unacknowledged=2, delivered=4),
        a_queue(pending=5, unacknowledged=1, delivered=3),
        a_queue(pending=5, unacknowledged=2, delivered=0),
    ],
    ids=["taken", "taken-and-more-came", "settled", "recreated"],
)
def test_a_queue_that_moves_does_not_stall_however_much_waits(moved: ConsumerStats):
    before = a_queue(pending=5, unacknowledged=2, delivered=3)
    assert stalled(before, before, moved, moved) == [0, 10, 0, 10]


def test_a_handler_that_never_ends_stalls_and_a_retry_that_is_tried_does_not():
    assert stalled(*[a_queue(unacknowledged=1, delivered=1)] * 3) == [0, 10, 20]
    assert stalled(*(a_queue(unacknowledged=1, delivered=n) for n in range(3))) == [0, 0, 0]


def test_a_service_that_is_not_installed_stalls_nothing():
    queues = [a_queue("labeler-nodes", pending=1), a_queue("ipam-nodes", pending=1)]
    expected = select_expected_durables(("*",))
    assert expected == {"labeler-nodes", "csr-requests"}
    assert [queue.name for queue in filter_relevant(queues, expected)] == ["labeler-nodes"]
    for seen in (a_queue("ipam-nodes", waiting=1), a_queue("ipam-nodes", delivered=1)):
        assert filter_relevant([seen], expected) == (seen,)


def test_controllers_that_are_switched_off_are_not_expected():
    assert select_expected_durables(("node-csr-approval",)) == {"csr-requests"}
    assert select_expected_durables(("*", "-node-csr-approval")) == {"labeler-nodes"}
