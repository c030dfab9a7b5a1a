"""Handles one message on every bus: calls the handler, and publishes a dead letter for a rejected message."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from libs.common.bus.delivery import RETRY_CAP_SECONDS, Disposition, Nak, Reject
from libs.common.bus.protocol import BusError, Message, MessageHandler, UnreadablePayload
from libs.common.contract.events import DeadLetter, Event, EventError, encode
from libs.common.contract.subjects import FLOW, ROOT

log = logging.getLogger(__name__)

_PAYLOAD_BYTES: Final = 4096
_REASON_CHARACTERS: Final = 4096  # a larger dead letter could not be published


async def settle(
    message: Message,
    handle: MessageHandler,
    *,
    service: str,
    publish: Callable[[DeadLetter], Awaitable[object]],
    now: Callable[[], datetime],
) -> Disposition:
    """Return the handler's disposition, after publishing a dead letter of that service; retry if that fails.

    `publish` raises BusError.
    """
    try:
        disposition = await handle(message)
    except Exception as error:
        # A handler returns a disposition. An exception is a defect and must not lose the message.
        log.exception("handler raised", extra={"subject": message.subject})
        return Nak(RETRY_CAP_SECONDS, f"{type(error).__name__}: {error}")
    if not isinstance(disposition, Reject):
        return disposition
    try:
        await publish(make_dead_letter(message, service=service, reason=disposition.reason, at=now()))
    except BusError as error:
        return Nak(RETRY_CAP_SECONDS, f"cannot publish the dead letter: {error}")
    return disposition


def make_dead_letter(message: Message, *, service: str, reason: str, at: datetime) -> DeadLetter:
    """Return the dead letter that a service publishes; `payload` is cut at 4 kB."""
    kind, name = parse_object(message.subject)
    payload = (
        message.event.payload if isinstance(message.event, UnreadablePayload) else _encoded(message.event)
    )
    return DeadLetter(
        service=service,
        kind=kind,
        name=name,
        subject=message.subject,
        sequence=message.sequence,
        reason=reason[:_REASON_CHARACTERS],
        payload=payload[:_PAYLOAD_BYTES].decode(errors="replace"),
        at=at,
    )


def _encoded(event: Event) -> bytes:
    try:
        return encode(event)
    except EventError as error:  # its publisher does not enforce the limit
        return str(error).encode()


def parse_object(subject: str) -> tuple[str, str]:
    """Return kind and name of the object of a flow subject; ("message", the rest) for other subjects."""
    tokens = subject.removeprefix(FLOW + ".").split(".", 2)
    if subject.startswith(FLOW + ".") and len(tokens) == 3:
        return tokens[1], tokens[2]
    return "message", subject.removeprefix(ROOT + ".")
