"""Handles one message on every bus: calls the handler and publishes the dead letter."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from datetime import datetime

from libs.common.bus.dead_letters import make_dead_letter
from libs.common.bus.delivery import RETRY_CAP_SECONDS, Disposition, Nak, Reject
from libs.common.bus.protocol import BusError, Message
from libs.common.contract.events import DeadLetter

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Acknowledger:
    """Calls the handler of one durable and returns the disposition of each message."""

    handle: Callable[[Message], Awaitable[Disposition]]
    _: KW_ONLY
    service: str  # the publisher in dead letters
    publish_dead_letter: Callable[[DeadLetter], Awaitable[object]]  # raises BusError
    now: Callable[[], datetime]

    async def settle(self, message: Message) -> Disposition:
        """Return the handler's disposition, after publishing a dead letter; retry if that fails."""
        try:
            disposition = await self.handle(message)
        except Exception as error:
            # A handler returns a disposition. An exception is a defect and must not lose the message.
            log.exception("handler raised", extra={"subject": message.subject})
            return Nak(RETRY_CAP_SECONDS, f"{type(error).__name__}: {error}")
        if not isinstance(disposition, Reject):
            return disposition
        letter = make_dead_letter(message, service=self.service, reason=disposition.reason, at=self.now())
        try:
            await self.publish_dead_letter(letter)
        except BusError as error:
            return Nak(RETRY_CAP_SECONDS, f"cannot publish the dead letter: {error}")
        return disposition
