"""Writes Events about the whole cluster, of which only the latest matters."""

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
from libs.common.latest_value import LatestValue

log = logging.getLogger(__name__)

# Events about cluster-scoped objects go to `default`, the only namespace with the permission. This object
# always exists.
CLUSTER_REFERENCE: Final = ObjectReference(kind="Namespace", name=LEASE_NAMESPACE, uid="")


class LatestEventRecorder:
    """Writes the latest Event. A newer one replaces one that waits; failures are retried without a limit."""

    def __init__(self, kube: EventWriter, *, now: Callable[[], datetime], random: random.Random) -> None:
        self._kube = kube
        self._now = now
        self._random = random
        self._latest = LatestValue[ObjectEvent]()

    def record(self, event: ObjectEvent) -> None:
        """Queue the Event in place of the waiting one."""
        self._latest.put(event)

    async def run(self) -> None:
        """Write queued Events until cancelled."""
        while True:
            event, attempt = await self._latest.take(), 1
            while not await self._write(event, attempt):
                await asyncio.sleep(backoff_seconds(attempt, self._random.random()))
                event, attempt = self._latest.take_newer(event), attempt + 1

    async def _write(self, event: ObjectEvent, attempt: int) -> bool:
        try:
            await self._kube.create_event(event, now=self._now())
        except (TemporaryError, PermanentError) as error:
            if attempt == 1:
                log.warning(
                    "Event not written, will retry", extra={"reason": event.reason, "error": str(error)}
                )
            return False
        return True
