"""Probes single machines during an outage, and has all others polled when one answers."""

import asyncio

from libs.common.contract.machine import MachineFault
from libs.common.observability import metrics
from services.metadata.clock import Clock
from services.metadata.core.outage_detector import OutageDetector
from services.metadata.machines.talos_client import TalosClient
from services.metadata.node_registry import NodeRegistry


class OutageProber:
    """Detects the end of an outage within seconds, despite the back-off of each Node."""

    def __init__(
        self, nodes: NodeRegistry, talos: TalosClient, clock: Clock, *, probe_seconds: float
    ) -> None:
        self._nodes = nodes
        self._talos = talos
        self._clock = clock
        self._probe_seconds = probe_seconds
        self._detector = OutageDetector()

    async def run(self) -> None:
        """Probe one machine at a time until cancelled."""
        while True:
            self._nodes.expedite_poll(self._detector.select_probe())
            expires = self._talos.certificate_expires_at()
            metrics.TALOS_CERTIFICATE_EXPIRY.set(expires.timestamp() if expires else 0)
            await asyncio.sleep(self._probe_seconds)

    def record_poll(self, name: str, fault: MachineFault | None, *, began: float) -> None:
        """Record a poll. If it ends an outage, poll all unreachable machines within a second."""
        now = self._clock.monotonic()
        for other in self._detector.record_poll(name, fault, began=began, now=now):
            self._nodes.expedite_poll(other, self._clock.random())

    def forget(self, name: str) -> None:
        """Forget a Node that is gone."""
        self._detector.forget(name)
