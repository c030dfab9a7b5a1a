"""Reloads --cloud-config when the file changes; reports an invalid file and keeps the last valid one."""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.services import LABELER
from libs.common.kube.event_recorder import EventWriter
from libs.common.kube.events import ObjectEvent
from libs.common.kube.latest_event_recorder import CLUSTER_REFERENCE, LatestEventRecorder
from libs.common.observability import metrics
from libs.common.settings.cloud_config_reloader import CloudConfigReloader
from services.labeler.plan import ClusterConfig
from services.labeler.settings import InvalidConfigError, LabelerSettings

log = logging.getLogger(__name__)

_COMPONENT: Final = "talos-ccm"
_MAX_LOGGED_MISTAKES: Final = 20  # per log message: a file of another format has a mistake in each line


class ConfigReloader:
    """Provides the cluster config of the last valid file, and the mistakes of a newer invalid one."""

    def __init__(
        self,
        settings: LabelerSettings,
        *,
        on_change: Callable[[], None],
        kube: EventWriter,
        now: Callable[[], datetime],
        random: random.Random,
    ) -> None:
        """Start with the file of `settings`; `on_change` is called after each accepted change."""
        self._settings = settings
        self._on_change = on_change
        self._now = now
        self._event_recorder = LatestEventRecorder(kube, now=now, random=random)
        self._current = settings.config
        self._loaded_at = now()
        self._mistakes: tuple[str, ...] = ()
        self._pending: CloudConfig | CloudConfigError | None = None
        self._has_pending = asyncio.Event()

    def current(self) -> ClusterConfig:
        """Return the current cluster config: the same object until it changes."""
        return self._current

    def problems(self) -> tuple[str, ...]:
        """Return the mistakes of a rejected file, as one sentence."""
        return (self._summarize_mistakes(),) if self._mistakes else ()

    async def run(self) -> None:
        """Poll the file until cancelled; return at once if no file is configured."""
        if self._settings.cloud_config is None:
            return
        self._update_metrics()
        file = CloudConfigReloader(self._settings.cloud_config, self._settings.file)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                file.watch(self._on_file_changed, poll_seconds=self._settings.cloud_config_poll_seconds)
            )
            tasks.create_task(self._process_changes())
            tasks.create_task(self._event_recorder.run())

    def _on_file_changed(self, found: CloudConfig | CloudConfigError) -> None:
        self._pending = found
        self._has_pending.set()

    async def _process_changes(self) -> None:
        while True:
            await self._has_pending.wait()
            self._has_pending.clear()
            if self._pending is not None:
                await self._load(self._pending)

    async def _load(self, found: CloudConfig | CloudConfigError) -> None:
        try:
            config, warnings = await asyncio.to_thread(self._settings.evaluate, found)
        except InvalidConfigError as error:
            self._reject(error.mistakes)
        except Exception as error:
            # Operators write the file: a defect that it triggers must not replace the current config.
            log.exception("cloud-config evaluation failed")
            self._reject(
                (f"{self._settings.cloud_config} cannot be evaluated: {type(error).__name__}: {error}",)
            )
        else:
            self._accept(config, warnings=warnings)

    def _accept(self, config: ClusterConfig, *, warnings: tuple[str, ...]) -> None:
        was_rejected, self._mistakes = bool(self._mistakes), ()
        self._current, self._loaded_at = config, self._now()
        self._update_metrics()
        rules = len(config.rules.rules)
        log.info("cloud-config reloaded", extra={"rules": rules})
        for warning in warnings:
            log.warning("cloud-config warning", extra={"why": warning})
        if was_rejected:
            text = f"{self._settings.cloud_config} is valid again and in effect: {rules} rules"
            self._publish_event("CloudConfigAccepted", text, "Normal")
        self._on_change()

    def _reject(self, mistakes: tuple[str, ...]) -> None:
        self._mistakes = mistakes
        self._update_metrics()
        metrics.RULES_RELOAD_ERRORS.labels(LABELER.service).inc()
        shown = "; ".join(mistakes[:_MAX_LOGGED_MISTAKES])
        more = len(mistakes) - _MAX_LOGGED_MISTAKES
        log.error(
            "cloud-config rejected, the previous content stays in effect",
            extra={"mistakes": shown + (f"; and {more} more" if more > 0 else "")},
        )
        self._publish_event("CloudConfigRejected", self._summarize_mistakes(), "Warning")

    def _summarize_mistakes(self) -> str:
        first, *others = self._mistakes
        more = f" (and {len(others)} more, see the log)" if others else ""
        return f"{first}{more}; the content of {self._loaded_at:%Y-%m-%dT%H:%M:%SZ} stays in effect"

    def _publish_event(self, reason: str, message: str, kind: Literal["Normal", "Warning"]) -> None:
        if self._settings.observe_only:
            return
        event = ObjectEvent(
            regarding=CLUSTER_REFERENCE,
            reason=reason,
            message=message,
            type=kind,
            component=_COMPONENT,
            discriminator="\n".join(self._mistakes),
        )
        self._event_recorder.record(event)

    def _update_metrics(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(LABELER.service).set(not self._mistakes)
        metrics.RULES_LAST_RELOAD.labels(LABELER.service).set(self._loaded_at.timestamp())
