"""Reloads of --cloud-config: the status of each service, and the reload of the ownership section."""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig, Ownership
from libs.common.kube.event_recorder import CLUSTER_REFERENCE, EventRecorder
from libs.common.observability import metrics
from libs.common.service.service import run_together
from libs.common.settings.cloud_config_reloader import CloudConfigReloader, CloudConfigSettings

log = logging.getLogger(__name__)

_MAX_LOGGED_MISTAKES: Final = 20  # per log message: a file of another format has a mistake in each line


class ConfigEvents(msgspec.Struct, frozen=True, kw_only=True):
    """The Events of a service about the file, and the recorder that writes them."""

    recorder: EventRecorder  # of the latest Event
    accepted: str  # reason of the Event
    rejected: str  # reason of the Event


@dataclass(eq=False)
class CloudConfigStatus:
    """The time of the last accepted file, and the mistakes of a newer rejected one."""

    service: str
    settings: CloudConfigSettings
    _: KW_ONLY
    now: Callable[[], datetime]
    events: ConfigEvents | None = None  # None: only metrics, log and problems report

    def __post_init__(self) -> None:
        self._events = None if self.settings.observe_only else self.events
        self._loaded_at = self.now()
        self._mistakes: tuple[str, ...] = ()

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The mistakes of the rejected file; () if the last file was accepted."""
        return self._mistakes

    def problems(self) -> tuple[str, ...]:
        """Return the mistakes of the rejected file, as one sentence."""
        return (self._summarize(),) if self._mistakes else ()

    async def follow(
        self,
        on_change: Callable[[CloudConfig | CloudConfigError], Awaitable[None]],
        *periodic: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Poll the file until cancelled, and run `periodic` meanwhile; return at once without a file."""
        settings = self.settings
        if settings.cloud_config is None:
            return
        self._export()
        file = CloudConfigReloader(settings.cloud_config, settings.file)
        await run_together(
            file.watch(on_change, poll_seconds=settings.cloud_config_poll_seconds),
            *((self._events.recorder.run(),) if self._events is not None else ()),
            *(run() for run in periodic),
        )

    def _export(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(self.service).set(not self._mistakes)
        metrics.RULES_LAST_RELOAD.labels(self.service).set(self._loaded_at.timestamp())

    def accept(self, text: str) -> None:
        """Record an accepted file; `text` is the message of the Event after a rejection."""
        was_rejected, self._mistakes = bool(self._mistakes), ()
        self._loaded_at = self.now()
        self._export()
        if was_rejected and self._events is not None:
            self._record(self._events, self._events.accepted, text)

    def reject(self, mistakes: tuple[str, ...]) -> None:
        """Record a rejected file; the last accepted one stays in use."""
        self._mistakes = mistakes
        self._export()
        metrics.RULES_RELOAD_ERRORS.labels(self.service).inc()
        more = len(mistakes) - _MAX_LOGGED_MISTAKES
        shown = "; ".join(mistakes[:_MAX_LOGGED_MISTAKES]) + (f"; and {more} more" if more > 0 else "")
        log.error("--cloud-config rejected, the previous one stays in use", extra={"mistakes": shown})
        if self._events is not None:
            self._record(self._events, self._events.rejected, self._summarize())

    def _summarize(self) -> str:
        first, *others = self._mistakes
        more = f" (and {len(others)} more, see the log)" if others else ""
        return f"{first}{more}; the configuration of {self._loaded_at:%Y-%m-%dT%H:%M:%SZ} stays in use"

    def _record(self, events: ConfigEvents, reason: str, message: str) -> None:
        events.recorder.record(
            CLUSTER_REFERENCE,
            reason,
            message,
            is_warning=bool(self._mistakes),
            discriminator="\n".join(self._mistakes),
        )


@dataclass(eq=False)
class OwnershipReloader:
    """Provides the ownership section of the last valid file, for services that use nothing else of it.

    It records no Events about an invalid file, because the labeler does.
    """

    settings: CloudConfigSettings
    _: KW_ONLY
    service: str
    controller: str
    on_change: Callable[[], None]  # called when the ownership changes
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._ownership = self.settings.file.ownership.for_controller(self.controller)
        self._status = CloudConfigStatus(self.service, self.settings, now=self.now)

    def ownership(self) -> Ownership:
        """Return the current ownership."""
        return self._ownership

    def problems(self) -> tuple[str, ...]:
        """Return the mistakes of a rejected file."""
        return self._status.problems()

    async def run(self) -> None:
        """Poll the file until cancelled; return at once if no file is configured."""
        await self._status.follow(self._apply)

    async def _apply(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            self._status.reject(tuple(found.mistakes))
            return
        self._status.accept("")
        ownership = found.ownership.for_controller(self.controller)
        if ownership != self._ownership:
            self._ownership = ownership
            log.info("ownership of Nodes changed")
            self.on_change()
