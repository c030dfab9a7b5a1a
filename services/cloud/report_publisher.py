"""Publishes the reports about instances, and again before a reader may consider them too old."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.bus.protocol import BusError
from libs.common.contract.events import AnyInstanceReport, InstanceExists, InstanceUnknown

log = logging.getLogger(__name__)

REPUBLISH_SECONDS: Final = 60.0
# Of what other accounts have, too. A third of the time for which the stream keeps a message.
REPUBLISH_QUIET_SECONDS: Final = 1200.0
_RETRY_SECONDS: Final = 10.0


@dataclass(eq=False, kw_only=True)
class ReportPublisher:
    """Keeps the last report of each Node in the stream."""

    publisher: OrderedPublisher
    stream_id: Callable[[], str]
    monotonic: Callable[[], float]
    step_seconds: float
    why_paused: Callable[[], tuple[str, ...]]  # why the Nodes are not known now
    is_known: Callable[[AnyInstanceReport], bool]  # whether a report is about a Node as it is now

    def __post_init__(self) -> None:
        self._reports: dict[str, AnyInstanceReport] = {}
        self._due: dict[str, float] = {}
        self._failure = ""

    def problems(self) -> tuple[str, ...]:
        """Return why reports are not published, in words for /readyz."""
        return (f"cannot publish: {self._failure}",) if self._failure else ()

    async def run(self) -> None:
        """Publish what is due until cancelled."""
        while True:
            await asyncio.sleep(self.step_seconds)
            await self.publish_due()

    async def publish(self, report: AnyInstanceReport) -> None:
        """Publish a new report. A failed publish is repeated."""
        self._reports[report.name] = report
        await self._publish(report.name)

    async def publish_due(self) -> None:
        """Publish again what has waited for long enough; forget reports about Nodes that have changed."""
        if self.why_paused():
            return
        for name in [name for name, report in self._reports.items() if not self.is_known(report)]:
            self.forget(name)
        for name in [name for name, due in self._due.items() if due <= self.monotonic()]:
            await self._publish(name)

    def start_stream(self) -> None:
        """Publish everything to a new stream."""
        self.publisher.forget_all()
        self._due = dict.fromkeys(self._reports, self.monotonic())

    def forget(self, name: str) -> None:
        """Publish nothing more about that Node."""
        self._reports.pop(name, None)
        self._due.pop(name, None)

    async def _publish(self, name: str) -> None:
        report = self._reports.get(name)
        if report is None:
            return  # the Node has gone meanwhile
        report = msgspec.structs.replace(report, stream_id=self.stream_id())
        is_quiet = isinstance(report, InstanceExists) or (
            isinstance(report, InstanceUnknown) and report.is_absent
        )
        interval = REPUBLISH_QUIET_SECONDS if is_quiet else REPUBLISH_SECONDS
        try:
            outcome = await self.publisher.publish(report)
        except (BusError, TemporaryError) as error:
            self._failure, interval = str(error), _RETRY_SECONDS
            log.warning("publish failed, will retry", extra={"node": name, "error": str(error)})
        else:
            self._failure = ""
            if outcome is PublishOutcome.SUPERSEDED and report.stream_id == self.stream_id():
                log.warning("another process has published a newer report", extra={"node": name})
        if name in self._reports:
            is_current = report.stream_id == self.stream_id()
            self._due[name] = self.monotonic() + (interval if is_current else 0.0)
