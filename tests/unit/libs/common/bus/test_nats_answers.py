"""How long a server has answered, and how long it has not."""

from libs.common.bus.nats.current_stream import LivenessTracker
from libs.common.bus.protocol import ServerLiveness
from tests.manual_clock import ManualClock


def test_answers_count_from_the_first_one_after_a_gap():
    clock = ManualClock()
    answers = LivenessTracker(clock)
    assert answers.server_liveness() == ServerLiveness(silent_seconds=float("inf"), responsive_seconds=0.0)
    for _ in range(6):
        answers.record_response()
        clock.advance(3.0)
    assert answers.server_liveness() == ServerLiveness(silent_seconds=3.0, responsive_seconds=15.0)
    clock.advance(8.0)
    answers.record_response()
    assert answers.server_liveness() == ServerLiveness(silent_seconds=0.0, responsive_seconds=0.0)
