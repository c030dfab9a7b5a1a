"""Publishes the reports about the account and its instances, again before a reader considers them too old."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from libs.common.bus.protocol import Bus, BusError
from libs.common.bus.stream_limits import MAX_MESSAGE_AGE
from libs.common.contract.events import (
    AccountReport,
    AnyInstanceEvent,
    EventError,
    InstanceExists,
    InstanceMetadata,
    InstanceUnknown,
)
from libs.common.contract.subjects import subject_of
from services.cloud.core.instance_schedule import ACCOUNT_REPORT_SECONDS

log = logging.getLogger(__name__)

REPUBLISH_SECONDS: Final = 60.0
REPUBLISH_QUIET_SECONDS: Final = MAX_MESSAGE_AGE.total_seconds() / 3  # of what other accounts have, too
_RETRY_SECONDS: Final = 10.0


@dataclass(eq=False, kw_only=True)
class ReportPublisher:
    """Keeps the last report of each kind about each Node in the stream, and that about the account.

    It expects no sequence, which takes reading: the key of an account may not read what it publishes, because
    the server could then publish that anywhere. A reader orders reports by `asked_at`.
    """

    bus: Bus
    stream_id: Callable[[], str]
    monotonic: Callable[[], float]
    step_seconds: float
    why_paused: Callable[[], tuple[str, ...]]  # why the Nodes are not known now
    is_known: Callable[[AnyInstanceEvent], bool]  # whether a report is about a Node as it is now
    build_account_report: Callable[[], AccountReport]

    def __post_init__(self) -> None:
        self._reports: dict[str, AnyInstanceEvent] = {}  # by subject
        self._due: dict[str, float] = {}
        self._account_due = 0.0
        self._account_news: tuple[str, Mapping[str, int]] | None = (
            None  # of the last report about the account
        )
        self._failure = ""

    def problems(self) -> tuple[str, ...]:
        """Return why reports are not published, in words for /readyz."""
        return (f"cannot publish: {self._failure}",) if self._failure else ()

    async def run(self) -> None:
        """Publish what is due until cancelled."""
        while True:
            await asyncio.sleep(self.step_seconds)
            await self.publish_due()

    async def publish(self, report: AnyInstanceEvent) -> None:
        """Publish a new report. A failed publish is repeated."""
        subject = subject_of(report)
        self._reports[subject] = report
        await self._publish(subject)

    async def publish_due(self) -> None:
        """Publish again what has waited for long enough; forget reports about Nodes that have changed."""
        await self._publish_account_report()
        if self.why_paused():
            return
        for subject in [subject for subject, report in self._reports.items() if not self.is_known(report)]:
            del self._reports[subject]
            self._due.pop(subject, None)
        for subject in [subject for subject, due in self._due.items() if due <= self.monotonic()]:
            await self._publish(subject)

    async def _publish_account_report(self) -> None:
        """Publish a changed report at once, else if it is due: also while the Nodes are not known."""
        report = self.build_account_report()
        news = (report.failure, report.instances)
        if news == self._account_news and self.monotonic() < self._account_due:
            return
        self._account_news = news
        self._account_due = self.monotonic() + ACCOUNT_REPORT_SECONDS
        try:
            await self.bus.publish(report)
        except (BusError, EventError) as error:
            log.warning("publish failed, will retry", extra={"account": report.account, "error": str(error)})

    def start_stream(self) -> None:
        """Publish everything to a new stream."""
        self._due = dict.fromkeys(self._reports, self.monotonic())
        self._account_due = self.monotonic()

    async def _publish(self, subject: str) -> None:
        report = self._reports.get(subject)
        if report is None:
            return  # the Node has gone meanwhile
        report = msgspec.structs.replace(report, stream_id=self.stream_id())
        is_absent = isinstance(report, InstanceUnknown) and report.absent_from is not None
        is_quiet = is_absent or isinstance(report, InstanceExists | InstanceMetadata)
        interval = REPUBLISH_QUIET_SECONDS if is_quiet else REPUBLISH_SECONDS
        try:
            await self.bus.publish(report)
        except (BusError, EventError) as error:  # EventError: the cloud returned long texts
            self._failure, interval = str(error), _RETRY_SECONDS
            log.warning("publish failed, will retry", extra={"node": report.name, "error": str(error)})
        else:
            self._failure = ""
        if subject in self._reports:
            is_current = report.stream_id == self.stream_id()
            self._due[subject] = self.monotonic() + (interval if is_current else 0.0)
