"""Wraps message handlers: a lock per object, retry counts, disposition, dead letter, log line and metrics."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Final, Literal, TypeVar
from weakref import WeakValueDictionary

from libs.common.bus.dead_letters import make_dead_letter
from libs.common.bus.delivery import (
    RETRY_CAP_SECONDS,
    Ack,
    Disposition,
    Nak,
    PermanentError,
    Reject,
    RequeueAfter,
    TemporaryError,
    classify_error,
)
from libs.common.bus.delivery import failure_reason as reason_of
from libs.common.bus.protocol import BusError, Message, MessageHandler, UnreadablePayload, event_name
from libs.common.contract.events import CsrEnriched, Event, NodeEnriched, NodeUnreachable
from libs.common.observability import metrics, telemetry
from libs.common.observability.trace_attributes import event_attributes, subject_template
from libs.common.service.service import Dependencies

log = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[object]]
K = TypeVar("K")
V = TypeVar("V")

_NO_CHANGE_OUTCOMES: Final = frozenset({"unchanged", "settled", "not-ours"})
_MAX_NAMES: Final = 20_000  # bounds the memory for names that never return


@dataclass(eq=False)
class ConsumerMiddleware:
    """Wraps the handlers of one service for one kind of object."""

    service: str
    kind: Literal["node", "csr"]
    parts: Dependencies

    def __post_init__(self) -> None:
        self._attempts: dict[str, dict[str, int]] = {}  # name -> reason -> consecutive failures
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by name, while in use
        # Looked up once: finding a series by its labels costs more than counting.
        self._in_flight = metrics.HANDLING_IN_FLIGHT.labels(self.service)
        self._redelivered = metrics.REDELIVERED.labels(self.service)
        self._duration_of = cache(partial(metrics.HANDLING_DURATION.labels, self.service))
        self._latency_of = cache(partial(metrics.HOP_LATENCY.labels, self.service))
        self._end_to_end_latency_of = cache(partial(metrics.END_TO_END_LATENCY.labels, self.service))
        self._last_handled: dict[str, tuple[int, datetime]] = {}  # name -> the last handled message
        self._last_observed: dict[
            tuple[str, str], int
        ] = {}  # event and name -> sequence of the last observation
        self._handled_as = cache(partial(metrics.HANDLED.labels, self.service))

    def wrap(self, handle: Handler, *, is_repeat: bool = False) -> MessageHandler:
        """Return the handler for `Bus.consume`, which maps errors of `handle` to a disposition.

        It logs one line with attempt, outcome, reason and seconds, beside service, object and event from
        context. `is_repeat`: this process or an earlier one has handled the messages before, so latencies are
        not measured.
        """

        async def handled(message: Message) -> Disposition:
            name = self._name_in(message.subject)
            event = event_name(message.event)
            if message.redelivered:
                self._redelivered.inc()
            with telemetry.log_fields(service=self.service, **{self.kind: name}, event=event):
                self._in_flight.inc()
                try:
                    async with self._locks.setdefault(name, asyncio.Lock()):
                        return await self._handle(handle, message, name, is_repeat)
                finally:
                    self._in_flight.dec()

        return handled

    def count_failure(self, name: str, error: Exception) -> int:
        """Count a failure; return the number with this reason since the last success for that name."""
        reasons = self._attempts.get(name, {})
        reasons[reason_of(error)] = reasons.get(reason_of(error), 0) + 1
        _store_bounded(self._attempts, name, reasons)
        return reasons[reason_of(error)]

    def reset_failures(self, name: str) -> None:
        """Forget the failures of that name."""
        self._attempts.pop(name, None)

    async def _handle(self, handle: Handler, message: Message, name: str, again: bool) -> Disposition:
        event, began = event_name(message.event), self.parts.monotonic()
        with telemetry.notes() as notes, self._span(message, name) as span:
            exemplar = telemetry.exemplar()
            if self._is_first_delivery(message, name) and not again:
                age = (self.parts.now() - message.published_at).total_seconds()
                self._latency_of(event).observe(max(0.0, age), exemplar)
            error = await _call_handler(handle, message)
            attempt = (
                self.count_failure(name, error) if error else 1 + sum(self._attempts.get(name, {}).values())
            )
            decided = classify_error(error, attempt, self.parts.random.random())
            if isinstance(decided, Reject):
                decided = await self._publish_dead_letter(message, decided)
            if not isinstance(decided, Nak):
                self.reset_failures(name)
            span.set_attributes({"talosccm.delivery.attempt": attempt})
            if error:
                span.set_attributes({"error.type": reason_of(error)})
        seconds = self.parts.monotonic() - began
        self._duration_of(event).observe(seconds, exemplar)
        if isinstance(decided, Ack) and not again:
            # A republished event without a change has an old observation: its age is no end-to-end latency.
            ends = notes.get("outcome") not in _NO_CHANGE_OUTCOMES
            self._observe_end_to_end_latency(message.event, name, exemplar, ends=ends)
        self._log_outcome(
            decided, error, attempt, event, notes | {"attempt": attempt, "seconds": round(seconds, 4)}
        )
        return decided

    async def _publish_dead_letter(self, message: Message, rejected: Reject) -> Reject | Nak:
        """Publish the message as a dead letter of the service; retry the message if that fails."""
        letter = make_dead_letter(message, service=self.service, reason=rejected.reason, at=self.parts.now())
        try:
            await self.parts.bus.publish(letter)
        except BusError as error:
            return Nak(RETRY_CAP_SECONDS, f"cannot publish the dead letter: {error}")
        return rejected

    def _is_first_delivery(self, message: Message, name: str) -> bool:
        """Return whether the message was never handled before; a retry is late by the requested delay."""
        begun, key = self._last_handled.get(name), (message.sequence, message.published_at)
        _store_bounded(self._last_handled, name, key)
        return not message.redelivered and begun != key

    def _observe_end_to_end_latency(
        self, event: Event | UnreadablePayload, name: str, exemplar: dict[str, str] | None, *, ends: bool
    ) -> None:
        """Observe the latency once for each observation.

        A further event with the same observation reports a change of the machine. Its age is no latency.
        """
        if not isinstance(event, NodeEnriched | NodeUnreachable | CsrEnriched):
            return
        kind = type(event).__name__
        if self._last_observed.get((kind, name)) != event.observed_sequence and ends:
            seconds = (self.parts.now() - event.observed_at).total_seconds()
            self._end_to_end_latency_of(kind).observe(max(0.0, seconds), exemplar)
        _store_bounded(self._last_observed, (kind, name), event.observed_sequence)

    def _span(self, message: Message, name: str) -> AbstractContextManager[telemetry.Span]:
        if not telemetry.tracing_is_on():  # the usual case, in which the attributes would not be used
            return telemetry.span("")
        template = subject_template(message.subject)
        attributes: dict[str, telemetry.Attribute] = {
            "messaging.system": self.parts.bus.system,
            "messaging.operation.type": "process",
            "messaging.operation.name": "process",
            "messaging.destination.name": message.subject,
            "messaging.destination.template": template,
            f"k8s.{self.kind}.name": name,
            "talosccm.stream.seq": message.sequence,
        }
        headers = message.headers
        return telemetry.span(
            f"process {template}",
            kind="consumer",
            parent_headers=headers,
            links=(headers,) if headers else (),  # OpenTelemetry's conventions require it beside the parent
            attributes=attributes | event_attributes(message.event),
        )

    def _log_outcome(
        self,
        decided: Disposition,
        error: Exception | None,
        attempt: int,
        event: str,
        fields: dict[str, object],
    ) -> None:
        outcome = _OUTCOMES[RequeueAfter if isinstance(error, RequeueAfter) else type(decided)]
        self._handled_as(event, outcome).inc()
        match decided:
            case Ack():
                level = logging.DEBUG if fields.get("outcome") == "unchanged" else logging.INFO
                log.log(level, "handled", extra=fields)
            case Nak() if isinstance(error, RequeueAfter):
                level = logging.INFO if attempt == 1 else logging.DEBUG  # INFO once: it may wait for hours
                log.log(level, "waiting", extra=fields | {"reason": decided.reason})
            case Nak():
                unforeseen = None if isinstance(error, TemporaryError) else error
                log.warning(
                    "handling failed, will retry",
                    extra=fields
                    | {
                        "error": decided.reason,
                        "again_in_seconds": round(decided.delay_seconds, 1),
                    },
                    exc_info=unforeseen,
                )
            case Reject():
                metrics.DEAD_LETTERS.labels(self.service).inc()
                unforeseen = None if isinstance(error, PermanentError) else error
                log.error(
                    "published as dead letter",
                    extra=fields | {"error": decided.reason},
                    exc_info=unforeseen,
                )

    def _name_in(self, subject: str) -> str:
        _, found, name = subject.partition(f".{self.kind}.")
        return name if found else subject


_OUTCOMES: Final[dict[type, str]] = {
    Ack: "handled",
    RequeueAfter: "waiting",
    Nak: "retried",
    Reject: "put_aside",
}


def _store_bounded(entries: dict[K, V], key: K, value: V) -> None:
    """Store the value as the newest entry; remove the oldest entry above the limit."""
    entries.pop(key, None)
    entries[key] = value
    if len(entries) > _MAX_NAMES:
        del entries[next(iter(entries))]


async def _call_handler(handle: Handler, message: Message) -> Exception | None:
    if isinstance(message.event, UnreadablePayload):
        return PermanentError(f"unreadable: {message.event.reason}")
    try:
        await handle(message)
    except Exception as error:  # noqa: BLE001 - the boundary to the handlers: each error gets a disposition
        return error
    return None
