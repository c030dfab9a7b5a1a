"""Polls a control plane for the cluster's pod and service networks and publishes them."""

import asyncio
import logging
from typing import Final

from libs.common.bus.delivery import TemporaryError, backoff_seconds
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import ClusterNetworksObserved
from libs.common.contract.machine import MachineFault
from libs.common.contract.subjects import NETWORKS
from libs.common.service.service import Dependencies
from libs.talos.api import MachineUnavailable
from services.metadata.network_state import build_observed, build_publication, has_same_networks, select_later
from services.metadata.poll_schedule import PollIntervals, delay_until_republish
from services.metadata.query_machine import TalosClient

log = logging.getLogger(__name__)

_IMMEDIATELY: Final = 0.0


class ClusterNetworksPoller:
    """Keeps the ClusterNetworksObserved event in the stream current. After a failed poll it stays unchanged.

    Polls and publishes repeat at the republish interval, because messages expire from the stream.
    """

    def __init__(
        self,
        stream_cache: StreamCache,
        publisher: OrderedPublisher,
        dependencies: Dependencies,
        *,
        talos: TalosClient,
        intervals: PollIntervals,
        deadline_seconds: float,
    ) -> None:
        self._stream_cache = stream_cache
        self._publisher = publisher
        self._dependencies = dependencies
        self._talos = talos
        self._intervals = intervals
        self._deadline_seconds = deadline_seconds
        self._networks: ClusterNetworksObserved | None = None
        self._fault: MachineFault | None = None
        self._failed_polls = 0
        self._publish_failures = 0  # in a row
        self._poll_at = self._publish_at = _IMMEDIATELY  # monotonic
        self._wakeup = asyncio.Event()

    def on_caught_up(self) -> None:
        """Publish now: the stream cache has all messages, and the bus is connected."""
        self._publish_at = _IMMEDIATELY
        self._wakeup.set()

    async def run(self) -> None:
        """Poll and publish until cancelled."""
        while True:
            now = self._dependencies.monotonic()
            if self._stream_cache.is_replaying:
                await self._wait(None)
                continue
            if now >= self._poll_at:
                await self._poll()
            if self._dependencies.monotonic() >= self._publish_at:
                await self._publish()
            await self._wait(min(self._poll_at, self._publish_at) - self._dependencies.monotonic())

    async def _poll(self) -> None:
        queried_at = self._dependencies.now()
        known = self._networks = select_later(self._networks, self._get_stored())
        try:
            networks = await self._talos.fetch_cluster_networks(deadline_seconds=self._deadline_seconds)
        except MachineUnavailable as unavailable:
            self._failed_polls += 1
            wait = backoff_seconds(self._failed_polls, self._dependencies.random.random())
            self._poll_at = self._dependencies.monotonic() + wait
            self._log_fault(unavailable.fault)
            return
        self._failed_polls, self._fault = 0, None
        self._poll_at = self._dependencies.monotonic() + delay_until_republish(
            self._intervals, self._dependencies.random.random()
        )
        self._networks = build_observed(networks, queried_at=queried_at, known=known)
        self._publish_at = _IMMEDIATELY
        self._log_change(known, self._networks)

    async def _publish(self) -> None:
        self._publish_at = self._dependencies.monotonic() + delay_until_republish(
            self._intervals, self._dependencies.random.random()
        )
        event = build_publication(
            select_later(self._networks, self._get_stored()), self._stream_cache.stream_id
        )
        if event is None:
            return
        try:
            outcome = await self._publisher.publish(event)
        except (BusError, TemporaryError) as error:
            self._publish_failures += 1
            wait = backoff_seconds(self._publish_failures, self._dependencies.random.random())
            self._publish_at = self._dependencies.monotonic() + wait
            log.debug("the cluster's networks are not said, the bus refused", extra={"reason": str(error)})
            return
        self._publish_failures = 0
        if outcome is PublishOutcome.TIED:
            self._poll_at = _IMMEDIATELY  # another replica polled at the same time and got another response

    def _get_stored(self) -> ClusterNetworksObserved | None:
        message = self._stream_cache.get(NETWORKS)
        event = message.event if message is not None else None
        return event if isinstance(event, ClusterNetworksObserved) else None

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
                await self._wakeup.wait()
        except TimeoutError:
            return
        self._wakeup.clear()

    def _log_fault(self, fault: MachineFault) -> None:
        before, self._fault = self._fault, fault
        is_repeated = before is not None and (before.kind, before.step) == (fault.kind, fault.step)
        fields = {"fault": fault.kind, "step": fault.step, "reason": fault.message}
        level = logging.DEBUG if is_repeated else logging.WARNING
        log.log(level, "no control plane tells the cluster's networks; what was known stands", extra=fields)

    def _log_change(self, before: ClusterNetworksObserved | None, after: ClusterNetworksObserved) -> None:
        if before is None or not has_same_networks(before, after):
            fields = {
                "pods": after.pod_cidrs,
                "services": after.service_cidrs,
                "mask_ipv4": after.node_cidr_mask_size_ipv4,
                "mask_ipv6": after.node_cidr_mask_size_ipv6,
            }
            log.info("a control plane tells the cluster's networks", extra=fields)
