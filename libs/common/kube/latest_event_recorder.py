"""An Event about the whole cluster, of which only the newest is worth telling."""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.bus.delivery import PermanentError, TemporaryError, backoff_seconds
from libs.common.contract.services import LEASE_NAMESPACE
from libs.common.kube.event_recorder import EventWriter
from libs.common.kube.events import ObjectEvent, ObjectReference

log = logging.getLogger(__name__)

# What lies in no namespace is told of in `default`, where alone we may write Events; this is always there.
CLUSTER_REFERENCE: Final = ObjectReference(kind="Namespace", name=LEASE_NAMESPACE, uid="")


class LatestEventRecorder:
    """Newer news replaces what has not been told; for as long as Kubernetes does not take it, it is tried."""

    def __init__(self, kube: EventWriter, *, now: Callable[[], datetime], random: random.Random) -> None:
        self._kube = kube
        self._now = now
        self._random = random
        self._pending: ObjectEvent | None = None
        self._has_pending = asyncio.Event()

    def record(self, event: ObjectEvent) -> None:
        """Write it soon, instead of what waits."""
        self._pending = event
        self._has_pending.set()

    async def run(self) -> None:
        """Write what is to be told, until cancelled."""
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            attempt = 0
            while (event := self._pending) is not None:
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
                    self._pending = None if self._pending is event else self._pending
