"""What holds for all Nodes: the --cloud-config file, whenever it changes; a bad one is told, not obeyed."""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final, Literal

from libs.common import metrics
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.rule import CloudConfig
from libs.common.kube_api.event_queue import EventWriter
from libs.common.kube_api.events import ObjectEvent
from libs.common.kube_api.newest_event import CLUSTER, NewestEvent
from libs.common.settings.cloud_config_file import CloudConfigFile
from libs.common.wiring import LABELER
from services.labeler.plan import Global
from services.labeler.settings import BadConfig, LabelerSettings

log = logging.getLogger(__name__)

_COMPONENT: Final = "talos-ccm"
_MOST_MISTAKES: Final = 20  # in one line of the log: a file of another kind has one in each of its lines


class WatchConfig:
    """The newest file without mistakes, and why it is not the newest file."""

    def __init__(
        self,
        settings: LabelerSettings,
        *,
        changed: Callable[[], None],
        kube: EventWriter,
        now: Callable[[], datetime],
        random: random.Random,
    ) -> None:
        """`changed` hears when something else holds."""
        self._settings = settings
        self._changed = changed
        self._now = now
        self._news = NewestEvent(kube, now=now, random=random)
        self._held = settings.config
        self._held_since = now()
        self._mistakes: tuple[str, ...] = ()
        self._found: CloudConfig | CloudConfigError | None = None
        self._is_found = asyncio.Event()

    def config(self) -> Global:
        """What holds now: the same object for as long as nothing else does."""
        return self._held

    def problems(self) -> tuple[str, ...]:
        """The mistakes of a file that is not obeyed."""
        return (self._summary(),) if self._mistakes else ()

    async def run(self) -> None:
        """Look at the file until cancelled; without one there is nothing to do."""
        if self._settings.cloud_config is None:
            return
        self._measure()
        file = CloudConfigFile(self._settings.cloud_config, self._settings.file)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(file.watch(self._look_at, look_seconds=self._settings.file_look_seconds))
            tasks.create_task(self._take_up())
            tasks.create_task(self._news.run())

    def _look_at(self, found: CloudConfig | CloudConfigError) -> None:
        self._found = found
        self._is_found.set()

    async def _take_up(self) -> None:
        while True:
            await self._is_found.wait()
            self._is_found.clear()
            if self._found is not None:
                await self._judge(self._found)

    async def _judge(self, found: CloudConfig | CloudConfigError) -> None:
        try:
            config, warnings = await asyncio.to_thread(self._settings.judged, found)
        except BadConfig as error:
            self._refuse(error.mistakes)
        except Exception as error:
            # People write the file: a defect of ours that it hits must not cost what holds.
            log.exception("the --cloud-config file could not be judged")
            self._refuse(
                (f"{self._settings.cloud_config} cannot be judged: {type(error).__name__}: {error}",)
            )
        else:
            self._obey(config, warnings=warnings)

    def _obey(self, config: Global, *, warnings: tuple[str, ...]) -> None:
        was_bad, self._mistakes = bool(self._mistakes), ()
        self._held, self._held_since = config, self._now()
        self._measure()
        rules = len(config.rules.rules)
        log.info("the --cloud-config file was read again", extra={"rules": rules})
        for warning in warnings:
            log.warning("about the settings", extra={"why": warning})
        if was_bad:
            text = f"{self._settings.cloud_config} has no mistakes any more and is obeyed: {rules} rules"
            self._say("CloudConfigAccepted", text, "Normal")
        self._changed()

    def _refuse(self, mistakes: tuple[str, ...]) -> None:
        self._mistakes = mistakes
        self._measure()
        metrics.RULES_RELOAD_ERRORS.labels(LABELER.service).inc()
        shown = "; ".join(mistakes[:_MOST_MISTAKES])
        more = len(mistakes) - _MOST_MISTAKES
        log.error(
            "the --cloud-config file has mistakes, what it said before stays in force",
            extra={"mistakes": shown + (f"; and {more} more" if more > 0 else "")},
        )
        self._say("CloudConfigRejected", self._summary(), "Warning")

    def _summary(self) -> str:
        first, *others = self._mistakes
        more = f" (and {len(others)} more, see the log)" if others else ""
        return f"{first}{more}; what was read at {self._held_since:%Y-%m-%dT%H:%M:%SZ} stays in force"

    def _say(self, reason: str, message: str, kind: Literal["Normal", "Warning"]) -> None:
        if self._settings.observe_only:
            return
        event = ObjectEvent(
            about=CLUSTER,
            reason=reason,
            message=message,
            type=kind,
            component=_COMPONENT,
            particular="\n".join(self._mistakes),
        )
        self._news.tell(event)

    def _measure(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(LABELER.service).set(not self._mistakes)
        metrics.RULES_LAST_RELOAD.labels(LABELER.service).set(self._held_since.timestamp())
