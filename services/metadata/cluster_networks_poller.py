"""Polls a control plane for the cluster's pod and service networks and publishes them."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.bus.delivery import TemporaryError, backoff_seconds
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError
from libs.common.bus.stream_cache import StreamCache
from libs.common.contract.events import ClusterNetworksObserved
from libs.common.contract.machine import MachineFault
from libs.common.contract.subjects import NETWORKS
from libs.talos.api import MachineConfigNetworks, MachineUnavailable
from services.metadata.clock import Clock
from services.metadata.core.event_equivalence import is_same_fault
from services.metadata.machines.talos_client import TalosClient

log = logging.getLogger(__name__)

_MIN_STEP: Final = timedelta(microseconds=1)
_NO_STREAM_ID: Final = ""


@dataclass(eq=False)
class ClusterNetworksPoller:
    """Keeps the ClusterNetworksObserved event in the stream current. After a failed poll it stays unchanged.

    It polls and publishes at the republish interval, because messages expire from the stream.
    """

    stream_cache: StreamCache
    publisher: OrderedPublisher
    clock: Clock
    _: KW_ONLY
    talos: TalosClient
    deadline_seconds: float

    def __post_init__(self) -> None:
        self._networks: ClusterNetworksObserved | None = None
        self._fault: MachineFault | None = None
        self._wakeup = asyncio.Event()

    def on_caught_up(self) -> None:
        """Publish now: the stream cache has all messages, and the bus is connected."""
        self._wakeup.set()

    async def run(self) -> None:
        """Poll and publish until cancelled."""
        failures = 0  # in a row
        while True:
            self._wakeup.clear()
            if self.stream_cache.is_replaying:
                await self._wakeup.wait()
                continue
            is_current = await self._poll()
            is_published = await self._publish()
            failures = 0 if is_current and is_published else failures + 1
            timing = self.clock.timing()
            delay = backoff_seconds(failures, timing.jitter) if failures else timing.until_republish()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wakeup.wait()

    async def _poll(self) -> bool:
        """Return whether a control plane has answered."""
        queried_at = self.clock.now()
        known = self._networks = select_later(self._networks, self._get_stored())
        try:
            networks = await self.talos.fetch_cluster_networks(deadline_seconds=self.deadline_seconds)
        except MachineUnavailable as unavailable:
            self._log_fault(unavailable.fault)
            return False
        self._fault = None
        self._networks = build_observed(networks, queried_at=queried_at, known=known)
        self._log_change(known, self._networks)
        return True

    async def _publish(self) -> bool:
        """Return whether the stream has the networks, as far as they are known."""
        event = select_later(self._networks, self._get_stored())
        if event is None or not self.stream_cache.stream_id:
            return True
        try:
            outcome = await self.publisher.publish(
                msgspec.structs.replace(event, stream_id=self.stream_cache.stream_id)
            )
        except (BusError, TemporaryError) as error:
            log.debug("publish of cluster networks failed, will retry", extra={"reason": str(error)})
            return False
        # If tied, another replica polled at the same time and got another response: the next poll decides.
        return outcome is not PublishOutcome.TIED

    def _get_stored(self) -> ClusterNetworksObserved | None:
        event = self.stream_cache.get_event(NETWORKS)
        return event if isinstance(event, ClusterNetworksObserved) else None

    def _log_fault(self, fault: MachineFault) -> None:
        before, self._fault = self._fault, fault
        fields = {"fault": fault.kind, "step": fault.step, "reason": fault.message}
        level = logging.DEBUG if is_same_fault(before, fault) else logging.WARNING
        log.log(level, "poll of cluster networks failed, keeping the known ones", extra=fields)

    def _log_change(self, before: ClusterNetworksObserved | None, after: ClusterNetworksObserved) -> None:
        if before is None or not has_same_networks(before, after):
            fields = {
                "pods": after.pod_cidrs,
                "services": after.service_cidrs,
                "mask_ipv4": after.node_cidr_mask_size_ipv4,
                "mask_ipv6": after.node_cidr_mask_size_ipv6,
            }
            log.info("cluster networks changed", extra=fields)


def build_observed(
    networks: MachineConfigNetworks, *, queried_at: datetime, known: ClusterNetworksObserved | None
) -> ClusterNetworksObserved:
    """Return the event for a new response. It is always later than `known`, even if the clock went back."""
    observed_at = queried_at if known is None else max(queried_at, known.observed_at + _MIN_STEP)
    return ClusterNetworksObserved(
        stream_id=_NO_STREAM_ID,
        pod_cidrs=networks.pod_cidrs,
        service_cidrs=networks.service_cidrs,
        node_cidr_mask_size_ipv4=networks.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6=networks.node_cidr_mask_size_ipv6,
        observed_at=observed_at,
    )


def select_later(
    known: ClusterNetworksObserved | None, stored: ClusterNetworksObserved | None
) -> ClusterNetworksObserved | None:
    """Return the event that was queried later; `known` if both are from the same time."""
    if known is None or stored is None:
        return known or stored
    return stored if stored.observed_at > known.observed_at else known


def has_same_networks(one: ClusterNetworksObserved, other: ClusterNetworksObserved) -> bool:
    """Return whether two events mean the same to consumers, apart from stream and time."""
    when_and_where = {"stream_id": other.stream_id, "observed_at": other.observed_at}
    return msgspec.structs.replace(one, **when_and_where) == other
