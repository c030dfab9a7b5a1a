"""What surrounds a handler: attempts, turns, verdicts, one log line, metrics."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.delivery import (
    RETRY_CAP_SECONDS,
    Ack,
    Disposition,
    Nak,
    PermanentError,
    Reject,
    TemporaryError,
)
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.protocol import Message, UnreadablePayload
from libs.common.contract.events import DeadLetter
from libs.common.contract.subjects import DEAD_LETTERS
from libs.common.observability import metrics, telemetry
from libs.common.observability.telemetry import fields_of
from tests.builders import NOW, make_facts, make_message, make_node, make_node_enriched, make_node_observed
from tests.bus_actors import wait_until
from tests.service_flow import make_dependencies


def of_node(name: str = "web-1", sequence: int = 1, *, redelivered: bool = False) -> Message:
    return make_message(make_node_observed(make_node(name)), sequence=sequence, redelivered=redelivered)


def a_handling(service: str = "labeler", **parts: Any) -> ConsumerMiddleware:
    ticks, server = iter(range(10_000)), MemoryServer()
    server.provision(())
    parts = {"monotonic": lambda: float(next(ticks)), **parts}
    return ConsumerMiddleware(
        service, "node", dataclasses.replace(make_dependencies(MemoryBus(server)), **parts)
    )


def that_raises(*errors: Exception | None) -> Callable[[Message], Awaitable[None]]:
    """A handler that raises these one after the other; None = succeeds."""
    script = iter(errors)

    async def handle(message: Message) -> None:
        error = next(script)
        if error is not None:
            raise error

    return handle


async def outcomes(
    handle: Callable[[Message], Awaitable[None]],
    *messages: Message,
    handling: ConsumerMiddleware | None = None,
) -> list[Disposition]:
    around = (handling or a_handling()).wrap(handle)
    return [await around(message) for message in messages]


def counted(metric: str, **labels: str) -> float:
    assert isinstance(metrics.REGISTRY, CollectorRegistry)
    return metrics.REGISTRY.get_sample_value(metric, labels) or 0.0


async def test_attempts_grow_per_name_and_reason_and_start_again_after_a_success():
    busy, away = TemporaryError("busy"), TemporaryError("away", "10.0.0.1")
    handling = a_handling()
    counts = [
        handling.count_failure("web-1", busy),
        handling.count_failure("web-1", busy),
        handling.count_failure("web-1", away),
        handling.count_failure("web-2", busy),
        handling.count_failure("web-1", TemporaryError("away", "10.0.0.2")),
    ]
    handling.reset_failures("web-1")
    again = [handling.count_failure(name, busy) for name in ("web-1", "web-2")]
    assert (counts, again) == ([1, 2, 1, 1, 2], [1, 2])


async def test_a_permanent_error_becomes_a_dead_letter_of_the_service_with_its_reason():
    handling, message = a_handling("csr"), of_node("bad.node", sequence=7)
    verdicts = await outcomes(that_raises(PermanentError("no such field")), message, handling=handling)
    assert verdicts == [Reject("no such field")]
    last = await handling.parts.bus.get_last(f"{DEAD_LETTERS}.csr.node.bad.node")
    assert last is not None
    letter = last.event
    assert isinstance(letter, DeadLetter)
    assert (letter.service, letter.kind, letter.name) == ("csr", "node", "bad.node")
    assert (letter.subject, letter.sequence) == (message.subject, 7)
    assert letter.reason == "no such field"
    assert b'"name":"bad.node"' in letter.payload.encode()


async def test_a_message_whose_dead_letter_cannot_be_published_is_retried():
    handling = a_handling()
    await handling.parts.bus.close()
    (verdict,) = await outcomes(that_raises(PermanentError("no such field")), of_node(), handling=handling)
    assert verdict == Nak(RETRY_CAP_SECONDS, "cannot publish the dead letter: the bus is closed")


async def test_bytes_that_nobody_can_read_are_put_aside_without_asking_the_handler():
    async def never(_: Message) -> None:
        raise AssertionError("was asked")

    message = make_message(UnreadablePayload(reason="not JSON", payload=b"\xff"))
    assert await outcomes(never, message) == [Reject("unreadable: not JSON")]


async def test_an_unforeseen_exception_becomes_a_dead_letter_after_ten_in_a_row_and_then_counts_anew():
    verdicts = await outcomes(that_raises(*[KeyError("zone")] * 11), *[of_node()] * 11)
    kinds = [type(verdict) for verdict in verdicts]
    assert kinds == [Nak] * 9 + [Reject, Nak]
    assert isinstance(verdicts[10], Nak)
    assert verdicts[10].delay_seconds <= 0.5


async def test_two_versions_of_one_node_are_handled_one_after_the_other_in_their_order():
    seen: list[str] = []
    go = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(f"{message.sequence} in")
        await go.wait()
        seen.append(f"{message.sequence} out")

    around = a_handling().wrap(handle)
    running = [asyncio.create_task(_run(around, of_node(sequence=n))) for n in (1, 2, 3)]
    other = asyncio.create_task(_run(around, of_node("web-2", sequence=9)))
    await wait_until(lambda: "9 in" in seen)
    assert seen == ["1 in", "9 in"]
    go.set()
    await asyncio.gather(*running, other)
    assert [entry for entry in seen if not entry.startswith("9")] == [
        "1 in", "1 out", "2 in", "2 out", "3 in", "3 out",
    ]  # fmt: skip


async def test_a_cancelled_handler_gives_the_turn_to_the_next_and_no_verdict():
    stuck = asyncio.Event()
    handled: list[int] = []

    async def handle(message: Message) -> None:
        if message.sequence == 1:
            await stuck.wait()
        handled.append(message.sequence)

    handling = a_handling()
    around = handling.wrap(handle)
    first = asyncio.create_task(_run(around, of_node(sequence=1)))
    second = asyncio.create_task(_run(around, of_node(sequence=2)))
    await wait_until(lambda: counted("talosccm_events_in_flight", service="labeler") == 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == Ack()
    assert handled == [2]
    assert counted("talosccm_events_in_flight", service="labeler") == 0


async def test_names_in_trouble_do_not_pile_up_for_ever():
    handling, busy = a_handling(), TemporaryError("busy")
    for number in range(20_000):
        handling.count_failure(f"node-{number}", busy)
    handling.count_failure("node-0", busy)  # still in trouble, so it is not the one to be forgotten
    handling.count_failure("one-more", busy)
    assert handling.count_failure("node-0", busy) == 3
    assert handling.count_failure("node-1", busy) == 1


async def test_one_line_tells_of_each_event_with_node_event_and_what_the_handler_said(
    caplog: pytest.LogCaptureFixture,
):
    lines: list[dict[str, object]] = []

    class Remember(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append({"message": record.getMessage(), "level": record.levelname, **fields_of(record)})

    async def handle(message: Message) -> None:
        telemetry.annotate(outcome="unchanged" if message.sequence == 2 else "initialized")
        if message.sequence == 3:
            raise TemporaryError("Talos is away", "10.0.0.1")

    logger, remember = logging.getLogger("libs.common.bus.consumer_middleware"), Remember()
    logger.addHandler(remember)
    caplog.set_level(logging.DEBUG, logger="libs.common.bus.consumer_middleware")
    try:
        await outcomes(handle, *[of_node("web-1.lan", sequence=n) for n in (1, 2, 3, 4)])
    finally:
        logger.removeHandler(remember)
    common = {"service": "labeler", "node": "web-1.lan", "event": "NodeObserved"}
    assert all(common.items() <= line.items() for line in lines)
    assert [(line["level"], line["message"]) for line in lines] == [
        ("INFO", "handled"),
        ("DEBUG", "handled"),
        ("WARNING", "handling failed, will retry"),
        ("INFO", "handled"),
    ]
    assert [line["attempt"] for line in lines] == [1, 1, 1, 2]
    assert all("seconds" in line for line in lines)
    assert lines[0]["outcome"] == "initialized"
    assert lines[2]["error"] == "Talos is away: 10.0.0.1"


async def test_metrics_count_what_was_decided():
    def so_far(outcome: str) -> float:
        return counted(
            "talosccm_events_handled_total", service="counter", event="NodeObserved", outcome=outcome
        )

    handling = a_handling("counter")
    errors = (None, TemporaryError("x"), PermanentError("y"), None)
    messages = [of_node(), of_node(), of_node(), of_node(redelivered=True)]
    await outcomes(that_raises(*errors), *messages, handling=handling)
    assert [so_far(outcome) for outcome in ("handled", "retried", "put_aside")] == [2, 1, 1]
    assert counted("talosccm_dead_letters_total", service="counter") == 1
    assert counted("talosccm_redelivered_total", service="counter") == 1
    assert (
        counted("talosccm_event_handling_duration_seconds_count", service="counter", event="NodeObserved")
        == 4
    )


async def _run(around: Callable[[Message], Awaitable[Disposition]], message: Message) -> Disposition:
    return await around(message)


# ---- how late, and how long since the cluster said so


def a_handling_of(service: str, late_seconds: float) -> ConsumerMiddleware:
    now = NOW + timedelta(seconds=late_seconds)
    return a_handling(service, monotonic=lambda: 0.0, now=lambda: now)


def an_enriched(*, observed_sequence: int = 1, sequence: int = 2) -> Message:
    return make_message(
        make_node_enriched(make_node(), make_facts(), observed_sequence=observed_sequence),
        sequence=sequence,
    )


async def test_a_message_is_measured_when_it_is_handled_for_the_first_time_and_never_again():
    handling = a_handling_of("hop", 3)
    around = handling.wrap(that_raises(*[None] * 5))
    for message in (of_node(), of_node(), of_node(sequence=2, redelivered=True), of_node(sequence=3)):
        await around(message)
    assert counted("talosccm_hop_latency_seconds_count", service="hop", event="NodeObserved") == 2
    assert counted("talosccm_hop_latency_seconds_sum", service="hop", event="NodeObserved") == 6
    await handling.wrap(that_raises(None), is_repeat=True)(of_node(sequence=4))
    assert counted("talosccm_hop_latency_seconds_count", service="hop", event="NodeObserved") == 2


async def test_a_clock_that_is_behind_the_server_s_measures_nothing_negative():
    await a_handling_of("early", -3).wrap(that_raises(None))(of_node())
    assert counted("talosccm_hop_latency_seconds_sum", service="early", event="NodeObserved") == 0


async def test_a_journey_ends_with_the_first_success_for_what_was_observed():
    around = a_handling_of("far", 5).wrap(that_raises(TemporaryError("busy"), None, None, None))
    labels = {"service": "far", "event": "NodeEnriched"}
    await around(an_enriched())
    assert counted("talosccm_journey_seconds_count", **labels) == 0
    await around(an_enriched())
    await around(an_enriched(sequence=3))  # said again: the machine has changed, nothing was observed
    assert counted("talosccm_journey_seconds_count", **labels) == 1
    await around(an_enriched(observed_sequence=4, sequence=5))
    assert counted("talosccm_journey_seconds_sum", **labels) == 10


@pytest.mark.parametrize("outcome", ["unchanged", "settled", "not-ours"])
async def test_where_nothing_is_left_to_do_no_journey_ends(outcome: str):
    """Else each Node would end one every few minutes, as long as the watcher has not said it again."""

    async def finds_nothing(message: Message) -> None:
        telemetry.annotate(outcome=outcome)

    handling = a_handling_of(f"calm, {outcome}", 290)
    labels = {"service": f"calm, {outcome}", "event": "NodeEnriched"}
    await handling.wrap(finds_nothing)(an_enriched())
    await handling.wrap(that_raises(None))(an_enriched(sequence=3))  # for the same observation
    assert counted("talosccm_journey_seconds_count", **labels) == 0
