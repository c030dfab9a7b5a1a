"""The pools of the --cloud-config file, and whose Nodes are ours by it, whenever it changes.

Pools that take blocks from nodes are not obeyed.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from libs.common import metrics
from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.rule import CloudConfig, Ownership, Pool
from libs.common.controllers import NODE_IPAM
from libs.common.kube_api.events import ObjectEvent
from libs.common.kube_api.newest_event import CLUSTER, NewestEvent
from libs.common.node import Node
from libs.common.ownership import deciding_labels, why_not_owned
from libs.common.settings.cloud_config_file import CloudConfigFile
from libs.common.wiring import IPAM
from services.ipam.claims_api import Kubernetes
from services.ipam.node_events import COMPONENT
from services.ipam.settings import IpamSettings
from services.ipam.shrinking import refused_shrinking

log = logging.getLogger(__name__)

_MOST_MISTAKES: Final = 20  # in one line of the log
_AGAIN_SECONDS: Final = 5.0  # what blocks are in use may change, or become known


class WatchConfig:
    """The newest pools that may be obeyed, and why they are not those of the file."""

    def __init__(
        self,
        settings: IpamSettings,
        *,
        in_use: Callable[[], Mapping[str, str] | None],
        changed: Callable[[], None],
        kube: Kubernetes,
        now: Callable[[], datetime],
        random: random.Random,
    ) -> None:
        """`in_use`: block -> node, None while that is not known.

        `changed` hears when other pools hold, or other Nodes are ours.
        """
        self._settings = settings
        self._in_use = in_use
        self._changed = changed
        self._now = now
        self._news = NewestEvent(kube, now=now, random=random)
        self._ownership = settings.file.ownership.of(NODE_IPAM)
        self._held = settings.file.pools
        self._held_since = now()
        self._wanted: tuple[Pool, ...] | None = None  # of a good file that is not obeyed yet
        self._mistakes: tuple[str, ...] = ()

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Those that hold now."""
        return self._held

    def deciding_labels(self) -> tuple[str, ...]:
        """The labels by which a Node is ours."""
        return deciding_labels(self._ownership)

    def why_not_ours(self, node: Node | None) -> str:
        """Why nothing may be written for that Node, "" if it may; None = one that is not known."""
        if node is not None:
            return why_not_owned(self._ownership, node)
        return "nothing is known of it yet" if self._ownership.is_said else ""

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
            tasks.create_task(self._look_again())
            tasks.create_task(self._news.run())

    def _look_at(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            self._wanted = None
            self._refuse(tuple(found.mistakes))
        else:
            self._own(found.ownership.of(NODE_IPAM))
            self._wanted = found.pools
            self._judge()

    def _own(self, ownership: Ownership) -> None:
        if ownership != self._ownership:
            self._ownership = ownership
            log.info("the --cloud-config file says anew which Nodes are ours")
            self._changed()

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            if self._wanted is not None:
                self._judge()

    def _judge(self) -> None:
        assert self._wanted is not None
        in_use = self._in_use()
        if in_use is None:
            return  # what would be taken from whom is not known yet
        refused = refused_shrinking(self._held, self._wanted, in_use)
        if refused:
            self._refuse(refused)
        else:
            self._obey(self._wanted)

    def _obey(self, pools: tuple[Pool, ...]) -> None:
        was_bad, self._mistakes, self._wanted = bool(self._mistakes), (), None
        differ = _meaning(pools) != _meaning(self._held)
        self._held, self._held_since = pools, self._now()
        self._measure()
        if was_bad:
            self._say("PoolsAccepted", f"the pools of {self._settings.cloud_config} are obeyed", "")
        if differ:
            log.info("other pools hold", extra={"pools": ", ".join(pool.name for pool in pools) or "none"})
            self._changed()

    def _refuse(self, mistakes: tuple[str, ...]) -> None:
        if mistakes == self._mistakes:
            return
        self._mistakes = mistakes
        self._measure()
        metrics.RULES_RELOAD_ERRORS.labels(IPAM.service).inc()
        shown = "; ".join(mistakes[:_MOST_MISTAKES])
        more = len(mistakes) - _MOST_MISTAKES
        log.error(
            "the pools of the --cloud-config file are not obeyed, those from before stay in force",
            extra={"mistakes": shown + (f"; and {more} more" if more > 0 else "")},
        )
        self._say("PoolsRejected", self._summary(), "\n".join(mistakes))

    def _summary(self) -> str:
        first, *others = self._mistakes
        more = f" (and {len(others)} more, see the log)" if others else ""
        return f"{first}{more}; the pools of {self._held_since:%Y-%m-%dT%H:%M:%SZ} stay in force"

    def _say(self, reason: str, message: str, particular: str) -> None:
        if self._settings.observe_only:
            return
        event = ObjectEvent(
            about=CLUSTER,
            reason=reason,
            message=message,
            type="Warning" if particular else "Normal",
            component=COMPONENT,
            particular=particular,
        )
        self._news.tell(event)

    def _measure(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(IPAM.service).set(not self._mistakes)
        metrics.RULES_LAST_RELOAD.labels(IPAM.service).set(self._held_since.timestamp())


def _meaning(pools: tuple[Pool, ...]) -> list[object]:
    """Without the lines of the file: a comment above them is no other pool."""
    return [
        (
            pool.name,
            pool.cidrs,
            pool.mask_size_ipv4,
            pool.mask_size_ipv6,
            [[(r.key, r.operator, r.values) for r in term.requirements] for term in pool.selector],
        )
        for pool in pools
    ]
