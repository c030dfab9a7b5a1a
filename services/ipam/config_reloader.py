"""Reloads the pools and the ownership of --cloud-config; rejects pools without blocks that Nodes have."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Final

from libs.common.cloud_config.document import CloudConfigError
from libs.common.cloud_config.model import CloudConfig, Ownership, Pool
from libs.common.cloud_config.ownership import ownership_labels, why_not_owned
from libs.common.contract.controllers import NODE_IPAM
from libs.common.contract.node import Node
from libs.common.contract.services import IPAM
from libs.common.kube.event_recorder import LATEST_ONLY, EventRecorder, EventWriter
from libs.common.service.config_reload import CloudConfigStatus, ConfigEvents
from libs.common.service.service import run_every
from services.ipam.core.pool_usage import find_refused_shrinks
from services.ipam.reports import COMPONENT
from services.ipam.settings import IpamSettings

log = logging.getLogger(__name__)

_RECHECK_SECONDS: Final = 5.0  # the blocks in use may change, or become known


@dataclass(eq=False)
class ConfigReloader:
    """Provides the newest acceptable pools, and the reasons why a newer file is rejected."""

    settings: IpamSettings
    _: KW_ONLY
    # block -> Node name; None while the blocks in use are unknown
    get_blocks_in_use: Callable[[], Mapping[str, str] | None]
    on_change: Callable[[], None]  # called when the pools or the ownership of Nodes change
    kube: EventWriter
    now: Callable[[], datetime]

    def __post_init__(self) -> None:
        self._ownership = self.settings.file.ownership.for_controller(NODE_IPAM)
        self._current = self.settings.file.pools
        self._requested_pools: tuple[Pool, ...] | None = None  # from a valid file, not accepted yet
        events = ConfigEvents(
            recorder=EventRecorder(self.kube, component=COMPONENT, now=self.now, limits=LATEST_ONLY),
            accepted="PoolsAccepted",
            rejected="PoolsRejected",
        )
        self._status = CloudConfigStatus(IPAM.service, self.settings, now=self.now, events=events)

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The current pools."""
        return self._current

    def ownership_labels(self) -> tuple[str, ...]:
        """Return the labels that decide about the ownership of a Node."""
        return ownership_labels(self._ownership)

    def explain_not_managed(self, node: Node | None) -> str:
        """Return why ipam may write nothing for that Node, "" if it may; None: a Node that is unknown."""
        if node is not None:
            return why_not_owned(self._ownership, node)
        return "ipam has not observed the Node yet" if self._ownership.is_restricted else ""

    def problems(self) -> tuple[str, ...]:
        """Return the mistakes of a rejected file."""
        return self._status.problems()

    async def run(self) -> None:
        """Poll the file until cancelled; return at once if no file is configured."""
        await self._status.follow(
            self._on_file_changed, lambda: run_every(_RECHECK_SECONDS, self._validate_requested)
        )

    async def _on_file_changed(self, found: CloudConfig | CloudConfigError) -> None:
        if isinstance(found, CloudConfigError):
            self._requested_pools = None
            self._reject(tuple(found.mistakes))
        else:
            self._apply_ownership(found.ownership.for_controller(NODE_IPAM))
            self._requested_pools = found.pools
            self._validate_requested()

    def _apply_ownership(self, ownership: Ownership) -> None:
        if ownership != self._ownership:
            self._ownership = ownership
            log.info("ownership of Nodes changed")
            self.on_change()

    def _validate_requested(self) -> None:
        if self._requested_pools is None:
            return
        in_use = self.get_blocks_in_use()
        if in_use is None:
            return  # it is not known yet which Nodes would lose blocks
        refused = find_refused_shrinks(self._current, self._requested_pools, in_use)
        if refused:
            self._reject(refused)
        else:
            self._accept(self._requested_pools)

    def _accept(self, pools: tuple[Pool, ...]) -> None:
        self._requested_pools = None
        differ = pools != self._current  # or only their lines in the file, which does no harm
        self._current = pools
        self._status.accept(f"ipam uses the pools of {self.settings.cloud_config}")
        if differ:
            log.info("pools changed", extra={"pools": ", ".join(pool.name for pool in pools) or "none"})
            self.on_change()

    def _reject(self, mistakes: tuple[str, ...]) -> None:
        if mistakes != self._status.mistakes:  # a recheck often finds the same ones
            self._status.reject(mistakes)
