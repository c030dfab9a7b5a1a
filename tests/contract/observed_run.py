"""Handles the golden sample of every event, so that metrics, spans and log lines can be compared."""

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from libs.common.bus.consumer_middleware import ConsumerMiddleware
from libs.common.bus.delivery import PermanentError, RequeueAfter, TemporaryError
from libs.common.bus.protocol import Message, UnreadablePayload
from libs.common.contract import events
from tests.builders import make_message

GOLDEN: Final = Path(__file__).with_name("golden")
# What a handler can do: it returns, or raises one of these.
ENDINGS: Final[tuple[Exception | None, ...]] = (
    None,
    TemporaryError("away"),
    RequeueAfter("too early", retry_after_seconds=60.0),
    PermanentError("no such field"),
    KeyError("zone"),
)


def every_event() -> list[events.Event]:
    """The golden sample of every event."""
    return [events.decode(path.read_bytes()) for path in sorted(GOLDEN.glob("*.json"))]


def messages_of_every_event() -> list[Message]:
    """Every event as the bus delivers it, and bytes that are none."""
    some = [make_message(event, sequence=number) for number, event in enumerate(every_event(), 1)]
    return [*some, make_message(UnreadablePayload(reason="not JSON", payload=b"\xff"), sequence=100)]


async def run_handlers(service: str, kind: str, messages: list[Message]) -> None:
    """Handle each message about such an object once for each ending."""
    for ending in ENDINGS:
        ticks = iter(range(100_000))
        handling = ConsumerMiddleware(
            service,
            kind,
            system="memory",
            clock=lambda ticks=ticks: float(next(ticks)),  # type: ignore[misc]  # a default binds the loop's value
            random=random.Random(7),
        )
        around = handling.wrap(_that_ends(ending))
        for message in messages:
            if f".{kind}." in message.subject:
                await around(message)


def _that_ends(ending: Exception | None) -> Callable[[Message], Awaitable[None]]:
    async def handle(message: Message) -> None:
        if ending is not None:
            raise ending

    return handle
