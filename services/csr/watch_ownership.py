"""Whose Nodes are ours by the --cloud-config file as it is now; one with mistakes is not obeyed."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Final

from libs.common import metrics
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.rule import CloudConfig
from libs.common.controllers import CSR_APPROVAL
from libs.common.node import Node
from libs.common.ownership import why_not_owned
from libs.common.settings.cloud_config_file import CloudConfigFile
from libs.common.wiring import CSR
from services.csr.settings import CsrSettings

log = logging.getLogger(__name__)

_MOST_MISTAKES: Final = 20  # in one line of the log


class WatchOwnership:
    """csr reads nothing else of the file; what is wrong with it, the labeler tells on the cluster."""

    def __init__(
        self, settings: CsrSettings, *, changed: Callable[[], None], now: Callable[[], datetime]
    ) -> None:
        """`changed` hears when other Nodes are ours."""
        self._settings = settings
        self._changed = changed
        self._now = now
        self._held = settings.file.ownership.of(CSR_APPROVAL)
        self._held_since = now()
        self._mistakes: tuple[str, ...] = ()

    def why_not_owned(self, node: Node) -> str:
        """Why nothing may be written about that Node, "" if it may."""
        return why_not_owned(self._held, node)

    @property
    def is_said(self) -> bool:
        """Whether there may be Nodes that are not ours."""
        return bool(self._held.selector or self._held.provider_id_schemes)

    def problems(self) -> tuple[str, ...]:
        """The mistakes of a file that is not obeyed."""
        since = f"{self._held_since:%Y-%m-%dT%H:%M:%SZ}"
        return tuple(f"{first}; what was read at {since} stays in force" for first in self._mistakes[:1])

    async def run(self) -> None:
        """Look at the file until cancelled; without one there is nothing to do."""
        if self._settings.cloud_config is None:
            return
        self._measure()
        file = CloudConfigFile(self._settings.cloud_config, self._settings.file)
        await file.watch(self._look_at, look_seconds=self._settings.file_look_seconds)

    def _look_at(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            self._refuse(tuple(found.mistakes))
            return
        held = found.ownership.of(CSR_APPROVAL)
        differs, self._held = held != self._held, held
        self._held_since, self._mistakes = self._now(), ()
        self._measure()
        if differs:
            log.info("the --cloud-config file says anew which Nodes are ours")
            self._changed()

    def _refuse(self, mistakes: tuple[str, ...]) -> None:
        self._mistakes = mistakes
        self._measure()
        metrics.RULES_RELOAD_ERRORS.labels(CSR.service).inc()
        shown = "; ".join(mistakes[:_MOST_MISTAKES])
        log.error(
            "the --cloud-config file has mistakes, whose Nodes are ours stays as it was",
            extra={"mistakes": shown},
        )

    def _measure(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(CSR.service).set(not self._mistakes)
        metrics.RULES_LAST_RELOAD.labels(CSR.service).set(self._held_since.timestamp())
