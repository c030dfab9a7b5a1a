"""Whose Nodes are ours: `ownership` of the --cloud-config file, whenever it changes."""

import logging
from collections.abc import Callable

from libs.common import metrics
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.rule import CloudConfig, Ownership
from libs.common.controllers import NODE_LIFECYCLE
from libs.common.settings.cloud_config_file import CloudConfigFile
from libs.common.wiring import LIFECYCLE
from services.lifecycle.settings import LifecycleSettings

log = logging.getLogger(__name__)

_MOST_MISTAKES = 20  # in one line of the log


class WatchConfig:
    """The newest file without mistakes; of one with mistakes the labeler tells on the cluster."""

    def __init__(
        self, settings: LifecycleSettings, *, changed: Callable[[], None], now: Callable[[], float]
    ) -> None:
        """`changed` hears when other Nodes are ours; `now` is Unix time, for metrics."""
        self._settings = settings
        self._changed = changed
        self._now = now
        self._ownership = settings.file.ownership.of(NODE_LIFECYCLE)
        self._mistakes: tuple[str, ...] = ()

    @property
    def ownership(self) -> Ownership:
        """What holds now."""
        return self._ownership

    def problems(self) -> tuple[str, ...]:
        """The mistakes of a file that is not obeyed."""
        return (f"{self._mistakes[0]}; what was read before stays in force",) if self._mistakes else ()

    async def run(self) -> None:
        """Look at the file until cancelled; without one there is nothing to do."""
        if self._settings.cloud_config is None:
            return
        self._measure()
        file = CloudConfigFile(self._settings.cloud_config, self._settings.file)
        await file.watch(self._look_at, look_seconds=self._settings.file_look_seconds)

    def _look_at(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            self._mistakes = tuple(found.mistakes)
            metrics.RULES_RELOAD_ERRORS.labels(LIFECYCLE.service).inc()
            shown = "; ".join(self._mistakes[:_MOST_MISTAKES])
            log.error("the --cloud-config file has mistakes and is not obeyed", extra={"mistakes": shown})
            metrics.RULES_RELOAD_SUCCESS.labels(LIFECYCLE.service).set(0)
            return
        self._mistakes = ()
        ownership = found.ownership.of(NODE_LIFECYCLE)
        differs, self._ownership = ownership != self._ownership, ownership
        self._measure()
        if differs:
            log.info("other Nodes are ours")
            self._changed()

    def _measure(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(LIFECYCLE.service).set(1)
        metrics.RULES_LAST_RELOAD.labels(LIFECYCLE.service).set(self._now())
