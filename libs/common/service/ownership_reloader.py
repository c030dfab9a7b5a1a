"""Whose Nodes are ours by the --cloud-config file as it is now; one with mistakes is not obeyed."""

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig, Ownership
from libs.common.observability import metrics
from libs.common.settings.cloud_config_reloader import CloudConfigReloader

log = logging.getLogger(__name__)

_MOST_MISTAKES: Final = 20  # in one line of the log


class OwnershipReloader:
    """For services that read nothing else of it; what is wrong with it, the labeler tells on the cluster."""

    def __init__(
        self,
        path: Path | None,
        initial_config: CloudConfig,
        *,
        service: str,
        controller: str,
        poll_seconds: float,
        on_change: Callable[[], None],
        now: Callable[[], datetime],
    ) -> None:
        """`known`: what the file said at the start; `changed` hears when other Nodes are the controller's."""
        self._path = path
        self._known = initial_config
        self._service = service
        self._controller = controller
        self._look_seconds = poll_seconds
        self._changed = on_change
        self._now = now
        self._ownership = initial_config.ownership.for_controller(controller)
        self._loaded_at = now()
        self._mistakes: tuple[str, ...] = ()

    def ownership(self) -> Ownership:
        """What holds now."""
        return self._ownership

    def problems(self) -> tuple[str, ...]:
        """The mistakes of a file that is not obeyed."""
        since = f"{self._loaded_at:%Y-%m-%dT%H:%M:%SZ}"
        return tuple(f"{first}; what was read at {since} stays in force" for first in self._mistakes[:1])

    async def run(self) -> None:
        """Look at the file until cancelled; without one there is nothing to do."""
        if self._path is None:
            return
        self._set_metrics()
        file = CloudConfigReloader(self._path, self._known)
        await file.watch(self._apply, poll_seconds=self._look_seconds)

    def _apply(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            self._reject(tuple(found.mistakes))
            return
        held = found.ownership.for_controller(self._controller)
        differs, self._ownership = held != self._ownership, held
        self._loaded_at, self._mistakes = self._now(), ()
        self._set_metrics()
        if differs:
            log.info("the --cloud-config file says anew which Nodes are ours")
            self._changed()

    def _reject(self, mistakes: tuple[str, ...]) -> None:
        self._mistakes = mistakes
        self._set_metrics()
        metrics.RULES_RELOAD_ERRORS.labels(self._service).inc()
        shown = "; ".join(mistakes[:_MOST_MISTAKES])
        log.error(
            "the --cloud-config file has mistakes, whose Nodes are ours stays as it was",
            extra={"mistakes": shown},
        )

    def _set_metrics(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(self._service).set(not self._mistakes)
        metrics.RULES_LAST_RELOAD.labels(self._service).set(self._loaded_at.timestamp())
