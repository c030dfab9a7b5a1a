"""What a message becomes that nobody could read or handle: pure, the same on every bus."""

from datetime import datetime
from typing import Final

from libs.common.bus.protocol import Message, UnreadablePayload
from libs.common.contract.events import DeadLetter, Event, EventError, encode
from libs.common.contract.subjects import FLOW, ROOT

_PAYLOAD_BYTES: Final = 4096
_REASON_CHARACTERS: Final = 4096  # a letter that is too large itself could never be put aside


def make_dead_letter(message: Message, *, service: str, reason: str, at: datetime) -> DeadLetter:
    """The letter that a service puts aside; `payload` is cut at 4 kB."""
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
    except EventError as error:  # it came to us all the same, from somebody who does not keep to the limit
        return str(error).encode()


def parse_object(subject: str) -> tuple[str, str]:
    """Kind and name of the object that a flow subject speaks of, ("message", the rest) if of none."""
    tokens = subject.removeprefix(FLOW + ".").split(".", 2)
    if subject.startswith(FLOW + ".") and len(tokens) == 3:
        return tokens[1], tokens[2]
    return "message", subject.removeprefix(ROOT + ".")
