"""The disposition for each result of a handler, its decision, and the dead letter of a rejected message."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.bus.dead_letters import make_dead_letter
from libs.common.bus.decision_publisher import DecisionPublisher
from libs.common.bus.delivery import (
    RETRY_CAP_SECONDS,
    Ack,
    Nak,
    PermanentError,
    Reject,
    RequeueAfter,
    TemporaryError,
    classify_error,
    exponential_step,
)
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import UnreadablePayload
from libs.common.contract.events import MAX_EVENT_BYTES, DeadLetter, encode
from libs.common.contract.services import DURABLES
from tests.builders import NOW, make_message, make_node, make_node_observed
from tests.bus_actors import MAX_BYTES


@pytest.mark.parametrize(
    ("error", "attempt", "expected"),
    [
        (None, 1, Ack()),
        (TemporaryError("no leader"), 1, Nak(0.5, "no leader")),
        (TemporaryError("throttled", retry_after_seconds=7), 1, Nak(7, "throttled")),
        (TemporaryError("throttled", retry_after_seconds=1), 50, Nak(60, "throttled")),
        (TemporaryError("throttled", retry_after_seconds=3600), 1, Nak(60, "throttled")),
        (TemporaryError("throttled", retry_after_seconds=float("inf")), 1, Nak(60, "throttled")),
        (TemporaryError("throttled", retry_after_seconds=float("nan")), 1, Nak(0.5, "throttled")),
        (TemporaryError("throttled", retry_after_seconds=-9), 1, Nak(0.5, "throttled")),
        (RequeueAfter("no address", retry_after_seconds=3600), 1, Nak(60, "no address")),
        (PermanentError("unreadable"), 1, Reject("unreadable")),
        (KeyError("x"), 1, Nak(0.5, "KeyError: 'x'")),
        (KeyError("x"), 10, Reject("KeyError: 'x' (10 times in a row)")),
    ],
)
def test_verdicts(error, attempt, expected):
    almost_one = 1.0
    assert classify_error(error, attempt, almost_one) == expected


@given(st.integers(1, 10**9), st.floats(0, 1, exclude_max=True))
def test_a_temporary_failure_is_retried_for_ever_and_never_rarer_than_the_cap(attempt, jitter):
    match classify_error(TemporaryError("down"), attempt, jitter):
        case Nak(delay_seconds=delay):
            assert 0 < delay <= RETRY_CAP_SECONDS
        case other:
            pytest.fail(f"gave up: {other}")


@given(st.integers(1, 10**9), st.floats(0.01, 10), st.floats(0.01, 100))
def test_a_step_begins_with_the_first_doubles_and_stays_at_the_cap(attempt, first, cap):
    assert exponential_step(1, first=first, cap=cap) == min(first, cap)
    assert exponential_step(attempt + 1, first=first, cap=cap) == min(
        cap, 2 * exponential_step(attempt, first=first, cap=cap)
    )


AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_letter_can_be_published_however_large_what_it_is_about():
    huge = make_node(annotations={f"key-{number}": "x" * 1000 for number in range(300)})
    for event in (
        make_node_observed(huge),
        UnreadablePayload(reason="no JSON", payload=b"\x00" * MAX_EVENT_BYTES),
    ):
        letter = make_dead_letter(
            make_message(event, subject="talosccm.v1.flow.enriched.node.web-1"),
            service="labeler",
            reason="why " * MAX_EVENT_BYTES,
            at=AT,
        )
        assert msgspec.json.decode(encode(letter), type=DeadLetter).name == "web-1"


async def test_a_decision_that_is_too_large_for_a_message_is_logged_only(caplog: pytest.LogCaptureFixture):
    bus = MemoryBus(MemoryServer())
    await bus.provision(DURABLES, max_bytes=MAX_BYTES)
    publisher = DecisionPublisher(bus, service="labeler", kind="node", now=lambda: NOW)
    await publisher.publish(make_node(), "updated", "by rules", changes=("x" * MAX_EVENT_BYTES,))
    assert "publish of decision failed" in caplog.text
