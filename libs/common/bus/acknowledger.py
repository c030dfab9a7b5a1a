"""What a consumer does about a message on every bus: hears its handler out, and writes the letter."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from libs.common.bus.dead_letters import make_dead_letter
from libs.common.bus.delivery import RETRY_CAP_SECONDS, Disposition, Nak, Reject
from libs.common.bus.protocol import BusError, Message
from libs.common.contract.events import DeadLetter

log = logging.getLogger(__name__)


class Acknowledger:
    """Asks the handler of one durable for its verdicts."""

    def __init__(
        self,
        handle: Callable[[Message], Awaitable[Disposition]],
        *,
        service: str,
        publish_dead_letter: Callable[[DeadLetter], Awaitable[object]],
        now: Callable[[], datetime],
    ) -> None:
        """Letters are written in the name of `service` and published by `put_aside`."""
        self._handle = handle
        self._service = service
        self._put_aside = publish_dead_letter
        self._clock = now

    async def settle(self, message: Message) -> Disposition:
        """What the handler says, its letter written; what could not be put aside comes back later."""
        try:
            verdict = await self._handle(message)
        except Exception as error:
            # Handlers return verdicts: this is a defect, and it must not cost the message.
            log.exception("a handler raised", extra={"subject": message.subject})
            return Nak(RETRY_CAP_SECONDS, f"{type(error).__name__}: {error}")
        if not isinstance(verdict, Reject):
            return verdict
        letter = make_dead_letter(message, service=self._service, reason=verdict.reason, at=self._clock())
        try:
            await self._put_aside(letter)
        except BusError as error:
            return Nak(RETRY_CAP_SECONDS, f"could not be put aside: {error}")
        return verdict
