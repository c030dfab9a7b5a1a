"""What a consumer does about a message on every bus: hears its handler out, and writes the letter."""

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from libs.common.bus import BusError, Message
from libs.common.dead_letters import dead_letter
from libs.common.delivery import RETRY_CAP_SECONDS, Nak, PutAside, Verdict
from libs.common.events import DeadLetter

log = logging.getLogger(__name__)


class Judge:
    """Asks the handler of one durable for its verdicts."""

    def __init__(
        self,
        handle: Callable[[Message], Awaitable[Verdict]],
        *,
        service: str,
        put_aside: Callable[[DeadLetter], Awaitable[object]],
        clock: Callable[[], datetime],
    ) -> None:
        """Letters are written in the name of `service` and published by `put_aside`."""
        self._handle = handle
        self._service = service
        self._put_aside = put_aside
        self._clock = clock

    async def verdict(self, message: Message) -> Verdict:
        """What the handler says, its letter written; what could not be put aside comes back later."""
        try:
            verdict = await self._handle(message)
        except Exception as error:
            # Handlers return verdicts: this is a defect, and it must not cost the message.
            log.exception("a handler raised", extra={"subject": message.subject})
            return Nak(RETRY_CAP_SECONDS, f"{type(error).__name__}: {error}")
        if not isinstance(verdict, PutAside):
            return verdict
        letter = dead_letter(message, service=self._service, reason=verdict.reason, at=self._clock())
        try:
            await self._put_aside(letter)
        except BusError as error:
            return Nak(RETRY_CAP_SECONDS, f"could not be put aside: {error}")
        return verdict
