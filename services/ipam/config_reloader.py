"""The pools of the --cloud-config file, and whose Nodes are ours by it, whenever it changes.

Pools that take blocks from nodes are not obeyed.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig, Ownership, Pool
from libs.common.cloud_config.ownership import ownership_labels, why_not_owned
from libs.common.contract.controllers import NODE_IPAM
from libs.common.contract.node import Node
from libs.common.contract.services import IPAM
from libs.common.kube.events import ObjectEvent
from libs.common.kube.latest_event_recorder import CLUSTER_REFERENCE, LatestEventRecorder
from libs.common.observability import metrics
from libs.common.settings.cloud_config_reloader import CloudConfigReloader
from services.ipam.claims_api import Kubernetes
from services.ipam.node_event_recorder import COMPONENT
from services.ipam.pool_shrink import find_refused_shrinks
from services.ipam.settings import IpamSettings

log = logging.getLogger(__name__)

_MAX_LOGGED_MISTAKES: Final = 20  # in one line of the log
_RECHECK_SECONDS: Final = 5.0  # what blocks are in use may change, or become known


class ConfigReloader:
    """The newest pools that may be obeyed, and why they are not those of the file."""

    def __init__(
        self,
        settings: IpamSettings,
        *,
        get_blocks_in_use: Callable[[], Mapping[str, str] | None],
        on_change: Callable[[], None],
        kube: Kubernetes,
        now: Callable[[], datetime],
        random: random.Random,
    ) -> None:
        """`in_use`: block -> node, None while that is not known.

        `changed` hears when other pools hold, or other Nodes are ours.
        """
        self._settings = settings
        self._get_blocks_in_use = get_blocks_in_use
        self._on_change = on_change
        self._now = now
        self._wakeup = LatestEventRecorder(kube, now=now, random=random)
        self._ownership = settings.file.ownership.for_controller(NODE_IPAM)
        self._current = settings.file.pools
        self._loaded_at = now()
        self._requested_pools: tuple[Pool, ...] | None = None  # of a good file that is not obeyed yet
        self._mistakes: tuple[str, ...] = ()

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Those that hold now."""
        return self._current

    def ownership_labels(self) -> tuple[str, ...]:
        """The labels by which a Node is ours."""
        return ownership_labels(self._ownership)

    def why_not_managed(self, node: Node | None) -> str:
        """Why nothing may be written for that Node, "" if it may; None = one that is not known."""
        if node is not None:
            return why_not_owned(self._ownership, node)
        return "nothing is known of it yet" if self._ownership.is_restricted else ""

    def problems(self) -> tuple[str, ...]:
        """The mistakes of a file that is not obeyed."""
        return (self._summary(),) if self._mistakes else ()

    async def run(self) -> None:
        """Look at the file until cancelled; without one there is nothing to do."""
        if self._settings.cloud_config is None:
            return
        self._update_metrics()
        file = CloudConfigReloader(self._settings.cloud_config, self._settings.file)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                file.watch(self._on_file_changed, poll_seconds=self._settings.cloud_config_poll_seconds)
            )
            tasks.create_task(self._recheck_periodically())
            tasks.create_task(self._wakeup.run())

    def _on_file_changed(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            self._requested_pools = None
            self._reject(tuple(found.mistakes))
        else:
            self._apply_ownership(found.ownership.for_controller(NODE_IPAM))
            self._requested_pools = found.pools
            self._validate()

    def _apply_ownership(self, ownership: Ownership) -> None:
        if ownership != self._ownership:
            self._ownership = ownership
            log.info("the --cloud-config file says anew which Nodes are ours")
            self._on_change()

    async def _recheck_periodically(self) -> None:
        while True:
            await asyncio.sleep(_RECHECK_SECONDS)
            if self._requested_pools is not None:
                self._validate()

    def _validate(self) -> None:
        assert self._requested_pools is not None
        in_use = self._get_blocks_in_use()
        if in_use is None:
            return  # what would be taken from whom is not known yet
        refused = find_refused_shrinks(self._current, self._requested_pools, in_use)
        if refused:
            self._reject(refused)
        else:
            self._accept(self._requested_pools)

    def _accept(self, pools: tuple[Pool, ...]) -> None:
        was_bad, self._mistakes, self._requested_pools = bool(self._mistakes), (), None
        differ = _comparable(pools) != _comparable(self._current)
        self._current, self._loaded_at = pools, self._now()
        self._update_metrics()
        if was_bad:
            self._publish_event("PoolsAccepted", f"the pools of {self._settings.cloud_config} are obeyed", "")
        if differ:
            log.info("other pools hold", extra={"pools": ", ".join(pool.name for pool in pools) or "none"})
            self._on_change()

    def _reject(self, mistakes: tuple[str, ...]) -> None:
        if mistakes == self._mistakes:
            return
        self._mistakes = mistakes
        self._update_metrics()
        metrics.RULES_RELOAD_ERRORS.labels(IPAM.service).inc()
        shown = "; ".join(mistakes[:_MAX_LOGGED_MISTAKES])
        more = len(mistakes) - _MAX_LOGGED_MISTAKES
        log.error(
            "the pools of the --cloud-config file are not obeyed, those from before stay in force",
            extra={"mistakes": shown + (f"; and {more} more" if more > 0 else "")},
        )
        self._publish_event("PoolsRejected", self._summary(), "\n".join(mistakes))

    def _summary(self) -> str:
        first, *others = self._mistakes
        more = f" (and {len(others)} more, see the log)" if others else ""
        return f"{first}{more}; the pools of {self._loaded_at:%Y-%m-%dT%H:%M:%SZ} stay in force"

    def _publish_event(self, reason: str, message: str, particular: str) -> None:
        if self._settings.observe_only:
            return
        event = ObjectEvent(
            regarding=CLUSTER_REFERENCE,
            reason=reason,
            message=message,
            type="Warning" if particular else "Normal",
            component=COMPONENT,
            discriminator=particular,
        )
        self._wakeup.record(event)

    def _update_metrics(self) -> None:
        metrics.RULES_RELOAD_SUCCESS.labels(IPAM.service).set(not self._mistakes)
        metrics.RULES_LAST_RELOAD.labels(IPAM.service).set(self._loaded_at.timestamp())


def _comparable(pools: tuple[Pool, ...]) -> list[object]:
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
