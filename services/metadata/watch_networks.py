"""The cluster's pod and service networks: asked of a control plane now and then, and said to the flow."""

import asyncio
import logging
from typing import Final

from libs.common.bus import BusError
from libs.common.delivery import TemporaryError, backoff_seconds
from libs.common.events import ClusterNetworksObserved
from libs.common.flow_table import FlowTable
from libs.common.machine import MachineFault
from libs.common.process.service import Parts
from libs.common.publisher import OrderedPublisher, Outcome
from libs.common.subjects import NETWORKS
from services.metadata.ask_machine import Talos
from services.metadata.networks import later, observed, same_networks, to_say
from services.metadata.schedule import Pace, repeat_after
from services.metadata.talos_api.api import MachineUnavailable

log = logging.getLogger(__name__)

_AT_ONCE: Final = 0.0


class ClusterNetworksWatch:
    """Keeps what the stream says of them true. A question that fails changes nothing: what is known stands.

    It is asked for and said again as often as everything else is: the stream forgets after an hour.
    """

    def __init__(
        self,
        table: FlowTable,
        publisher: OrderedPublisher,
        parts: Parts,
        *,
        talos: Talos,
        pace: Pace,
        deadline_seconds: float,
    ) -> None:
        self._table = table
        self._publisher = publisher
        self._parts = parts
        self._talos = talos
        self._pace = pace
        self._deadline_seconds = deadline_seconds
        self._known: ClusterNetworksObserved | None = None
        self._fault: MachineFault | None = None
        self._failed_questions = 0
        self._unsaid = 0  # in a row, refusals of the bus
        self._ask_at = self._say_at = _AT_ONCE  # monotonic
        self._woken = asyncio.Event()

    def caught_up(self) -> None:
        """The table holds what the stream does: what could not be said may be said now."""
        self._say_at = _AT_ONCE
        self._woken.set()

    async def run(self) -> None:
        """Ask and say, until cancelled."""
        while True:
            now = self._parts.monotonic()
            if self._table.replaying:
                await self._wait(None)
                continue
            if now >= self._ask_at:
                await self._ask()
            if self._parts.monotonic() >= self._say_at:
                await self._say()
            await self._wait(min(self._ask_at, self._say_at) - self._parts.monotonic())

    async def _ask(self) -> None:
        asked_at = self._parts.now()
        known = self._known = later(self._known, self._heard())
        try:
            networks = await self._talos.cluster_networks(deadline_seconds=self._deadline_seconds)
        except MachineUnavailable as unavailable:
            self._failed_questions += 1
            wait = backoff_seconds(self._failed_questions, self._parts.random.random())
            self._ask_at = self._parts.monotonic() + wait
            self._tell_fault(unavailable.fault)
            return
        self._failed_questions, self._fault = 0, None
        self._ask_at = self._parts.monotonic() + repeat_after(self._pace, self._parts.random.random())
        self._known = observed(networks, asked_at=asked_at, known=known)
        self._say_at = _AT_ONCE
        self._tell_change(known, self._known)

    async def _say(self) -> None:
        self._say_at = self._parts.monotonic() + repeat_after(self._pace, self._parts.random.random())
        event = to_say(later(self._known, self._heard()), self._table.incarnation)
        if event is None:
            return
        try:
            outcome = await self._publisher.publish(event)
        except (BusError, TemporaryError) as error:
            self._unsaid += 1
            wait = backoff_seconds(self._unsaid, self._parts.random.random())
            self._say_at = self._parts.monotonic() + wait
            log.debug("the cluster's networks are not said, the bus refused", extra={"reason": str(error)})
            return
        self._unsaid = 0
        if outcome is Outcome.TIED:
            self._ask_at = _AT_ONCE  # somebody asked at the same moment and was told something else

    def _heard(self) -> ClusterNetworksObserved | None:
        message = self._table.last(NETWORKS)
        event = message.event if message is not None else None
        return event if isinstance(event, ClusterNetworksObserved) else None

    async def _wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    def _tell_fault(self, fault: MachineFault) -> None:
        before, self._fault = self._fault, fault
        again = before is not None and (before.kind, before.step) == (fault.kind, fault.step)
        fields = {"fault": fault.kind, "step": fault.step, "reason": fault.message}
        level = logging.DEBUG if again else logging.WARNING
        log.log(level, "no control plane tells the cluster's networks; what was known stands", extra=fields)

    def _tell_change(self, before: ClusterNetworksObserved | None, after: ClusterNetworksObserved) -> None:
        if before is None or not same_networks(before, after):
            fields = {
                "pods": after.pod_cidrs,
                "services": after.service_cidrs,
                "mask_ipv4": after.node_cidr_mask_size_ipv4,
                "mask_ipv6": after.node_cidr_mask_size_ipv6,
            }
            log.info("a control plane tells the cluster's networks", extra=fields)
