"""An Event about the whole cluster, of which only the newest is worth telling."""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.delivery import PermanentError, TemporaryError, backoff_seconds
from libs.common.kube_api.event_queue import EventWriter
from libs.common.kube_api.events import About, ObjectEvent
from libs.common.wiring import LEASE_NAMESPACE

log = logging.getLogger(__name__)

# What lies in no namespace is told of in `default`, where alone we may write Events; this is always there.
CLUSTER: Final = About(kind="Namespace", name=LEASE_NAMESPACE, uid="")


class NewestEvent:
    """Newer news replaces what has not been told; for as long as Kubernetes does not take it, it is tried."""

    def __init__(self, kube: EventWriter, *, now: Callable[[], datetime], random: random.Random) -> None:
        self._kube = kube
        self._now = now
        self._random = random
        self._untold: ObjectEvent | None = None
        self._is_untold = asyncio.Event()

    def tell(self, event: ObjectEvent) -> None:
        """Write it soon, instead of what waits."""
        self._untold = event
        self._is_untold.set()

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            await self._is_untold.wait()
            self._is_untold.clear()
            attempt = 0
            while (event := self._untold) is not None:
                attempt += 1
                try:
                    await self._kube.create_event(event, now=self._now())
                except (TemporaryError, PermanentError) as error:
                    if attempt == 1:
                        log.warning(
                            "an Event could not be written, it is tried again",
                            extra={"reason": event.reason, "error": str(error)},
                        )
                    await asyncio.sleep(backoff_seconds(attempt, self._random.random()))
                else:
                    self._untold = None if self._untold is event else self._untold
