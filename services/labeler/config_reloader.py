"""Reloads --cloud-config when the file changes; reports an invalid file and keeps the last valid one."""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig
from libs.common.contract.services import LABELER
from libs.common.kube.event_recorder import LATEST_ONLY, EventRecorder, EventWriter
from libs.common.service.config_reload import CloudConfigStatus, ConfigEvents
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.rules.compilation import RulesError
from services.labeler.settings import LabelerSettings

log = logging.getLogger(__name__)

_COMPONENT: Final = "talos-ccm"


class ConfigReloader:
    """Provides the cluster config of the last valid file, and the mistakes of a newer invalid one."""

    def __init__(
        self,
        settings: LabelerSettings,
        *,
        on_change: Callable[[], None],
        kube: EventWriter,
        now: Callable[[], datetime],
    ) -> None:
        """Start with the file of `settings`; `on_change` is called after each accepted change."""
        self._settings = settings
        self._on_change = on_change
        events = ConfigEvents(
            recorder=EventRecorder(kube, component=_COMPONENT, now=now, limits=LATEST_ONLY),
            accepted="CloudConfigAccepted",
            rejected="CloudConfigRejected",
        )
        self._status = CloudConfigStatus(LABELER.service, settings, now=now, events=events)
        self._current = settings.config

    def current(self) -> ClusterConfig:
        """Return the current cluster config: the same object until it changes."""
        return self._current

    def problems(self) -> tuple[str, ...]:
        """Return the mistakes of a rejected file, as one sentence."""
        return self._status.problems()

    async def run(self) -> None:
        """Poll the file until cancelled; return at once if no file is configured."""
        await self._status.follow(self._load)

    async def _load(self, found: CloudConfig | CloudConfigError) -> None:
        try:
            config = await asyncio.to_thread(self._settings.build_config, found)
        except RulesError as error:
            self._status.reject(self._settings.format_findings(error.findings))
        except Exception as error:
            # Operators write the file: a defect that it triggers must not replace the current config.
            log.exception("cloud-config evaluation failed")
            self._status.reject(
                (f"{self._settings.cloud_config} cannot be evaluated: {type(error).__name__}: {error}",)
            )
        else:
            warnings = () if isinstance(found, CloudConfigError) else found.warnings
            self._accept(config, warnings=self._settings.format_findings(warnings + config.rules.warnings))

    def _accept(self, config: ClusterConfig, *, warnings: tuple[str, ...]) -> None:
        self._current = config
        rules = len(config.rules.rules)
        log.info("cloud-config reloaded", extra={"rules": rules})
        for warning in warnings:
            log.warning("cloud-config warning", extra={"why": warning})
        self._status.accept(f"the labeler uses {self._settings.cloud_config}: {rules} rules")
        self._on_change()
