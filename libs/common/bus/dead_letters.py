"""Makes the dead letter of a rejected message, for operators."""

from datetime import datetime
from typing import Final

from libs.common.bus.protocol import Message, UnreadablePayload
from libs.common.contract.events import DeadLetter, Event, EventError, encode
from libs.common.contract.subjects import FLOW, ROOT

_PAYLOAD_BYTES: Final = 4096
_REASON_CHARACTERS: Final = 4096  # a larger dead letter could not be published


def make_dead_letter(message: Message, *, service: str, reason: str, at: datetime) -> DeadLetter:
    """Return the dead letter that a service publishes; `payload` is cut at 4 kB."""
    kind, name = _parse_object(message.subject)
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


def _parse_object(subject: str) -> tuple[str, str]:
    """Return kind and name of the object of a flow subject; ("message", the rest) for other subjects."""
    tokens = subject.removeprefix(FLOW + ".").split(".", 2)
    if subject.startswith(FLOW + ".") and len(tokens) == 3:
        return tokens[1], tokens[2]
    return "message", subject.removeprefix(ROOT + ".")
