"""Publishes the leader's heartbeats and snapshots, even to a full stream."""

import asyncio
import logging
from dataclasses import dataclass
from typing import NoReturn

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import Bus, BusError, NoStream, StreamFull
from libs.common.bus.stream_limits import HEADROOM_BYTES
from libs.common.contract.events import Leading, SnapshotComplete
from services.watcher.core.leader_epoch import LeaderEpoch
from services.watcher.resync_requests import ResyncRequests

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class LeaderPublisher:
    """Other publishers must not silence the leader: it raises the limit of a full stream for a moment."""

    bus: Bus
    publisher: OrderedPublisher
    epoch: LeaderEpoch
    requests: ResyncRequests
    heartbeat_ttl_seconds: float  # how long a Leading is valid

    def __post_init__(self) -> None:
        self.headroom_percent: int | None = None  # as last logged; None once the stream has room again
        self._ttl_seconds = max(1, int(self.heartbeat_ttl_seconds))

    async def publish_heartbeats(self, renewed: asyncio.Event) -> NoReturn:
        """Publish a heartbeat at each renewal only: a missing heartbeat shows that the renewal failed."""
        while True:
            await renewed.wait()
            renewed.clear()
            try:
                await self.publish_heartbeat()
            except NoStream:
                self.requests.request_round()
            except (BusError, TemporaryError) as error:
                log.info("cannot publish Leading", extra={"error": str(error)})

    async def publish_heartbeat(self) -> None:
        """Publish Leading, valid until the renew deadline. Raises BusError, TemporaryError."""
        leading = self.epoch.build_heartbeat()
        if leading is None:
            return
        if await self.publish(leading, ttl_seconds=self._ttl_seconds) is not PublishOutcome.PUBLISHED:
            self.requests.wake()

    async def publish(
        self, event: Leading | SnapshotComplete, *, ttl_seconds: int | None = None
    ) -> PublishOutcome:
        """Publish, and mark the epoch as rejected if the stream has a newer event."""
        outcome = await self._publish(event, ttl_seconds)
        if outcome is not PublishOutcome.PUBLISHED:
            self.epoch.mark_rejected()
        return outcome

    async def _publish(self, event: Leading | SnapshotComplete, ttl_seconds: int | None) -> PublishOutcome:
        try:
            return await self.publisher.publish(event, ttl_seconds=ttl_seconds)
        except StreamFull:
            self.requests.request_growth()
            async with self.bus.headroom(event) as used_bytes:
                self._report_headroom(used_bytes)
                return await self.publisher.publish(event, ttl_seconds=ttl_seconds)

    def _report_headroom(self, used_bytes: int) -> None:
        """Log each change of the whole percent: on a full cluster each renewal uses the headroom."""
        percent = 100 * used_bytes // HEADROOM_BYTES
        if percent != self.headroom_percent:
            self.headroom_percent = percent
            log.warning("stream full, publishing into its headroom", extra={"used_percent": percent})
